"""Shifts, restores and balances traffic by the technique that is configured for each service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from outrider.clock import Clock
from outrider.model import Action, ActionKind
from outrider.wire.http_auth import Access
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.kubernetes.change import Attempt, Change, ChangeReader
from remediation.actuators.traffic import (
    destination_rule,
    http_route,
    ingress_canary,
    pod_labels,
    virtual_service,
    weighted_route,
)
from remediation.actuators.traffic.route import RouteKind, TrafficRoute, service_of

Technique = Callable[[Attempt, TrafficRoute], Change]
ACTIONS = (ActionKind.SHIFT_TRAFFIC, ActionKind.RESTORE_TRAFFIC, ActionKind.BALANCE_TRAFFIC)


def _weighted(read: weighted_route.RouteReader) -> tuple[Technique, Technique, Technique]:
    steps = (weighted_route.shift, weighted_route.restore, weighted_route.balance)
    shift, restore, balance = (partial(step, read) for step in steps)
    return shift, restore, balance


_LABELS = (pod_labels.shift, pod_labels.restore, pod_labels.balance)
TECHNIQUES: Mapping[RouteKind, tuple[Technique, Technique, Technique]] = {
    "service": _LABELS,
    "inference_pool": _LABELS,
    "http_route": _weighted(http_route.read),
    "virtual_service": _weighted(virtual_service.read),
    "destination_rule": (destination_rule.shift, destination_rule.restore, destination_rule.balance),
    "ingress_canary": (ingress_canary.shift, ingress_canary.restore, ingress_canary.balance),
}
"""Shift, restore and balance of each technique."""
DEFAULT = TrafficRoute()


def changes(routes: Mapping[str, TrafficRoute]) -> dict[ActionKind, ChangeReader]:
    """Returns the reader of each action kind; ``routes`` by service. A service without a route loses pods by label."""

    def reader(position: int) -> ChangeReader:
        def change(attempt: Attempt) -> Change:
            route = route_of(routes, attempt.action)
            return TECHNIQUES[route.kind][position](attempt, route)

        return change

    return {kind: reader(position) for position, kind in enumerate(ACTIONS)}


def route_of(routes: Mapping[str, TrafficRoute], action: Action) -> TrafficRoute:
    """Returns the route of the action's service: by its namespace and name, else by its name, else the default."""
    service = service_of(action)
    return routes.get(f"{action.target.namespace}/{service}") or routes.get(service) or DEFAULT


def traffic_actuator(
    url: str | None, access: Access, routes: Mapping[str, TrafficRoute], *, clock: Clock | None = None
) -> KubernetesActuator:
    """Returns the actuator of traffic actions on one API server."""
    return KubernetesActuator(url, access, changes=changes(routes), name="traffic", clock=clock)
