"""Changes of nodes: driver, CUDA, kernel and kubelet versions, and conditions that agents report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from collectors.events.redact import redacted
from collectors.events.unresolved_event import FIRST_LOOK, MOST_TEXT, UnresolvedEvent
from collectors.kubernetes.accelerators import cuda_of, driver_of
from collectors.kubernetes.actors import actor_of
from collectors.kubernetes.api import Json, items, mapping, parse_time, text, version_of
from collectors.kubernetes.objects import ObjectChange, key_of, labels_of, uid_of
from outrider.model import EntityKind, EntityRef, EventKind

SOURCE = "kubernetes"
_KUBELETS = frozenset({"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"})


def node_changes(changed: Sequence[ObjectChange], cluster: str, at: datetime) -> list[UnresolvedEvent]:
    """Version changes of nodes, and new problem conditions. A version that appears or disappears is not a change."""
    events = [event for change in changed for event in _new_conditions(change, cluster, at)]
    for change in changed:
        if not change.before or not change.after:
            continue
        before, after = dict(_versions(change.before)), dict(_versions(change.after))
        for code, old in before.items():
            new = after.get(code, "")
            if not old or not new or old == new:
                continue
            name = key_of(change.after)[1]
            attributes = {
                "from": old,
                "to": new,
                **actor_of(change.after, ("f:metadata/f:labels",), change.before).attributes,
            }
            key = f"{SOURCE}/{cluster}/{code}/{uid_of(change.after)}/{version_of(change.after)}"
            entity = EntityRef(cluster, EntityKind.NODE, None, name)
            events.append(UnresolvedEvent(EventKind.CHANGE, code, at, SOURCE, key, entity, attributes))
    return events


def _new_conditions(change: ObjectChange, cluster: str, at: datetime) -> Iterator[UnresolvedEvent]:
    """Conditions of node-problem-detector, NVSentinel and similar agents that became true; not the kubelet's own.

    Of a node that is seen for the first time only recent ones: older ones were reported before.
    """
    before = _conditions(change.before)
    for kind, condition in _conditions(change.after).items():
        since = parse_time(condition.get("lastTransitionTime")) or at
        message = text(condition.get("message"))
        if text(condition.get("status")) != "True" or kind in _KUBELETS:
            continue
        known = before.get(kind, {})
        if text(known.get("status")) == "True" and text(known.get("message")) == message:
            continue
        if not change.before and since < at - FIRST_LOOK:
            continue
        name, version = key_of(change.after)[1], text(condition.get("lastTransitionTime")) + message
        attributes = {
            "text": redacted(message[:MOST_TEXT]),
            "type": "Warning",
            "condition": text(condition.get("reason")) or kind,
        }
        yield UnresolvedEvent(
            kind=EventKind.KUBERNETES,
            code=kind,
            at=min(max(since, at - FIRST_LOOK), at),
            source=SOURCE,
            key=f"{SOURCE}/{cluster}/condition/{uid_of(change.after)}/{kind}/{version}"[:300],
            entity=EntityRef(cluster, EntityKind.NODE, None, name),
            attributes=attributes,
        )


def _conditions(node: Json) -> dict[str, Json]:
    listed = items(mapping(node.get("status")).get("conditions"))
    return {text(condition.get("type")): condition for condition in listed}


def _versions(node: Json) -> Iterator[tuple[str, str]]:
    labels, about = labels_of(node), mapping(mapping(node.get("status")).get("nodeInfo"))
    yield "driver", driver_of(labels)
    yield "cuda", cuda_of(labels)
    yield "kernel", text(about.get("kernelVersion"))
    yield "kubelet", text(about.get("kubeletVersion"))
