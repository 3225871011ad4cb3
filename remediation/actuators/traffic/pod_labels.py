"""Takes a pod out of a Service or an InferencePool: it loses one label that the selector needs.

A label outside the selector of the pod's controller is taken: the pod stays a member of its ReplicaSet. If there is
none, a ReplicaSet would release the pod and start a replacement, which needs other GPUs; so the route has to permit it
(``replace``). A StatefulSet could not start a replacement of the same name, and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.model import ActionRequest
from remediation.actuators.api_server import ApiServer
from remediation.actuators.kubernetes.change import Attempt, Change, refused
from remediation.actuators.kubernetes.evictions import path_of
from remediation.actuators.kubernetes.ownership import OWNER, Json, controller_of, labels_of, metadata
from remediation.actuators.traffic import selection
from remediation.actuators.traffic.diversions import Slot, diversions_of, divert, give_up, pointer, request
from remediation.actuators.traffic.route import (
    TrafficRoute,
    checked_target,
    pods_of,
    ratio_of,
    service_of,
    without_weights,
)
from remediation.actuators.traffic.selection import POOL, SERVICE, PodLists, Selection

_SELECTORS = {"ReplicaSet": "replicasets", "StatefulSet": "statefulsets", "DaemonSet": "daemonsets"}
_IDENTITY = "app.kubernetes.io/"  # Outrider and monitoring find pods by these labels
_OURS = "outrider.io/"
_SLOT = "label "


def shift(attempt: Attempt, route: TrafficRoute) -> Change:
    """Takes the target's pods out of the route's Service or InferencePool. Raises ActuationError."""
    checked_target(attempt.action)
    kind = POOL if route.kind == "inference_pool" else SERVICE
    if ratio_of(attempt.action) > 0:
        raise without_weights(kind)
    namespace = route.namespace_of(attempt.action)
    chosen = selection.read(attempt.server, kind, namespace, route.name) if route.name else None
    return take_out(attempt, route, kind, chosen)


def restore(attempt: Attempt, route: TrafficRoute) -> Change:
    """Gives the target's pods their labels back."""
    del route
    return put_back(attempt)


def balance(attempt: Attempt, route: TrafficRoute) -> Change:
    """Refuses: a selector has no weights."""
    del attempt
    raise without_weights(POOL if route.kind == "inference_pool" else SERVICE)


def take_out(attempt: Attempt, route: TrafficRoute, kind: str, chosen: Selection | None) -> Change:
    """Takes the target's pods out of ``chosen``, by default the only Service or pool that selects them."""
    details, requests = [], []
    lists = PodLists(attempt.server)
    for name in sorted(pods_of(attempt.action)):
        path = f"/api/v1/namespaces/{attempt.action.target.namespace or 'default'}/pods/{name}"
        pod = attempt.server.get(path, missing_is_empty=True)
        if not pod:
            details.append(f"pod {name} no longer exists")
            continue
        detail, request_ = _taken_out(attempt, route, _Member(pod, kind, chosen, lists))
        details.append(detail)
        requests += request_
    return Change("; ".join(details), tuple(requests))


def full_labels(pod: Json) -> dict[str, Any]:
    """Returns the labels of a pod as they were before it was taken out."""
    former = {slot.removeprefix(_SLOT): diversion.former for slot, diversion in diversions_of(pod).items()}
    return {**labels_of(pod), **former}


def labels_of_target(attempt: Attempt) -> list[dict[str, Any]]:
    """Returns the full labels of each pod of the target that exists."""
    path = f"/api/v1/namespaces/{attempt.action.target.namespace or 'default'}/pods"
    pods = (attempt.server.get(f"{path}/{name}", missing_is_empty=True) for name in sorted(pods_of(attempt.action)))
    return [full_labels(pod) for pod in pods if pod]


def put_back(attempt: Attempt) -> Change:
    """Restores the labels of every pod that our session took out for the target."""
    action, details, requests = attempt.action, [], []
    path = f"/api/v1/namespaces/{action.target.namespace or 'default'}/pods"
    marked = attempt.server.get(path, query=(("labelSelector", OWNER),)).get("items", [])
    for pod in marked:
        slots = _slots(pod, diversions_of(pod))
        edit = give_up(pod, slots, action)
        if edit.changed:
            requests.append(request(pod, path_of(pod), slots, edit, action))
            labels = ", ".join(f"{slot} {value}" for slot, value in edit.values.items())
            restored = (f"gets {labels} back",) if labels else ("stays out for another session",) * (not edit.notes)
            details.append(f"pod {selection.name(pod)} " + "; ".join((*restored, *edit.notes)))
    return Change("; ".join(details) or f"{action.target.name} is in rotation already", tuple(requests))


@dataclass(frozen=True, slots=True)
class _Member:
    """A pod, and the Service or pool that it leaves; ``chosen`` is None for the only one that selects it."""

    pod: Json
    kind: str
    chosen: Selection | None
    lists: PodLists


def _taken_out(attempt: Attempt, route: TrafficRoute, member: _Member) -> tuple[str, list[ActionRequest]]:
    pod, record, labels = member.pod, diversions_of(member.pod), full_labels(member.pod)
    name, namespace = selection.name(pod), str(metadata(pod).get("namespace"))
    known = [
        each
        for kind in dict.fromkeys((SERVICE, member.kind))
        for each in selection.all_of(attempt.server, kind, namespace)
    ]
    left = member.chosen
    if left is None:
        own = [each for each in known if each.kind == member.kind]
        left = selection.choose(member.kind, own, labels, service_of(attempt.action), name)
    if not left.selects(labels):
        return f"pod {name} is not in {left}", []
    others = [each for each in known if each != left and each.selects(labels)]
    taken = next((slot.removeprefix(_SLOT) for slot in record if slot.removeprefix(_SLOT) in left.labels), None)
    key, note = (taken, "") if taken else _label(attempt.server, route, pod, left, others)
    slots = _slots(pod, [*record, f"{_SLOT}{key}"])
    edit = divert(pod, slots, {f"{_SLOT}{key}": None}, attempt.action)
    if not edit.changed:
        return "; ".join((f"pod {name} has left {left} already", *edit.notes)), []
    if edit.values:
        _check_others_serve(attempt, member, left)
    also = [str(each) for each in others if key in each.labels]
    loses = f" and {', '.join(also)}" if also else ""
    sentence = f"pod {name} leaves {left}{loses}: it loses the label {key}{note}"
    return sentence, [request(pod, path_of(pod), slots, edit, attempt.action)]


def _label(
    server: ApiServer, route: TrafficRoute, pod: Json, left: Selection, others: Sequence[Selection]
) -> tuple[str, str]:
    """Returns the label to take, and a note on a replacement. Raises ActuationError if none may be taken.

    Prefers a label that the controller, other Services and discovery do not need.
    """
    if route.label and route.label not in left.labels:
        raise refused(f"{left} does not select by the label {route.label}", "correct remediation.traffic.routes")
    controller = controller_of(pod)
    members = _controller_labels(server, pod, controller)
    candidates = [route.label] if route.label else sorted(left.labels)
    key = min(
        candidates,
        key=lambda label: (
            members is None or label in members,
            sum(label in other.labels for other in others),
            label.startswith(_IDENTITY),
            not label.startswith(_OURS),
        ),
    )
    if controller is None or (members is not None and key not in members):
        return key, ""
    owner = f"{controller.get('kind')} {controller.get('name')}"
    if controller.get("kind") != "ReplicaSet":
        raise refused(f"{owner} needs every label that {left} selects by", _hint(left))
    if not route.replace:
        raise refused(f"{owner} would replace pod {selection.name(pod)}: {left} has no label of its own", _hint(left))
    return key, f"; {owner} releases it and starts a replacement"


def _hint(left: Selection) -> str:
    return f'add a label such as outrider.io/serving: "true" to the pod template and to the selector of {left}'


def _controller_labels(server: ApiServer, pod: Json, controller: Mapping[str, Any] | None) -> frozenset[str] | None:
    """Returns the labels by which the pod's controller claims it, None if they cannot be known."""
    if controller is None:
        return frozenset()
    plural = _SELECTORS.get(str(controller.get("kind")))
    if plural is None or controller.get("apiVersion") != "apps/v1":
        return None
    path = f"/apis/apps/v1/namespaces/{metadata(pod).get('namespace')}/{plural}/{controller.get('name')}"
    selector = server.get(path, missing_is_empty=True).get("spec", {}).get("selector") or {}
    expressions = (each.get("key") for each in selector.get("matchExpressions") or ())
    return frozenset((*(selector.get("matchLabels") or {}), *map(str, expressions)))


def _check_others_serve(attempt: Attempt, member: _Member, left: Selection) -> None:
    """Raises ActuationError if no other ready pod would be left."""
    targets = pods_of(attempt.action)
    if not any(name not in targets for name in selection.serving(member.lists.of(left))):
        raise refused(f"{left} would have no ready pod left", "add a replica first")


def _slots(pod: Json, names: Sequence[str] | Mapping[str, Any]) -> dict[str, Slot]:
    labels = metadata(pod).get("labels") or {}
    return {
        name: Slot(pointer("metadata", "labels", key), labels.get(key))
        for name in names
        for key in (name.removeprefix(_SLOT),)
    }
