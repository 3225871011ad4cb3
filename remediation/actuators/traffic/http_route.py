"""Weights of a Gateway API HTTPRoute: ``backendRefs`` of its rules, to Services and InferencePools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from remediation.actuators.kubernetes.change import Attempt, refused
from remediation.actuators.kubernetes.ownership import Json
from remediation.actuators.traffic import selection
from remediation.actuators.traffic.diversions import pointer
from remediation.actuators.traffic.route import TrafficRoute, missing
from remediation.actuators.traffic.selection import POOL, SERVICE, Selection
from remediation.actuators.traffic.weighted_route import Backend, WeightedRoute

_PATH = "/apis/gateway.networking.k8s.io/v1/namespaces/{namespace}/httproutes/{name}"
_GROUPS = {("", SERVICE): SERVICE, ("inference.networking.k8s.io", POOL): POOL}


def read(attempt: Attempt, route: TrafficRoute) -> WeightedRoute:
    """Returns the route with its backends. Raises ActuationError if it does not exist, or names a backend twice."""
    namespace, name = route.namespace_of(attempt.action), route.name_of(attempt.action)
    path, title = _PATH.format(namespace=namespace, name=name), f"HTTPRoute {name}"
    document = attempt.server.get(path, missing_is_empty=True)
    if not document:
        raise missing(title, namespace)
    return WeightedRoute(title, path, document, tuple(_backends(attempt, document, namespace, title)))


def _backends(attempt: Attempt, document: Json, namespace: str, title: str) -> Iterator[Backend]:
    known: dict[tuple[str, str, str], Selection | None] = {}
    for number, rule in enumerate(document.get("spec", {}).get("rules") or []):
        rule_name = str(rule.get("name") or number)
        seen: set[str] = set()
        for position, reference in enumerate(rule.get("backendRefs") or []):
            name = str(reference["name"])
            if name in seen:
                raise refused(f"{title}, rule {rule_name}: {name} appears twice", "route by distinct backend names")
            seen.add(name)
            key = (_kind(reference), str(reference.get("namespace") or namespace), name)
            if key not in known:
                known[key] = selection.find(attempt.server, *key) if key[0] else None
            at = pointer("spec", "rules", number, "backendRefs", position, "weight")
            yield Backend(rule_name, name, int(reference.get("weight", 1)), at, known[key])


def _kind(reference: Mapping[str, Any]) -> str:
    """Kind of a backend with a selector, else an empty string."""
    return _GROUPS.get((str(reference.get("group") or ""), str(reference.get("kind") or SERVICE)), "")
