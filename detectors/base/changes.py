"""When something new was last put into service, per replica: what a regression must follow."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np

from outrider.model import EventKind, Floats, Window
from outrider.records.change_log import NOT_IN_SERVICE
from outrider.topology import Topology

CHANGE_HOLD = timedelta(minutes=30)  # a new revision shows its fault once it has taken its share of the load
# Changes that put nothing new into service; any other code may.
NOTHING_NEW = NOT_IN_SERVICE | {
    "rollback",
    "restart",
    "restart_pod",
    "traffic",
    "entry",
    "calendar",
    "power-limit",
    "template",
}
_SAME_ENGINE = NOTHING_NEW | {"scale"}  # they leave code and flags of the engine as they were


CHANGE_TEXT = "incidents.evidence.change"


class ChangeKind(StrEnum):
    """What a change may have done, by its code."""

    ROLLOUT = "rollout"
    FLAGS = "flags"
    MODEL = "model"
    CONFIG = "config"
    DRIVER = "driver"  # whatever a node brings along: driver, CUDA, kernel, kubelet, firmware
    NETWORK = "network"
    SCALE = "scale"


_SORT_OF = {
    "flags": ChangeKind.FLAGS,
    "model-revision": ChangeKind.MODEL,
    "config": ChangeKind.CONFIG,
    "configmap": ChangeKind.CONFIG,
    **dict.fromkeys(("driver", "cuda", "kernel", "kubelet", "firmware"), ChangeKind.DRIVER),
    "network": ChangeKind.NETWORK,
    "scale": ChangeKind.SCALE,
}


def sort_of(code: str) -> ChangeKind | None:
    """What a change of that code may have done; None when it puts nothing new into service."""
    return None if code in NOTHING_NEW else _SORT_OF.get(code, ChangeKind.ROLLOUT)


def changed_at(
    window: Window, before: Floats, topology: Topology, now: datetime, *, until_rollback: bool = True
) -> Floats:
    """Unix seconds of the newest change of the engines of each entity, -inf where none is known.

    ``before`` is what was known, shape (entities,). A change is told of a service, a workload or a pod, and is
    about every replica that rests on it or that it rests on. A rollback ends what a change began, but for the
    processes that it has not replaced yet: without ``until_rollback`` it changes nothing.
    """
    found = before.copy()
    place = {entity: row for row, entity in enumerate(window.entities)}
    for event in sorted(window.events, key=lambda item: item.at):
        if event.kind is not EventKind.CHANGE or event.at > now:
            continue
        back = until_rollback and event.code == "rollback"
        if event.code in _SAME_ENGINE and not back:
            continue
        reached = topology.causes_of(event.entity) | topology.affected_by(event.entity)
        rows = [place[entity] for entity in reached if entity in place]
        at = event.at.timestamp()
        held = found[rows]
        found[rows] = np.where(held < at, -np.inf if back else at, held)
    return found
