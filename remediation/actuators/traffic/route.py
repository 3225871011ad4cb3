"""Configured routing technique of a service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from outrider.errors import ActuationError
from outrider.model import Action, EntityKind
from remediation.actuators.kubernetes.change import refused

RouteKind = Literal["service", "inference_pool", "http_route", "virtual_service", "destination_rule", "ingress_canary"]
KINDS: tuple[RouteKind, ...] = get_args(RouteKind)


@dataclass(frozen=True, slots=True)
class OutlierEjection:
    """Outlier detection that a mesh applies during an incident. Durations are in seconds."""

    consecutive_5xx_errors: int = 5
    interval_seconds: float = 10.0
    base_ejection_seconds: float = 30.0
    max_ejection_percent: int = 30

    def fields(self) -> dict[str, Any]:
        """Returns the fields of ``outlierDetection`` in a DestinationRule."""
        return {
            "consecutive5xxErrors": self.consecutive_5xx_errors,
            "interval": f"{self.interval_seconds:g}s",
            "baseEjectionTime": f"{self.base_ejection_seconds:g}s",
            "maxEjectionPercent": self.max_ejection_percent,
        }


@dataclass(frozen=True, slots=True)
class TrafficRoute:
    """The object that routes requests of a service.

    ``name`` and ``namespace`` of the object are empty for the defaults. ``label`` is the selector label that a pod
    loses; ``replace`` permits that its ReplicaSet starts a replacement. ``backends`` maps a replica to its backend.
    """

    kind: RouteKind = "service"
    name: str = ""
    namespace: str = ""
    label: str = ""
    replace: bool = False
    backends: Mapping[str, str] = field(default_factory=dict)
    ejection: OutlierEjection = OutlierEjection()

    def namespace_of(self, action: Action) -> str:
        """Namespace of the object: the configured one, else that of the action's target."""
        return self.namespace or action.target.namespace or "default"

    def name_of(self, action: Action) -> str:
        """Name of the object: the configured one, else that of the service."""
        return self.name or service_of(action)


def service_of(action: Action) -> str:
    """Returns the name of the action's service, empty if it is not known."""
    if action.target.kind is EntityKind.SERVICE:
        return action.target.name
    return str(action.params.get("service") or "")


def pods_of(action: Action) -> frozenset[str]:
    """Returns the names of the target's pods: by default the one of the target's name. Empty for a service."""
    if action.target.kind is EntityKind.SERVICE:
        return frozenset()
    return frozenset(action.params.get("pods") or (action.target.name,))


def checked_target(action: Action) -> None:
    """Raises ActuationError unless the target is a replica or a pod."""
    if action.target.kind not in (EntityKind.REPLICA, EntityKind.POD):
        raise refused(
            f"traffic of a {action.target.kind.value} cannot be shifted", "name its replicas, or use destination_rule"
        )


def ratio_of(action: Action) -> float:
    """Returns the requested share of the full weight, 0 to 1. Raises ActuationError for another value."""
    value = action.params.get("weight", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise refused(f"weight {value!r} is not between 0 and 1", "0 removes the replica, 1 is its full share")
    return float(value)


def weights_of(action: Action) -> dict[str, int]:
    """Returns the requested weights by replica or backend. Raises ActuationError for missing or invalid weights."""
    weights = action.params.get("weights")
    if not isinstance(weights, Mapping) or not weights:
        raise refused("balance_traffic needs weights", "give a weight for each replica or backend")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 0:
            raise refused(f"{name}: weight {weight!r} is not a whole number from 0", "see outrider capacity balance")
    if not any(weights.values()):
        raise refused("all weights are 0: no backend would get traffic", "give at least one weight above 0")
    return {str(name): int(weight) for name, weight in weights.items()}


def missing(title: str, namespace: str) -> ActuationError:
    """Returns the error of a routing object that does not exist."""
    sentence = f"{title} does not exist in {namespace}"
    return ActuationError(sentence, retryable=False, hint="name it in remediation.traffic.routes", status=404)


def is_missing(error: ActuationError) -> bool:
    """True if the routing object does not exist: there is nothing to restore."""
    return error.status == 404


def without_weights(kind: str) -> ActuationError:
    """Returns the error of a technique that cannot split traffic by weight."""
    return refused(f"a {kind} has no weights", "configure http_route, virtual_service or ingress_canary")
