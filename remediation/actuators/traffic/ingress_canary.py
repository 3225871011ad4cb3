"""Canary weight of ingress-nginx: the share of an Ingress's requests that goes to its canary Ingress.

Both sides share one number, so only one of them can be out of rotation. Rules by header or cookie come first in
ingress-nginx and are not changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outrider.errors import ActuationError
from remediation.actuators.kubernetes.change import Attempt, Change, refused
from remediation.actuators.kubernetes.ownership import Json, metadata, reconciler_of
from remediation.actuators.traffic import pod_labels, selection
from remediation.actuators.traffic.diversions import Slot, arrow, diversions_of, divert, give_up, pointer, request
from remediation.actuators.traffic.route import (
    TrafficRoute,
    checked_target,
    is_missing,
    missing,
    pods_of,
    ratio_of,
    weights_of,
)
from remediation.actuators.traffic.selection import SERVICE, PodLists, Selection

_PREFIX = "nginx.ingress.kubernetes.io/"
CANARY, WEIGHT, TOTAL = f"{_PREFIX}canary", f"{_PREFIX}canary-weight", f"{_PREFIX}canary-weight-total"
_PATH = "/apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses"


@dataclass(frozen=True, slots=True)
class _Split:
    """The canary Ingress, and the Services on its two sides. ``weight`` of ``total`` goes to the canary's."""

    title: str
    path: str
    document: Json
    canary: tuple[Selection, ...]
    main: tuple[Selection, ...]
    weight: int
    total: int

    def slots(self) -> dict[str, Slot]:
        notes = metadata(self.document).get("annotations") or {}
        return {"canary-weight": Slot(pointer("metadata", "annotations", WEIGHT), notes.get(WEIGHT))}


def shift(attempt: Attempt, route: TrafficRoute) -> Change:
    """Gives the target's side the requested share of its weight; the other side gets the rest.

    A pod that shares its side with other replicas leaves its Service instead. Raises ActuationError.
    """
    checked_target(attempt.action)
    split, ratio, lists = _read(attempt, route), ratio_of(attempt.action), PodLists(attempt.server)
    side, services = _side(split, route, attempt, lists)
    shared = [service for service in services if _members((service,), lists) - pods_of(attempt.action)]
    if shared and attempt.action.target.name not in route.backends:
        if ratio > 0:
            raise refused(f"{shared[0]} also serves other replicas: it has no weight of one replica")
        return pod_labels.take_out(attempt, route, SERVICE, shared[0])
    record = diversions_of(split.document).get("canary-weight")
    if record and any(layer.target != attempt.action.target.key for layer in record.layers):
        raise refused(f"{split.title}: its weight is changed for another replica already", "add a replica first")
    full = int(record.former or 0) if record else split.weight
    weight = round(full * ratio) if side == "canary" else split.total - round((split.total - full) * ratio)
    return _set(split, weight, attempt, lists, already=f"{attempt.action.target.name} has that weight already")


def restore(attempt: Attempt, route: TrafficRoute) -> Change:
    """Restores the weight and the labels that our session changed for the target."""
    try:
        split = _read(attempt, route)
    except ActuationError as error:
        if not is_missing(error):
            raise
        labels = pod_labels.put_back(attempt)
        return labels if labels.requests else Change(error.message)
    slots = split.slots()
    edit = give_up(split.document, slots, attempt.action)
    labels = pod_labels.put_back(attempt) if pods_of(attempt.action) else Change("")
    details = [labels.detail] if labels.requests else []
    requests = labels.requests
    if edit.changed:
        written = [arrow(slot, slots[slot].value, value) for slot, value in edit.values.items()]
        details.append(f"{split.title}: {', '.join((*written, *edit.notes))}")
        requests = (request(split.document, split.path, slots, edit, attempt.action), *requests)
    return Change("; ".join(details) or f"{attempt.action.target.name} is in rotation already", requests)


def balance(attempt: Attempt, route: TrafficRoute) -> Change:
    """Splits all requests between both sides in proportion to the weights of their replicas. Raises ActuationError."""
    split, lists = _read(attempt, route), PodLists(attempt.server)
    sums, unrouted = {"canary": 0, "main": 0}, []
    for replica, weight in weights_of(attempt.action).items():
        sides = [side for side in sums if _is_on(replica, getattr(split, side), route, lists)]
        if sides:
            sums[sides[0]] += weight
        else:
            unrouted.append(replica)
    if not any(sums.values()):
        raise refused(f"{split.title} serves none of {', '.join(unrouted)}", "map replicas under backends")
    record = diversions_of(split.document).get("canary-weight")
    if record and any(layer.target != attempt.action.target.key for layer in record.layers):
        raise refused(f"{split.title}: a replica is out of rotation; its weight stays until that is restored")
    weight = round(split.total * sums["canary"] / sum(sums.values()))
    change = _set(split, weight, attempt, lists, already=f"{split.title} has these weights already")
    note = f"; without a backend: {', '.join(unrouted)}" if unrouted else ""
    return Change(change.detail + note, change.requests)


def _set(split: _Split, weight: int, attempt: Attempt, lists: PodLists, *, already: str) -> Change:
    owner = reconciler_of(split.document)
    if owner:
        raise refused(f"{split.title} is managed by {owner}, which would revert it", f"set the weight in {owner}")
    slots = split.slots()
    edit = divert(split.document, slots, {"canary-weight": str(weight)}, attempt.action, supersede=True)
    if not edit.changed:
        return Change("; ".join(edit.notes) or already)
    for side, share in ((split.canary, weight), (split.main, split.total - weight)):
        if share == split.total and not any(selection.serving(lists.of(service)) for service in side):
            names = ", ".join(map(str, side)) or "a side without a Service"
            raise refused(f"{split.title}: {names} would get all traffic and has no ready pod", "add a replica first")
    sentence = f"{split.title}: {arrow('canary-weight', slots['canary-weight'].value, weight)} of {split.total}"
    return Change(sentence, (request(split.document, split.path, slots, edit, attempt.action),))


def _read(attempt: Attempt, route: TrafficRoute) -> _Split:
    """Raises ActuationError if the Ingress does not exist, or is not a canary with a valid weight."""
    namespace, name = route.namespace_of(attempt.action), route.name_of(attempt.action)
    listed = _PATH.format(namespace=namespace)
    ingresses = attempt.server.get(listed).get("items", [])
    document = next((each for each in ingresses if metadata(each)["name"] == name), None)
    title = f"Ingress {name}"
    if document is None:
        raise missing(title, namespace)
    if not _is_canary(document):
        raise refused(f"{title} is not a canary", f'name the Ingress with {CANARY}: "true"')
    paths = set(_hosts_and_paths(document))
    mains = [each for each in ingresses if not _is_canary(each) and paths & set(_hosts_and_paths(each))]
    notes = metadata(document).get("annotations") or {}
    return _Split(
        title,
        f"{listed}/{name}",
        document,
        tuple(_services(attempt, [document], namespace)),
        tuple(_services(attempt, mains, namespace)),
        _number(notes.get(WEIGHT, "0"), title),
        _number(notes.get(TOTAL, "100"), title),
    )


def _is_canary(ingress: Json) -> bool:
    return (metadata(ingress).get("annotations") or {}).get(CANARY) == "true"


def _hosts_and_paths(ingress: Json) -> Iterator[tuple[str, str]]:
    for rule in ingress.get("spec", {}).get("rules") or []:
        for path in (rule.get("http") or {}).get("paths") or []:
            yield str(rule.get("host") or ""), str(path.get("path") or "")


def _services(attempt: Attempt, ingresses: list[dict[str, Any]], namespace: str) -> Iterator[Selection]:
    names = {
        str(path["backend"]["service"]["name"])
        for ingress in ingresses
        for rule in ingress.get("spec", {}).get("rules") or []
        for path in (rule.get("http") or {}).get("paths") or []
        if path.get("backend", {}).get("service")
    }
    for name in sorted(names):
        yield selection.find(attempt.server, SERVICE, namespace, name)


def _number(text: str, title: str) -> int:
    if not str(text).isdecimal():
        raise refused(f"{title}: {text!r} is not a weight", "give a whole number from 0")
    return int(text)


def _side(split: _Split, route: TrafficRoute, attempt: Attempt, lists: PodLists) -> tuple[str, tuple[Selection, ...]]:
    """Returns the side that serves the target. Raises ActuationError if none does."""
    name = attempt.action.target.name
    labels = pod_labels.labels_of_target(attempt)  # a pod that is out already counts, too
    for side in ("canary", "main"):
        services: tuple[Selection, ...] = getattr(split, side)
        if _is_on(name, services, route, lists) or any(
            service.selects(each) for service in services for each in labels
        ):
            return side, services
    raise refused(f"{split.title} does not route to {name}", "map it under backends in remediation.traffic.routes")


def _is_on(replica: str, services: tuple[Selection, ...], route: TrafficRoute, lists: PodLists) -> bool:
    names = {service.name for service in services}
    if replica in route.backends:
        return route.backends[replica] in names
    return replica in names or replica in _members(services, lists)


def _members(services: tuple[Selection, ...], lists: PodLists) -> frozenset[str]:
    return frozenset(selection.name(pod) for service in services for pod in lists.of(service))
