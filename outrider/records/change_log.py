"""Changes with their author and end, start-ups of replicas, and documents passed between processes.

A change also occurs as an ``Event`` of kind CHANGE, which root-cause analysis and detectors read. The change log keeps
it as a ``Change`` with its actor and its end. Changes and their ends are append-only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from outrider.model import EntityKind, EntityRef, Event, EventKind
from outrider.wire.cursors import Position

# Changes without effect on a running service: pushed code, a published version.
NOT_IN_SERVICE = frozenset({"push", "release"})


# All change codes. A misspelled code would never match any rule.
CHANGE_CODES = (
    "deploy", "rollout", "rollback", "image", "flags", "model-revision", "configmap", "config", "scale", "restart",
    "driver", "cuda", "kernel", "kubelet", "firmware", "network", "sync", "push", "release",
)  # fmt: skip


class ActorKind(StrEnum):
    """Author of a change: a person, a system (controller, autoscaler, pipeline, Outrider itself), or unknown."""

    PERSON = "person"
    SYSTEM = "system"
    UNKNOWN = "unknown"


class ChangeStatus(StrEnum):
    """Status of a change. OPEN: in progress, or its end was not reported."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``code`` is its kind, one of ``CHANGE_CODES``.

    ``before`` and ``after`` hold no secrets. ``workload`` and ``service`` are names, empty if unknown.
    ``ended_at`` is None while it is OPEN.
    """

    id: str
    code: str
    entity: EntityRef
    at: datetime
    source: str
    actor: str = ""
    actor_kind: ActorKind = ActorKind.UNKNOWN
    before: str = ""
    after: str = ""
    workload: str = ""
    service: str = ""
    url: str = ""
    text: str = ""
    ended: ChangeStatus = ChangeStatus.OPEN
    ended_at: datetime | None = None
    ended_because: str = ""


@dataclass(frozen=True, slots=True)
class ChangeEnd:
    """End of the change with that id. ``because`` is one sentence."""

    change: str
    ended: ChangeStatus
    at: datetime
    because: str = ""


class StartPhase(StrEnum):
    """Phases of a replica between its order and its first response, in this order."""

    NODE_PROVISION = "node_provision"
    SCHEDULE = "schedule"
    INIT = "init"
    PULL = "pull"
    CREATE = "create"
    WEIGHT_LOAD = "weight_load"
    COMPILE = "compile"
    GRAPH_CAPTURE = "graph_capture"
    WARM_UP = "warm_up"
    OTHER = "other"  # time between process start and ready that no log line accounts for
    FIRST_REQUEST = "first_request"  # ready, and waiting for requests


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Duration of one phase. ``read_from`` is the source: a condition, an event, a log line, a counter."""

    phase: StartPhase
    seconds: float
    read_from: str


@dataclass(frozen=True, slots=True)
class Startup:
    """One start of one pod of a replica on its node, from ``began_at`` until ``gone_at``.

    ``ready_at`` None: not ready yet, or never. ``served_at``: its first answered request.
    """

    id: str
    pod: EntityRef
    began_at: datetime
    replica: str = ""
    workload: str = ""
    service: str = ""
    node: str = ""
    gpu_type: str = ""
    gpus: float = 0.0
    image: str = ""
    phases: tuple[PhaseTime, ...] = ()
    ready_at: datetime | None = None
    served_at: datetime | None = None
    gone_at: datetime | None = None

    @property
    def lead_time(self) -> timedelta | None:
        """Time from the order until it could serve; None before."""
        return None if self.ready_at is None else self.ready_at - self.began_at


def lead_time_quantile(startups: Sequence[Startup], quantile: float = 0.95) -> timedelta | None:
    """Quantile of the lead times (nearest rank: an actual start); None without any."""
    known = sorted(startup.lead_time for startup in startups if startup.lead_time is not None)
    return known[max(0, math.ceil(quantile * len(known)) - 1)] if known else None


class ChangeLog(Protocol):
    """Storage of changes, start-ups and data passed between processes. Several processes may use one."""

    def append_changes(self, changes: Sequence[Change]) -> int:
        """Adds changes; a change with a known id stays unchanged. Returns the number of new ones."""
        ...

    def append_ends(self, ends: Sequence[ChangeEnd]) -> None:
        """Adds ends of changes, known or not. The newest end of a change counts."""
        ...

    def changes(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Change, ...]:
        """Changes in [since, until) with their ends, newest first."""
        ...

    def save_startups(self, startups: Sequence[Startup]) -> None:
        """Writes start-ups, replacing those with the same id."""
        ...

    def startups(
        self, *, since: datetime | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Startup, ...]:
        """Start-ups that began at or after a time, newest first."""
        ...

    def placed_at(self, at: datetime) -> tuple[Startup, ...]:
        """The start-ups whose pods existed at a time, which map replicas to nodes."""
        ...

    def post(self, events: Sequence[Event], now: datetime) -> int:
        """Queues events for the engine; one with a queued dedup_key stays unchanged. Returns the number of new ones."""
        ...

    def posted(self, after: int, since: datetime) -> tuple[tuple[int, Event], ...]:
        """Queued events since a time with a number above ``after``, oldest first, each with its number."""
        ...

    def put_document(self, name: str, document: Mapping[str, Any], at: datetime) -> None:
        """Stores a document of plain JSON values for other processes, replacing the previous one."""
        ...

    def document(self, name: str) -> tuple[datetime, dict[str, Any]] | None:
        """A stored document with its time; None if there is none."""
        ...

    def close(self) -> None:
        """Releases every connection."""
        ...


# Names of a change's fields among the attributes of its event.
_NAMES = {
    "before": "from",
    "after": "to",
    "actor": "actor",
    "workload": "workload",
    "service": "service",
    "url": "url",
    "text": "text",
}


def event_of(change: Change) -> Event:
    """The change as an event for detectors."""
    values = {name: getattr(change, field) for field, name in _NAMES.items()}
    values["actor_kind"] = "" if change.actor_kind is ActorKind.UNKNOWN else change.actor_kind.value
    attributes = {name: value for name, value in values.items() if value}
    return Event(
        change.id, EventKind.CHANGE, change.entity, change.at, change.source, change.code, attributes, change.id
    )


def change_of(event: Event) -> Change | None:
    """The change of an event; None for an event of another kind."""
    if event.kind is not EventKind.CHANGE:
        return None
    fields = event.attributes
    values = {field: fields.get(name, "") for field, name in _NAMES.items()}
    kind = fields.get("actor_kind", "")
    if fields.get("by") == "outrider" or event.source == "outrider":
        values["actor"], kind = "outrider", ActorKind.SYSTEM.value
    return Change(
        id=event.dedup_key or event.id,
        code=event.code,
        entity=event.entity,
        at=event.at,
        source=event.source,
        actor=values["actor"],
        actor_kind=ActorKind(kind) if kind in set(ActorKind) else ActorKind.UNKNOWN,
        before=values["before"],
        after=values["after"],
        workload=values["workload"],
        service=event.entity.name if event.entity.kind is EntityKind.SERVICE else values["service"],
        url=values["url"],
        text=values["text"],
    )
