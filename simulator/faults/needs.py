"""Preconditions of a fault: the words of ``needs`` in fault files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from simulator.faults.scope import Scope

if TYPE_CHECKING:
    from simulator.fleet import Fleet


def _traffic(fleet: Fleet, here: Scope) -> str:
    """Requires requests at the services; without them a factor has no effect."""
    if here.services.size and ((fleet.demand(fleet.at) * fleet.entry)[here.services] > 0).any():
        return ""
    return "gets no requests now"


def _pods(fleet: Fleet, here: Scope) -> str:
    """Requires at least one pod in scope."""
    del fleet
    return "" if here.slots.size else "has no pod now, so the fault would have no effect"


def _redundant(fleet: Fleet, here: Scope) -> str:
    """Requires two ready pods: a rolling update of a single one is an outage by itself."""
    ready = int(fleet.pods.ready[here.slots].sum())
    return "" if ready > 1 else "has fewer than two pods that serve, so a rolling update would be an outage by itself"


def orders(fleet: Fleet, here: Scope) -> dict[str, int]:
    """Returns replicas to order of each service in scope, so that at least one does not fit.

    Empty if all would fit. The widest groups come first, because they stop fitting first.
    """
    kinds = {fleet.gpus.type_name[gpu] for gpu in here.gpus.tolist()}
    fitting = np.array([name in kinds for name in fleet.gpus.type_name])
    free = int((fitting & (fleet.pods.owner < 0) & fleet.pods.healthy).sum())
    result: dict[str, int] = {}
    chosen = [service for service in fleet.spec.services if service.gpu_type in ("", *kinds)]
    for service in sorted(chosen, key=lambda service: -service.tensor_parallel):
        wanted = fleet.desired[service.name]
        more = min(service.ceiling - wanted, max(0, free // service.tensor_parallel + 1))
        if more <= 0:
            continue
        result[service.name] = wanted + more
        free -= more * service.tensor_parallel
        if free < 0:
            return result
    return {}


def _scarce(fleet: Fleet, here: Scope) -> str:
    """Requires that the services may have more replicas than there are GPUs."""
    return "" if orders(fleet, here) else "has enough GPUs for all replicas of its services, so none would wait"


NEEDS: dict[str, Callable[[Fleet, Scope], str]] = {
    "traffic": _traffic,
    "pods": _pods,
    "redundant": _redundant,
    "scarce": _scarce,
}


def unmet(fleet: Fleet, needs: tuple[str, ...], here: Scope) -> str:
    """Returns the first unmet precondition of a fault as a sentence; empty if all are met."""
    return next((reason for need in needs if (reason := NEEDS[need](fleet, here))), "")
