"""Couplings between the parts of a fleet: devices slow engines, engines heat devices, nodes delay starts.

Pure functions of a fleet's present state; ``Fleet`` applies the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from outrider.model import Floats
from simulator.cluster.pods import Pace
from simulator.engine.request_table import group_sum
from simulator.hardware.gpus import Activity, Load, activity
from simulator.hardware.nodes import HostWork

if TYPE_CHECKING:
    from simulator.engine.engine import Work
    from simulator.fleet import Fleet

# Of a decode step of a tensor-parallel group at full speed, the share that is all-reduce. Public profiles of
# 70 B models in groups of 4 and 8 on NVLink lie between 10 and 25 %.
REDUCE_RATIO = 0.15
HOST_RATIO = 0.02  # and what of a step waits for copies over PCIe
MOST_STRETCH = 20.0
THROTTLED_STRETCH = (
    1.5  # a scheduler loop that lacks its CPU for a share of the time delays each step by this much of it
)
# Loading: reading from the shared storage through the local disk, copying to the device, and the rest.
READ_RATIO, COPY_RATIO = 0.7, 0.1
DISK_OF_PULL_RATIO = 0.6  # unpacking layers, against downloading them


def on_gpus(fleet: Fleet, values: Floats) -> Floats:
    """Values of slots on the devices they use, 0 on free ones: (slots,) to (gpus,)."""
    owner = fleet.pods.owner
    return np.where(owner >= 0, values[np.maximum(owner, 0)], 0.0)


def on_slots(fleet: Fleet, values: Floats, neutral: float) -> Floats:
    """Values of hosts at the slots placed on them: (nodes,) to (slots,)."""
    node = fleet.pods.node_of_slot
    return np.where(node >= 0, values[np.maximum(node, 0)], neutral)


def worst_of_group(fleet: Fleet, values: Floats) -> Floats:
    """The highest value of the devices of each slot, 1 without devices: (gpus,) to (slots,)."""
    worst = np.ones(fleet.bank.size)
    used = np.flatnonzero(fleet.pods.owner >= 0)
    np.maximum.at(worst, fleet.pods.owner[used], values[used])
    return worst


def stretch(fleet: Fleet) -> Floats:
    """Factor of the step time of each slot, shape (slots,): a group runs at the pace of its slowest device."""
    gpu, slot, node = fleet.effects.gpus, fleet.effects.slots, fleet.effects.nodes
    alone = fleet.gpus.slow * gpu.step_factor
    copies = 1.0 + HOST_RATIO * (1.0 / np.maximum(gpu.pcie_factor, 1e-3) - 1.0)
    reduces = 1.0 + REDUCE_RATIO * (1.0 / np.maximum(gpu.link_factor, 1e-3) - 1.0)
    grouped = (fleet.pods.group > 1)[np.maximum(fleet.pods.owner, 0)]
    slow = worst_of_group(fleet, alone * copies * np.where(grouped, reduces, 1.0))
    slow = slow * slot.step_factor * cpu_stretch(fleet) * on_slots(fleet, node.neighbour_factor, 1.0)
    return np.minimum(slow, MOST_STRETCH)


def cpu_stretch(fleet: Fleet) -> Floats:
    """Part of the stretch that the CPU causes, during which the device idles."""
    return 1.0 + THROTTLED_STRETCH * np.clip(fleet.effects.slots.cpu_throttled_ratio, 0.0, 1.0)


def pace(fleet: Fleet) -> Pace:
    """Factors of pull and load times, and the loads that fail."""
    node, slot = fleet.effects.nodes, fleet.effects.slots
    disk = on_slots(fleet, node.disk_factor, 1.0)
    lost = 1.0 + 20.0 * on_slots(fleet, node.packet_loss_ratio, 0.0)  # a lossy path halves TCP at a few percent
    read = np.maximum(disk, on_slots(fleet, node.storage_factor, 1.0)) * lost
    copy = worst_of_group(fleet, 1.0 / np.maximum(fleet.effects.gpus.pcie_factor, 1e-3))
    pull = on_slots(fleet, node.pull_factor, 1.0) * (1.0 + DISK_OF_PULL_RATIO * (disk - 1.0)) * lost
    load = slot.load_factor * (1.0 + READ_RATIO * (read - 1.0) + COPY_RATIO * (copy - 1.0))
    return Pace(pull, load, slot.load_fails > 0.5)


def stalled(fleet: Fleet) -> np.ndarray:
    """Slots whose core is hung, bool of shape (slots,)."""
    effects = fleet.effects.slots
    return np.asarray((effects.hung > 0.5) | (effects.core_dead > 0.5) | (effects.asleep > 0.5))


def answering(fleet: Fleet) -> np.ndarray:
    """Slots whose ``/health`` returns 200 to the load balancer if their process runs, bool of shape (slots,)."""
    node = fleet.effects.nodes
    there = on_slots(fleet, np.minimum(node.alive, node.reachable), 1.0) > 0.5
    return np.asarray(there & (fleet.effects.slots.core_dead < 0.5))


def device_work(fleet: Fleet, works: list[Work]) -> tuple[Activity, Load]:
    """Work of the devices in a tick, from the work of the engines."""

    def mean(name: str) -> Floats:
        return np.asarray(np.mean([getattr(work, name) for work in works], axis=0), dtype=np.float64)

    pods = fleet.pods
    busy = mean("busy_ratio") * pods.ready / cpu_stretch(fleet)
    shown = activity(mean("batch"), fleet.bank.max_sequences, mean("prefill_ratio"), busy)
    reserved, size = fleet.reserved_ratio, fleet.gpus.memory * 1048576.0
    reading = pods.loading * reserved / (fleet.spec.startup.load_seconds * pace(fleet).load)
    load = Load(
        held=on_gpus(fleet, pods.loaded_ratio * reserved),
        tokens=on_gpus(fleet, mean("tokens_per_second") + mean("prompt_tokens_per_second")),
        loading=on_gpus(fleet, reading) * size,
        grouped=(pods.owner >= 0) & (pods.group > 1)[np.maximum(pods.owner, 0)],
    )
    return (
        Activity(
            on_gpus(fleet, shown.utilization),
            on_gpus(fleet, shown.tensor),
            on_gpus(fleet, shown.memory_bandwidth),
            on_gpus(fleet, shown.power_share),
        ),
        load,
    )


def host_work(fleet: Fleet) -> HostWork:
    """Work of the nodes in a tick, from the pods on them."""
    pods, size = fleet.pods, fleet.nodes.size
    placed = np.flatnonzero(pods.node_of_slot >= 0)
    where = pods.node_of_slot[placed]
    hottest = np.zeros(size)
    np.maximum.at(hottest, fleet.gpus.node, fleet.gpus.temperature)

    def total(values: Floats) -> Floats:
        return group_sum(where, values[placed], size)

    return HostWork(
        total(fleet.requests_per_second),
        total(pods.ready.astype(np.float64)),
        total(pods.loading.astype(np.float64)),
        total(np.where(pods.loaded_ratio > 0, fleet.effects.slots.host_memory_bytes, 0.0)),
        hottest,
    )


def failing_ratio(fleet: Fleet) -> Floats:
    """The share of requests that each slot answers 500 at once, shape (slots,)."""
    lost = on_slots(fleet, fleet.effects.nodes.packet_loss_ratio, 0.0)
    # TCP hides single losses; requests fail if several in a row are lost.
    return np.clip(fleet.effects.slots.error_ratio + np.square(lost), 0.0, 1.0)
