"""Weights of the backends of one route: shift, restore and balance, whatever kind of object holds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from outrider.errors import ActuationError
from remediation.actuators.kubernetes.change import Attempt, Change, refused
from remediation.actuators.kubernetes.ownership import Json, reconciler_of
from remediation.actuators.traffic import pod_labels, selection
from remediation.actuators.traffic.diversions import (
    Diversion,
    Edit,
    Slot,
    arrow,
    diversions_of,
    divert,
    give_up,
    request,
)
from remediation.actuators.traffic.route import TrafficRoute, checked_target, is_missing, pods_of, ratio_of, weights_of
from remediation.actuators.traffic.selection import PodLists, Selection

MOST_WEIGHT = 1_000_000  # the schema of HTTPRoute


@dataclass(frozen=True, slots=True)
class Backend:
    """One destination of a rule. ``selects`` chooses its pods; None for one outside the cluster."""

    rule: str
    name: str
    weight: int
    pointer: str
    selects: Selection | None

    @property
    def slot(self) -> str:
        """Name of its weight in the record."""
        return f"{self.rule}/{self.name}"


@dataclass(frozen=True, slots=True)
class WeightedRoute:
    """A route object with its backends. Each rule splits its own requests."""

    title: str
    path: str
    document: Json
    backends: tuple[Backend, ...]

    def slots(self) -> dict[str, Slot]:
        """The weights by slot."""
        return {backend.slot: Slot(backend.pointer, backend.weight) for backend in self.backends}

    def rules(self) -> dict[str, list[Backend]]:
        """The backends by rule."""
        result: dict[str, list[Backend]] = {}
        for backend in self.backends:
            result.setdefault(backend.rule, []).append(backend)
        return result


RouteReader = Callable[[Attempt, TrafficRoute], WeightedRoute]


def shift(read: RouteReader, attempt: Attempt, route: TrafficRoute) -> Change:
    """Reduces the weight of the target's backend to the requested share of its full weight.

    Other weights stay as they are: the freed share goes to them in proportion. A pod that shares its backend with
    others leaves the Service or pool of that backend instead. Raises ActuationError.
    """
    checked_target(attempt.action)
    weighted, ratio, lists = read(attempt, route), ratio_of(attempt.action), PodLists(attempt.server)
    _check_owner(weighted)
    carrying = _carrying(weighted, route, attempt)
    shared = [backend for backend in carrying if _is_shared(backend, route, attempt, lists)]
    if shared:
        return _leave(attempt, route, shared[0].selects, ratio)
    record = diversions_of(weighted.document)
    target = attempt.action.target.key
    wanted = {backend.slot: _share(backend, record.get(backend.slot), target, ratio) for backend in carrying}
    edit = divert(weighted.document, weighted.slots(), wanted, attempt.action)
    _check_traffic_left(weighted, edit, lists)
    return _change(weighted, edit, attempt, f"{attempt.action.target.name} has that weight already")


def restore(read: RouteReader, attempt: Attempt, route: TrafficRoute) -> Change:
    """Restores the weights and labels that our session changed for the target."""
    try:
        weighted = read(attempt, route)
    except ActuationError as error:
        if not is_missing(error):
            raise
        labels = pod_labels.put_back(attempt)
        return labels if labels.requests else Change(error.message)
    slots = weighted.slots()
    edit = give_up(weighted.document, slots, attempt.action)
    weights = _change(weighted, edit, attempt, "")
    labels = pod_labels.put_back(attempt) if pods_of(attempt.action) else Change("")
    done = [change.detail for change in (weights, labels) if change.requests]
    already = f"{attempt.action.target.name} is in rotation already"
    return Change("; ".join(done) or already, (*weights.requests, *labels.requests))


def balance(read: RouteReader, attempt: Attempt, route: TrafficRoute) -> Change:
    """Sets the weights of a service's replicas or backends.

    Backends that are not named, and backends out of rotation, keep their share. Raises ActuationError.
    """
    weighted, lists = read(attempt, route), PodLists(attempt.server)
    _check_owner(weighted)
    requested, unrouted = _by_backend(weighted, route, weights_of(attempt.action), lists)
    record = diversions_of(weighted.document)
    splitting = [
        backends
        for backends in weighted.rules().values()
        if len(backends) > 1 and set(requested) <= {each.name for each in backends}
    ]
    if not splitting:
        raise refused(f"no rule of {weighted.title} splits requests among {', '.join(requested)}")
    wanted: dict[str, int] = {}
    for backends in splitting:
        wanted |= _balanced(backends, requested, record, attempt)
    edit = divert(weighted.document, weighted.slots(), wanted, attempt.action, supersede=True)
    _check_traffic_left(weighted, edit, lists)
    note = f"; without a backend: {', '.join(unrouted)}" if unrouted else ""
    change = _change(weighted, edit, attempt, f"{weighted.title} has these weights already")
    return Change(change.detail + note, change.requests)


def apportioned(weights: Mapping[str, int], total: int) -> dict[str, int]:
    """Returns whole numbers in proportion to the weights that add up to ``total``; a positive weight gets 1 or more."""
    whole = sum(weights.values())
    exact = {name: weight * total / whole for name, weight in weights.items()}
    result = {name: max(int(value), 1 if value > 0 else 0) for name, value in exact.items()}
    by_rest = sorted(result, key=lambda name: result[name] - exact[name])
    for name in by_rest[: max(total - sum(result.values()), 0)]:
        result[name] += 1
    for _ in range(sum(result.values()) - total):
        result[max(result, key=lambda name: result[name])] -= 1
    return result


def _check_owner(weighted: WeightedRoute) -> None:
    owner = reconciler_of(weighted.document)
    if owner:
        sentence = f"{weighted.title} is managed by {owner}, which would revert it"
        raise refused(sentence, "route by kind service or inference_pool, which changes pods only")


def _carrying(weighted: WeightedRoute, route: TrafficRoute, attempt: Attempt) -> list[Backend]:
    """Returns the backends that send requests to the target. Raises ActuationError for none."""
    names, named = (
        {attempt.action.target.name, *pods_of(attempt.action)},
        route.backends.get(attempt.action.target.name),
    )
    labels = [] if named else pod_labels.labels_of_target(attempt)  # a pod that is out already counts, too
    result = [
        backend
        for backend in weighted.backends
        if (backend.name == named if named else backend.name in names or _selects_any(backend, labels))
    ]
    if not result:
        known = ", ".join(dict.fromkeys(backend.name for backend in weighted.backends)) or "none"
        sentence = f"no backend of {weighted.title} serves {attempt.action.target.name} (backends: {known})"
        raise refused(sentence, "map it under backends in remediation.traffic.routes")
    return result


def _is_shared(backend: Backend, route: TrafficRoute, attempt: Attempt, lists: PodLists) -> bool:
    """True if the backend also serves pods of other replicas."""
    if attempt.action.target.name in route.backends:
        return False
    return bool(_members(backend, lists) - pods_of(attempt.action))


def _selects_any(backend: Backend, labels: Sequence[Mapping[str, Any]]) -> bool:
    return backend.selects is not None and any(backend.selects.selects(each) for each in labels)


def _members(backend: Backend, lists: PodLists) -> frozenset[str]:
    return frozenset(map(selection.name, lists.of(backend.selects))) if backend.selects else frozenset()


def _leave(attempt: Attempt, route: TrafficRoute, left: Selection | None, ratio: float) -> Change:
    """Takes the pod out of a backend that it shares. Raises ActuationError for a partial share."""
    if left is None or ratio > 0:
        raise refused(f"{left} also serves other replicas: its weight is not that of {attempt.action.target.name}")
    return pod_labels.take_out(attempt, route, left.kind, left)


def _share(backend: Backend, diversion: Diversion | None, target: str, ratio: float) -> int:
    """Returns the share of a backend's full weight. Raises ActuationError if whole numbers cannot express it."""
    full = diversion.without(target).value if diversion else backend.weight
    weight = round(full * ratio)
    if 0 < ratio < 1 and weight in (0, full):
        sentence = f"{ratio:g} of the weight {full} of {backend.name} is not a whole number"
        raise refused(sentence, "multiply all weights of the route by 100")
    return weight


def _check_traffic_left(weighted: WeightedRoute, edit: Edit, lists: PodLists) -> None:
    """Raises ActuationError if a changed rule would have no weight above 0, or none with a ready pod."""
    for rule, backends in weighted.rules().items():
        if not any(backend.slot in edit.values for backend in backends):
            continue
        left = [backend for backend in backends if edit.values.get(backend.slot, backend.weight) > 0]
        if not any(backend.selects is None or selection.serving(lists.of(backend.selects)) for backend in left):
            names = ", ".join(backend.name for backend in left)
            lacking = f"only {names} without a ready pod" if left else "no backend"
            raise refused(f"{weighted.title}, rule {rule}: {lacking} would get traffic", "add a replica first")


def _by_backend(
    weighted: WeightedRoute, route: TrafficRoute, weights: Mapping[str, int], lists: PodLists
) -> tuple[dict[str, int], list[str]]:
    """Returns the weights by backend, and the replicas without one. A backend has the sum of its replicas."""
    names = dict.fromkeys(backend.name for backend in weighted.backends)
    result: Counter[str] = Counter()
    unrouted = []
    for replica, weight in weights.items():
        serves = (backend.name for backend in weighted.backends if replica in _members(backend, lists))
        backend = replica if replica in names else route.backends.get(replica) or next(serves, None)
        if backend in names:
            result[str(backend)] += weight
        else:
            unrouted.append(replica)
    if not any(result.values()):
        sentence = f"no backend of {weighted.title} serves {', '.join(unrouted) or 'a replica with a weight'}"
        raise refused(sentence, "map replicas under backends in remediation.traffic.routes")
    return dict(result), unrouted


def _balanced(
    backends: Sequence[Backend], requested: Mapping[str, int], record: Mapping[str, Diversion], attempt: Attempt
) -> dict[str, int]:
    """Returns the weight of each backend of a rule.

    Unnamed backends, and those that another action diverts, keep their share. For that all weights are multiplied by
    one whole number, so that those of the others express the requested ones.
    """
    full = {backend.name: _full(backend, record.get(backend.slot), attempt) for backend in backends}
    diverted = {backend.name for backend in backends if _is_diverted(record.get(backend.slot), attempt)}
    named = {name: weight for name, weight in requested.items() if name not in diverted}
    if not any(named.values()):
        raise refused(f"every backend with a weight is out of rotation: {', '.join(requested)}")
    kept = {name: weight for name, weight in full.items() if name not in named}
    before, resolution = sum(full[name] for name in named), sum(named.values())
    if before == 0 or not any(kept.values()):
        weights = {**kept, **named}
    else:
        factor = max(1, ceil(resolution / before))
        weights = apportioned(named, factor * before) | {name: factor * weight for name, weight in kept.items()}
    if max(weights.values()) > MOST_WEIGHT:
        raise refused("the weights are too large", "divide all weights of the route by a common factor")
    return {backend.slot: weights[backend.name] for backend in backends if weights[backend.name] != backend.weight
            or backend.slot in record}  # fmt: skip


def _full(backend: Backend, diversion: Diversion | None, attempt: Attempt) -> int:
    """Returns the weight without the diversions of other targets."""
    if diversion is None:
        return backend.weight
    own = [layer.value for layer in diversion.layers if layer.target == attempt.action.target.key]
    return int(own[-1] if own else diversion.former)


def _is_diverted(diversion: Diversion | None, attempt: Attempt) -> bool:
    return diversion is not None and any(layer.target != attempt.action.target.key for layer in diversion.layers)


def _change(weighted: WeightedRoute, edit: Edit, attempt: Attempt, unchanged: str) -> Change:
    slots = weighted.slots()
    if not edit.changed:
        return Change("; ".join(edit.notes) or unchanged)
    written = [arrow(slot, slots[slot].value, value) for slot, value in edit.values.items()]
    requests = (request(weighted.document, weighted.path, slots, edit, attempt.action),)
    return Change(f"{weighted.title}: " + ", ".join(_or((*written, *edit.notes))), requests)


def _or(parts: Iterable[Any]) -> list[str]:
    return [str(part) for part in parts] or ["only its record changes"]
