"""Deployment actions: rollouts, flags, replica counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from outrider.model import EntityKind
from simulator.faults.log_events import fill
from simulator.faults.needs import orders

if TYPE_CHECKING:
    from simulator.faults.base import Injection
    from simulator.fleet import Fleet
    from simulator.spec.parts import ServiceSpec

Undo = Callable[["Fleet"], None]
PLACED_SECONDS = 15.0  # by then the scheduler has tried to place the new replicas


def rollout(fleet: Fleet, fault: Injection, text: str = "", revision: str = "") -> None:
    """Rolls the services in scope out to a new revision, pod by pod; ``holds: revision`` refers to it."""
    for service in _services(fleet, fault):
        name = revision or _next_revision(fleet, service.name)
        fault.roll_out(name)
        message = fill(fleet, fault, text or "{service} is rolled out to {revision}")
        fleet.rollout(service.name, name, text=message)


def reconfigure(fleet: Fleet, fault: Injection, text: str, before: str = "", after: str = "") -> Undo:
    """Changes a flag of the services in scope and reloads them at once; processes and counters stay.

    This creates a revision, which ``holds: revision`` refers to; the end restores the flag. ``before`` and ``after``
    are the literal flags.
    """
    for service in _services(fleet, fault):
        name = _next_revision(fleet, service.name)
        fault.roll_out(name)
        flags = before.format(sequences=service.engine.max_sequences), after
        fleet.rollouts.begin(service.name, name, text=fill(fleet, fault, text), instantly=True, flags=flags)

    def restored(fleet: Fleet) -> None:
        rollback(fleet, fault)

    return restored


def rollback(fleet: Fleet, fault: Injection) -> None:
    """Rolls the services in scope back to the previous revision, unless another rollout has happened since then."""
    for service in _services(fleet, fault):
        if fleet.rollouts.revision(service.name) == fault.revision:
            fleet.rollback(service.name)


def scale(fleet: Fleet, fault: Injection, by: int, text: str = "") -> Undo:
    """Scales the services in scope by ``by`` replicas, within their slots, until the end."""
    wanted = {
        service.name: int(np.clip(fleet.desired[service.name] + by, 0, service.ceiling))
        for service in _services(fleet, fault)
    }
    return _order(fleet, fault, wanted, text)


def fill_pool(fleet: Fleet, fault: Injection, text: str = "") -> Undo:
    """Scales the services in scope out until some replicas stay pending, until the end."""
    wanted = orders(fleet, fault.here(fleet))
    undo = _order(fleet, fault, wanted, text)

    def left_over(fleet: Fleet) -> None:
        for name in wanted:
            for pod in fleet.pods.of_service(name):
                if pod.unschedulable:
                    fault.mark_impacted(pod.slot)

    fault.later(fleet, PLACED_SECONDS, left_over)
    return undo


def _services(fleet: Fleet, fault: Injection) -> list[ServiceSpec]:
    return [fleet.spec.services[number] for number in fault.here(fleet).services.tolist()]


def _order(fleet: Fleet, fault: Injection, wanted: dict[str, int], text: str) -> Undo:
    """Sets the replicas of each service; the end restores those that nothing else has changed since then."""
    before = {name: fleet.desired[name] for name in wanted}
    for name, replicas in wanted.items():
        where = fleet.entity(EntityKind.SERVICE, name, fleet.spec.service(name).namespace)
        if text:
            fleet.change(where, "scale", fill(fleet, fault, text))
        fleet.scale(name, replicas)

    def back(fleet: Fleet) -> None:
        for name, replicas in wanted.items():
            if fleet.desired[name] == replicas:
                fleet.scale(name, before[name])

    return back


def _next_revision(fleet: Fleet, service: str) -> str:
    """Returns the revision after the highest one of its pods: v2 after v1."""
    known = [fleet.rollouts.revision(service), *(pod.revision for pod in fleet.pods.of_service(service) if pod.exists)]
    highest = max((int(name[1:]) for name in known if name[:1] == "v" and name[1:].isdigit()), default=1)
    return f"v{highest + 1}"
