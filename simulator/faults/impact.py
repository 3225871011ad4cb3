"""Impact of a changed effect on slots, from the fleet's state: a remedy counts only if it worked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from simulator.faults.scope import Scope

if TYPE_CHECKING:
    from simulator.fleet import Fleet

SLOWED_CLOCK_RATIO = 0.99
COPIES_WAIT_BELOW = 0.15  # share of PCIe bandwidth at which steps are about 10 % longer
MISROUTED_RATIO = 1.25  # of its intended share; less is within the noise of arrivals
QUEUE_RATIO = 0.05  # of max_num_seqs: a longer queue delays requests

Mask = np.ndarray  # bool, shape (slots,)


def served(fleet: Fleet, here: Scope) -> Mask:
    """Returns slots in scope that get requests."""
    result = np.zeros(fleet.bank.size, dtype=bool)
    result[here.slots] = fleet.requests_per_second[here.slots] > 0
    return result


def _slowed(fleet: Fleet, here: Scope) -> Mask:
    """Returns slots with a device in scope whose clock has fallen."""
    low = here.gpus[fleet.gpus.clock_ratio[here.gpus] < SLOWED_CLOCK_RATIO]
    owners = fleet.pods.owner[low]
    result = np.zeros(fleet.bank.size, dtype=bool)
    result[owners[owners >= 0]] = True
    return np.asarray(result & served(fleet, here))


def _starting(fleet: Fleet, here: Scope) -> Mask:
    """Returns slots that should serve and do not yet."""
    pods, result = fleet.pods, np.zeros(fleet.bank.size, dtype=bool)
    result[here.slots] = True
    return np.asarray(result & pods.existing & ~pods.ready)


def _copying(fleet: Fleet, here: Scope) -> Mask:
    """Returns slots whose steps wait for copies over PCIe."""
    slow = here.gpus[fleet.effects.gpus.pcie_factor[here.gpus] < COPIES_WAIT_BELOW]
    owners = fleet.pods.owner[slow]
    result = np.zeros(fleet.bank.size, dtype=bool)
    result[owners[owners >= 0]] = True
    return np.asarray(result & served(fleet, here))


def _queued(fleet: Fleet, here: Scope) -> Mask:
    """Returns slots with a queue above ``QUEUE_RATIO``."""
    return np.asarray(served(fleet, here) & (fleet.bank.waiting > QUEUE_RATIO * fleet.bank.max_sequences))


def _targeted(fleet: Fleet, here: Scope) -> Mask:
    """Returns slots that requests are routed to (weight and demand above 0), even if none arrive."""
    wanted = (fleet.demand(fleet.at) * fleet.entry > 0)[fleet.pods.service_of_slot]
    result = np.zeros(fleet.bank.size, dtype=bool)
    result[here.slots] = True
    return np.asarray(result & wanted & (fleet.router.weights > 0))


def _misrouted(fleet: Fleet, here: Scope) -> Mask:
    """Returns slots that get more requests than intended, above ``MISROUTED_RATIO``."""
    intended, router = fleet.router.intended_shares(), fleet.router
    return np.asarray(served(fleet, here) & (router.shares(fleet.effects) > MISROUTED_RATIO * intended))


def _none(fleet: Fleet, here: Scope) -> Mask:
    del here
    return np.zeros(fleet.bank.size, dtype=bool)


def _each(group: str, rule: Callable[[Fleet, Scope], Mask], *effects: str) -> dict[tuple[str, str], Rule]:
    return {(group, effect_name): rule for effect_name in effects}


Rule = Callable[["Fleet", Scope], Mask]
_RULES: dict[tuple[str, str], Rule] = {
    **_each("gpus", _slowed, "cooling_factor", "power_limit_ratio"),
    **_each("gpus", _copying, "pcie_factor"),
    **_each("gpus", _none, "link_errors_per_second", "pcie_replays_per_second", "extra_memory_mebibytes"),
    **_each("gpus", _none, "ecc_correctable_per_second", "ecc_uncorrectable_per_second"),
    **_each("gpus", _none, "row_remap_pending", "row_remap_failed"),
    **_each("nodes", _slowed, "fan_factor"),
    **_each("nodes", _starting, "disk_factor", "storage_factor", "pull_factor", "disk_lost_ratio"),
    **_each("nodes", _none, "clock_offset_seconds", "rdma_errors_per_second"),
    **_each("nodes", _none, "neighbor_cpu_ratio", "supplies_failed", "port_up"),
    **_each("nodes", _targeted, "reachable", "alive"),
    **_each("slots", _starting, "load_factor", "load_fails", "host_memory_bytes"),
    **_each("slots", _targeted, "core_dead"),
    **_each("slots", _misrouted, "weight_factor"),
    **_each("slots", _none, "page_frozen", "names_changed"),
    **_each("services", _queued, "rate_factor", "prompt_factor", "tenant_prompt_factor"),
    **_each("services", _queued, "output_factor", "retry_ratio"),
    **_each("services", _targeted, "gateway_error_ratio", "entry_fails"),
    **_each("services", _queued, "autoscaler_stuck", "desired_extra"),
    **_each("services", _none, "kpi_factor"),
    **_each("cluster", _targeted, "alive"),
    **_each("cluster", _none, "seen"),
}


def impacted_slots(fleet: Fleet, group: str, effect_name: str, here: Scope, been: np.ndarray) -> Mask:
    """Returns the slots that a changed effect impacts now, bool of shape (slots,).

    ``been`` (bool, by slot) were in scope before: they are impacted while they do not serve, if the effect delays
    start-ups. An effect without its own rule impacts every slot in scope that gets requests.
    """
    rule = _RULES.get((group, effect_name), served)
    late = _starting(fleet, replace(here, slots=np.flatnonzero(been)))
    if rule is _starting:
        return late
    return np.asarray(rule(fleet, here) | late) if rule is _copying else rule(fleet, here)
