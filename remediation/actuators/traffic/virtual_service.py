"""Weights of an Istio VirtualService: the route destinations of its HTTP rules, to hosts and their subsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from remediation.actuators.kubernetes.change import Attempt, refused
from remediation.actuators.kubernetes.ownership import Json
from remediation.actuators.traffic import destination_rule, selection
from remediation.actuators.traffic.diversions import pointer
from remediation.actuators.traffic.route import TrafficRoute, missing
from remediation.actuators.traffic.selection import SERVICE, Selection
from remediation.actuators.traffic.weighted_route import Backend, WeightedRoute

_PATH = "/apis/networking.istio.io/v1/namespaces/{namespace}/virtualservices/{name}"


def read(attempt: Attempt, route: TrafficRoute) -> WeightedRoute:
    """Returns the route with its destinations. Raises ActuationError if it does not exist, or names one twice."""
    namespace, name = route.namespace_of(attempt.action), route.name_of(attempt.action)
    path, title = _PATH.format(namespace=namespace, name=name), f"VirtualService {name}"
    document = attempt.server.get(path, missing_is_empty=True)
    if not document:
        raise missing(title, namespace)
    services = selection.all_of(attempt.server, SERVICE, namespace)
    subsets = _subsets(destination_rule.all_of(attempt.server, namespace), namespace)
    return WeightedRoute(title, path, document, tuple(_backends(document, namespace, title, services, subsets)))


def _backends(
    document: Json,
    namespace: str,
    title: str,
    services: Sequence[Selection],
    subsets: Mapping[tuple[str, str], Mapping[str, str]],
) -> Iterator[Backend]:
    by_host = {service.name: service for service in services}
    for number, rule in enumerate(document.get("spec", {}).get("http") or []):
        rule_name, destinations, seen = str(rule.get("name") or number), rule.get("route") or [], set()
        for position, entry in enumerate(destinations):
            destination = entry.get("destination") or {}
            host, subset = str(destination.get("host") or ""), str(destination.get("subset") or "")
            name = subset or host
            if name in seen:
                raise refused(f"{title}, rule {rule_name}: {name} appears twice", "route by distinct subsets")
            seen.add(name)
            # without a weight the only destination gets everything, one of several gets nothing
            weight = int(entry.get("weight", 100 if len(destinations) == 1 else 0))
            selects = _selection(by_host.get(destination_rule.service_of(host, namespace)), subset, subsets)
            at = pointer("spec", "http", number, "route", position, "weight")
            yield Backend(rule_name, name, weight, at, selects)


def _selection(
    service: Selection | None, subset: str, subsets: Mapping[tuple[str, str], Mapping[str, str]]
) -> Selection | None:
    """The pods of a destination: those of the Service that have the labels of the subset."""
    if service is None or not subset:
        return service
    labels = {**service.labels, **subsets.get((service.name, subset), {})}
    return Selection(service.kind, service.namespace, service.name, labels)


def _subsets(rules: Sequence[Json], namespace: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Labels by service and subset."""
    return {
        (destination_rule.service_of(str(rule["spec"].get("host", "")), namespace), str(subset["name"])): dict(
            subset.get("labels") or {}
        )
        for rule in rules
        for subset in rule.get("spec", {}).get("subsets") or []
    }
