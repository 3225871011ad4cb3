"""Changes of nodes: driver, CUDA, kernel and kubelet versions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from collectors.events.unresolved_event import UnresolvedEvent
from collectors.kubernetes.accelerators import cuda_of, driver_of
from collectors.kubernetes.actors import actor_of
from collectors.kubernetes.api import Json, mapping, text, version_of
from collectors.kubernetes.objects import ObjectChange, key_of, labels_of, uid_of
from outrider.model import EntityKind, EntityRef, EventKind

SOURCE = "kubernetes"


def node_changes(changed: Sequence[ObjectChange], cluster: str, at: datetime) -> list[UnresolvedEvent]:
    """Version changes of nodes. A version that appears or disappears is not a change."""
    events = []
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


def _versions(node: Json) -> Iterator[tuple[str, str]]:
    labels, about = labels_of(node), mapping(mapping(node.get("status")).get("nodeInfo"))
    yield "driver", driver_of(labels)
    yield "cuda", cuda_of(labels)
    yield "kernel", text(about.get("kernelVersion"))
    yield "kubelet", text(about.get("kubeletVersion"))
