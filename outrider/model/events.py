"""Events: occurrences that a float matrix cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from outrider.model.entities import EntityRef


class EventKind(StrEnum):
    """Kinds of events."""

    XID = "xid"
    KUBERNETES = "kubernetes"
    CHANGE = "change"
    LOG = "log"
    ACTION = "action"


@dataclass(frozen=True, slots=True)
class Event:
    """An occurrence at a time. Events with the same ``dedup_key`` are one."""

    id: str
    kind: EventKind
    entity: EntityRef
    at: datetime
    source: str
    code: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    dedup_key: str = ""
