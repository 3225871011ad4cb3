"""Permissions that traffic actions need, by the configured routing techniques."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.model import ActionKind
from remediation.actuators.kubernetes.permissions import Permission
from remediation.actuators.traffic.actuator import ACTIONS, DEFAULT
from remediation.actuators.traffic.route import RouteKind, TrafficRoute

_GATEWAY, _ISTIO = "gateway.networking.k8s.io", "networking.istio.io"
_INGRESS, _INFERENCE = "networking.k8s.io", "inference.networking.k8s.io"
_LABELS = (
    *(Permission(verb, "pods") for verb in ("get", "list", "patch")),
    *(Permission(verb, "services") for verb in ("get", "list")),
    *(Permission("get", resource, "apps") for resource in ("replicasets", "statefulsets", "daemonsets")),
)
_POOLS = tuple(Permission(verb, "inferencepools", _INFERENCE) for verb in ("get", "list"))
_RULES = tuple(Permission(verb, "destinationrules", _ISTIO) for verb in ("get", "list", "patch"))
NEEDED: Mapping[RouteKind, tuple[Permission, ...]] = {
    "service": _LABELS,
    "inference_pool": (*_LABELS, *_POOLS),
    "http_route": (*_LABELS, *_POOLS, *(Permission(verb, "httproutes", _GATEWAY) for verb in ("get", "patch"))),
    "virtual_service": (
        *_LABELS,
        *(Permission(verb, "virtualservices", _ISTIO) for verb in ("get", "patch")),
        Permission("list", "destinationrules", _ISTIO),
    ),
    "destination_rule": _RULES,
    "ingress_canary": (*_LABELS, *(Permission(verb, "ingresses", _INGRESS) for verb in ("list", "patch"))),
}
_BALANCING: tuple[RouteKind, ...] = ("http_route", "virtual_service", "ingress_canary")


def needed(routes: Mapping[str, TrafficRoute]) -> dict[ActionKind, tuple[Permission, ...]]:
    """Returns the permissions of each traffic action; services without a route lose pods by label."""
    kinds = {DEFAULT.kind, *(route.kind for route in routes.values())}
    balanced = {kind for kind in kinds if kind in _BALANCING}
    return {action: _union(balanced if action is ActionKind.BALANCE_TRAFFIC else kinds) for action in ACTIONS}


def _union(kinds: set[RouteKind]) -> tuple[Permission, ...]:
    return tuple(dict.fromkeys(permission for kind in sorted(kinds) for permission in NEEDED[kind]))
