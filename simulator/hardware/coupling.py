"""Couplings between the parts of a fleet: devices slow engines, engines heat devices, nodes delay start-ups.

Pure functions of the fleet's current state; ``Fleet`` applies the results.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from outrider.model import Floats
from simulator.cluster.pods import Pods, StartupFactors
from simulator.effects import FleetEffects
from simulator.engine.engine import EngineBank, Work
from simulator.engine.request_table import group_sum
from simulator.hardware.gpus import Activity, Gpus, Load, activity
from simulator.hardware.nodes import HostWork, Nodes
from simulator.spec.parts import FleetSpec

# Share of all-reduce in a decode step of a tensor-parallel group at full speed. Public profiles of 70 B models in
# groups of 4 and 8 on NVLink show 10 to 25 %.
REDUCE_RATIO = 0.15
HOST_RATIO = 0.02  # share of a step that waits for PCIe copies
MOST_STRETCH = 20.0
THROTTLED_STRETCH = 1.5  # delay of a step relative to the CPU share that its scheduler loop lacks
# Loading: reading from the shared storage through the local disk, copying to the device, and the rest.
READ_RATIO, COPY_RATIO = 0.7, 0.1
DISK_OF_PULL_RATIO = 0.6  # share of unpacking layers in a pull


class CoupledFleet(Protocol):
    """The parts of a fleet that its couplings read. Both arrays are of shape (slots,)."""

    spec: FleetSpec
    gpus: Gpus
    nodes: Nodes
    pods: Pods
    bank: EngineBank
    effects: FleetEffects
    reserved_ratio: np.ndarray
    requests_per_second: np.ndarray


def on_gpus(fleet: CoupledFleet, values: Floats) -> Floats:
    """Maps values of slots to their devices, 0 for free ones: (slots,) to (gpus,)."""
    owner = fleet.pods.owner
    return np.where(owner >= 0, values[np.maximum(owner, 0)], 0.0)


def on_slots(fleet: CoupledFleet, values: Floats, neutral: float) -> Floats:
    """Maps values of hosts to the slots on them: (nodes,) to (slots,)."""
    node = fleet.pods.node_of_slot
    return np.where(node >= 0, values[np.maximum(node, 0)], neutral)


def worst_of_group(fleet: CoupledFleet, values: Floats) -> Floats:
    """Returns the highest value of each slot's devices, 1 without devices: (gpus,) to (slots,)."""
    worst = np.ones(fleet.bank.size)
    used = np.flatnonzero(fleet.pods.owner >= 0)
    np.maximum.at(worst, fleet.pods.owner[used], values[used])
    return worst


def stretch(fleet: CoupledFleet) -> Floats:
    """Returns the step-time factor of each slot, (slots,): a group runs at the speed of its slowest device."""
    gpu, slot, node = fleet.effects.gpus, fleet.effects.slots, fleet.effects.nodes
    alone = fleet.gpus.slow * gpu.step_factor
    copies = 1.0 + HOST_RATIO * (1.0 / np.maximum(gpu.pcie_factor, 1e-3) - 1.0)
    reduces = 1.0 + REDUCE_RATIO * (1.0 / np.maximum(gpu.link_factor, 1e-3) - 1.0)
    grouped = (fleet.pods.group > 1)[np.maximum(fleet.pods.owner, 0)]
    slow = worst_of_group(fleet, alone * copies * np.where(grouped, reduces, 1.0))
    slow = slow * slot.step_factor * cpu_stretch(fleet) * on_slots(fleet, node.neighbor_factor, 1.0)
    return np.minimum(slow, MOST_STRETCH)


def cpu_stretch(fleet: CoupledFleet) -> Floats:
    """Returns the CPU's part of the step-time factor, during which the device idles."""
    return 1.0 + THROTTLED_STRETCH * np.clip(fleet.effects.slots.cpu_throttled_ratio, 0.0, 1.0)


def pace(fleet: CoupledFleet) -> StartupFactors:
    """Returns the factors of pull and load times, and the failing loads."""
    node, slot = fleet.effects.nodes, fleet.effects.slots
    disk = on_slots(fleet, node.disk_factor, 1.0)
    lost = 1.0 + 20.0 * on_slots(fleet, node.packet_loss_ratio, 0.0)  # a few percent of loss halve TCP throughput
    read = np.maximum(disk, on_slots(fleet, node.storage_factor, 1.0)) * lost
    copy = worst_of_group(fleet, 1.0 / np.maximum(fleet.effects.gpus.pcie_factor, 1e-3))
    pull = on_slots(fleet, node.pull_factor, 1.0) * (1.0 + DISK_OF_PULL_RATIO * (disk - 1.0)) * lost
    load = slot.load_factor * (1.0 + READ_RATIO * (read - 1.0) + COPY_RATIO * (copy - 1.0))
    return StartupFactors(pull, load, slot.load_fails > 0.5)


def stalled(fleet: CoupledFleet) -> np.ndarray:
    """Returns True for slots whose engine core is hung, shape (slots,)."""
    effects = fleet.effects.slots
    return np.asarray((effects.hung > 0.5) | (effects.core_dead > 0.5) | (effects.asleep > 0.5))


def answering(fleet: CoupledFleet) -> np.ndarray:
    """Returns True for slots whose ``/health`` returns 200 to the load balancer while they run, shape (slots,)."""
    node = fleet.effects.nodes
    there = on_slots(fleet, np.minimum(node.alive, node.reachable), 1.0) > 0.5
    return np.asarray(there & (fleet.effects.slots.core_dead < 0.5))


def device_work(fleet: CoupledFleet, works: list[Work]) -> tuple[Activity, Load]:
    """Returns the work of the devices in a tick, from the work of the engines."""

    def mean(name: str) -> Floats:
        return np.asarray(np.mean([getattr(work, name) for work in works], axis=0), dtype=np.float64)

    pods = fleet.pods
    busy = mean("busy_ratio") * pods.ready / cpu_stretch(fleet)
    shown = activity(mean("batch"), fleet.bank.max_sequences, mean("prefill_ratio"), busy)
    reserved, size = fleet.reserved_ratio, fleet.gpus.memory * 1048576.0
    reading = pods.loading * reserved / (fleet.spec.startup.load_seconds * pace(fleet).load)
    load = Load(
        memory_share=on_gpus(fleet, pods.loaded_ratio * reserved),
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


def host_work(fleet: CoupledFleet) -> HostWork:
    """Returns the work of the nodes in a tick, from the pods on them."""
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


def failing_ratio(fleet: CoupledFleet) -> Floats:
    """Returns each slot's share of requests with an immediate 500, shape (slots,)."""
    lost = on_slots(fleet, fleet.effects.nodes.packet_loss_ratio, 0.0)
    # TCP hides single losses; requests fail if several in a row are lost.
    return np.clip(fleet.effects.slots.error_ratio + np.square(lost), 0.0, 1.0)
