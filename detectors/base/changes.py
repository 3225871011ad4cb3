"""Changes that put something new into service: their kinds, and the newest one per replica."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import numpy as np

from outrider.model import EventKind, Floats, Window
from outrider.records.change_log import NOT_IN_SERVICE
from outrider.topology import Topology

CHANGE_HOLD = timedelta(minutes=30)  # a new revision shows its fault once it serves its share of the load
# Change codes that put nothing new into service. Any other code may.
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
_SAME_ENGINE = NOTHING_NEW | {"scale"}  # code and flags of the engine stay the same


CHANGE_TEXT = "incidents.evidence.change"


class ChangeKind(StrEnum):
    """Possible effect of a change, by its code."""

    ROLLOUT = "rollout"
    FLAGS = "flags"
    MODEL = "model"
    CONFIG = "config"
    DRIVER = "driver"  # node software: driver, CUDA, kernel, kubelet, firmware
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
    """Returns the kind of a change code, or None if the change puts nothing new into service."""
    return None if code in NOTHING_NEW else _SORT_OF.get(code, ChangeKind.ROLLOUT)


def changed_at(
    window: Window, before: Floats, topology: Topology, now: datetime, *, until_rollback: bool = True
) -> Floats:
    """Unix seconds of the newest engine change of each entity; -inf if none is known.

    ``before`` (entities,) holds the times known so far. A change of a service, workload or pod concerns every replica
    above or below it in the topology. A rollback ends the effect of a change, except in processes that it has not
    replaced yet. Without ``until_rollback`` a rollback is ignored.
    """
    result = before.copy()
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
        held = result[rows]
        result[rows] = np.where(held < at, -np.inf if back else at, held)
    return result
