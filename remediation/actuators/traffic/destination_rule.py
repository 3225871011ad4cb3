"""Outlier ejection of an Istio DestinationRule: the mesh itself takes out endpoints that return 5xx.

An ejected endpoint returns after ``baseEjectionTime`` and is ejected again, for longer, if it still fails.
``maxEjectionPercent`` bounds the share that is out at once. One setting serves all targets of a service.
"""

from __future__ import annotations

from typing import Any

from outrider.errors import ActuationError
from outrider.model import EntityKind
from remediation.actuators.api_server import ApiServer
from remediation.actuators.kubernetes.change import Attempt, Change, refused
from remediation.actuators.kubernetes.ownership import Json, metadata, reconciler_of
from remediation.actuators.traffic.diversions import Slot, divert, give_up, pointer, request
from remediation.actuators.traffic.route import (
    TrafficRoute,
    checked_target,
    is_missing,
    missing,
    ratio_of,
    without_weights,
)
from remediation.actuators.traffic.route import (
    service_of as service_name,
)

_PATH = "/apis/networking.istio.io/v1/namespaces/{namespace}/destinationrules"
_SLOT = "outlierDetection"


def shift(attempt: Attempt, route: TrafficRoute) -> Change:
    """Sets the configured outlier detection; other fields of an existing one stay. Raises ActuationError."""
    action = attempt.action
    if action.target.kind is not EntityKind.SERVICE:
        checked_target(action)
    if ratio_of(action) > 0:
        raise without_weights("DestinationRule")
    path, document = _read(attempt, route)
    title = f"DestinationRule {metadata(document)['name']}"
    owner = reconciler_of(document)
    if owner:
        raise refused(f"{title} is managed by {owner}, which would revert it", f"set outlierDetection in {owner}")
    slots = _slots(document)
    wanted = {_SLOT: {**(slots[_SLOT].value or {}), **route.ejection.fields()}}
    edit = divert(document, slots, wanted, action)
    if not edit.changed:
        return Change("; ".join(edit.notes) or f"{title} ejects outliers already")
    fields = ", ".join(f"{key} {value}" for key, value in route.ejection.fields().items())
    return Change(
        f"{title} ejects outliers: {fields}{_exceptions(document)}", (request(document, path, slots, edit, action),)
    )


def restore(attempt: Attempt, route: TrafficRoute) -> Change:
    """Restores the former outlier detection once no session needs ours."""
    try:
        path, document = _read(attempt, route)
    except ActuationError as error:
        if is_missing(error):
            return Change(error.message)
        raise
    title, slots = f"DestinationRule {metadata(document)['name']}", _slots(document)
    edit = give_up(document, slots, attempt.action)
    if not edit.changed:
        return Change(f"{title} has its own outlier detection already")
    restored = f"{title} has its own outlier detection again" if edit.values else f"{title} stays for another session"
    detail = "; ".join(edit.notes) or restored
    return Change(detail, (request(document, path, slots, edit, attempt.action),))


def balance(attempt: Attempt, route: TrafficRoute) -> Change:
    """Refuses: outlier detection has no weights."""
    del attempt, route
    raise without_weights("DestinationRule")


def all_of(server: ApiServer, namespace: str) -> list[dict[str, Any]]:
    """Returns every DestinationRule of a namespace; none without Istio."""
    listed = server.get(_PATH.format(namespace=namespace), missing_is_empty=True)
    return list(listed.get("items", []))


def service_of(host: str, namespace: str) -> str:
    """Returns the name of the Service in this namespace that a host means, empty for another host."""
    name, _, rest = host.partition(".")
    return name if rest in ("", namespace, f"{namespace}.svc", f"{namespace}.svc.cluster.local") else ""


def _read(attempt: Attempt, route: TrafficRoute) -> tuple[str, dict[str, Any]]:
    """Returns path and object: the configured one, else the only one for the service. Raises ActuationError."""
    namespace = route.namespace_of(attempt.action)
    listed = _PATH.format(namespace=namespace)
    if route.name:
        document = attempt.server.get(f"{listed}/{route.name}", missing_is_empty=True)
        if not document:
            raise missing(f"DestinationRule {route.name}", namespace)
        return f"{listed}/{route.name}", document
    service = service_name(attempt.action)
    rules = [
        rule
        for rule in all_of(attempt.server, namespace)
        if service and service_of(str(rule.get("spec", {}).get("host", "")), namespace) == service
    ]
    if not rules:
        raise missing(f"DestinationRule for {service or 'the service'}", namespace)
    if len(rules) > 1:
        names = ", ".join(str(metadata(rule)["name"]) for rule in rules)
        raise refused(
            f"several DestinationRules are for {service}: {names}",
            "name it in remediation.traffic.routes",
        )
    return f"{listed}/{metadata(rules[0])['name']}", rules[0]


def _slots(document: Json) -> dict[str, Slot]:
    policy = document.get("spec", {}).get("trafficPolicy") or {}
    return {_SLOT: Slot(pointer("spec", "trafficPolicy", _SLOT), policy.get(_SLOT))}


def _exceptions(document: Json) -> str:
    """A note on subsets that override the setting."""
    subsets = document.get("spec", {}).get("subsets") or []
    own = [str(subset["name"]) for subset in subsets if _SLOT in (subset.get("trafficPolicy") or {})]
    return f"; subsets with their own setting: {', '.join(own)}" if own else ""
