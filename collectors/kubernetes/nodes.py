"""Changes of nodes that people look for after a fault: driver, CUDA, kernel and kubelet. Pure."""

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
    """What became different about nodes that stayed. A version that appears or goes is no change of it."""
    found = []
    for one in changed:
        if not one.before or not one.after:
            continue
        before, after = dict(_versions(one.before)), dict(_versions(one.after))
        for code, old in before.items():
            new = after.get(code, "")
            if not old or not new or old == new:
                continue
            name = key_of(one.after)[1]
            told = {"from": old, "to": new, **actor_of(one.after, ("f:metadata/f:labels",), one.before).attributes}
            key = f"{SOURCE}/{cluster}/{code}/{uid_of(one.after)}/{version_of(one.after)}"
            entity = EntityRef(cluster, EntityKind.NODE, None, name)
            found.append(UnresolvedEvent(EventKind.CHANGE, code, at, SOURCE, key, entity, told))
    return found


def _versions(node: Json) -> Iterator[tuple[str, str]]:
    labels, about = labels_of(node), mapping(mapping(node.get("status")).get("nodeInfo"))
    yield "driver", driver_of(labels)
    yield "cuda", cuda_of(labels)
    yield "kernel", text(about.get("kernelVersion"))
    yield "kubelet", text(about.get("kubeletVersion"))
