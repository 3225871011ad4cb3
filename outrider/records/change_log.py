"""What was changed, by whom, and how it ended; how replicas started; and what one process leaves for another.

A change happens as an ``Event`` of kind CHANGE, which root cause and detectors read. The ledger keeps it as a
``Change`` with its actor and its end. Changes and their ends are only ever appended.
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

# Changes that put nothing into service by themselves: code that is written, a version that is published.
NOT_IN_SERVICE = frozenset({"push", "release"})


# What a change may be. A code that only looks like one of them would count as none of them ever after.
CHANGE_CODES = (
    "deploy", "rollout", "rollback", "image", "flags", "model-revision", "configmap", "config", "scale", "restart",
    "driver", "cuda", "kernel", "kubelet", "firmware", "network", "sync", "push", "release",
)  # fmt: skip


class ActorKind(StrEnum):
    """Who made a change: a person, a system (controller, autoscaler, pipeline, Outrider itself), or nobody knows."""

    PERSON = "person"
    SYSTEM = "system"
    UNKNOWN = "unknown"


class Ended(StrEnum):
    """How a change stands. OPEN: it is under way, or nobody told its end."""

    OPEN = "open"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ROLLED_BACK = "rolled_back"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, slots=True)
class Change:
    """One change. ``code`` is its sort, one of ``CHANGE_CODES``.

    ``before`` and ``after`` hold no secrets. ``workload`` and ``service`` are names, empty when unknown.
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
    ended: Ended = Ended.OPEN
    ended_at: datetime | None = None
    ended_because: str = ""


@dataclass(frozen=True, slots=True)
class ChangeEnd:
    """How the change of that id ended. ``because`` is one sentence."""

    change: str
    ended: Ended
    at: datetime
    because: str = ""


class StartPhase(StrEnum):
    """What a replica does between its order and its first answer, in this order."""

    NODE_PROVISION = "node_provision"
    SCHEDULE = "schedule"
    INIT = "init"
    PULL = "pull"
    CREATE = "create"
    WEIGHT_LOAD = "weight_load"
    COMPILE = "compile"
    GRAPH_CAPTURE = "graph_capture"
    WARM_UP = "warm_up"
    OTHER = "other"  # of the time between the start of the process and ready, what no line accounts for
    FIRST_REQUEST = "first_request"  # ready, and waiting for work


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """How long one phase took. ``read_from`` names the source: a condition, an event, a log line, a counter."""

    phase: StartPhase
    seconds: float
    read_from: str


@dataclass(frozen=True, slots=True)
class Startup:
    """One start of one pod of a replica, and where the pod ran: from ``began_at`` until ``gone_at``.

    ``ready_at`` None: not ready yet, or it never was. ``served_at``: its first answered request.
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
        """From the order until it could serve; None while it cannot."""
        return None if self.ready_at is None else self.ready_at - self.began_at


def lead_time_quantile(startups: Sequence[Startup], quantile: float = 0.95) -> timedelta | None:
    """The quantile of the lead times (nearest rank: a start that really took so long); None without any."""
    known = sorted(one.lead_time for one in startups if one.lead_time is not None)
    return known[max(0, math.ceil(quantile * len(known)) - 1)] if known else None


class ChangeLog(Protocol):
    """Where changes, start-ups and letters between processes are kept. Several processes may use one."""

    def append_changes(self, changes: Sequence[Change]) -> int:
        """Keep changes; one whose id is known is left alone. Returns how many are new."""
        ...

    def append_ends(self, ends: Sequence[ChangeEnd]) -> None:
        """Keep how changes ended, whether or not the changes are known yet. The newest end of a change counts."""
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
        """Write start-ups, each in place of what its id said before."""
        ...

    def startups(
        self, *, since: datetime | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Startup, ...]:
        """Start-ups that began at or after an instant, newest first."""
        ...

    def placed_at(self, at: datetime) -> tuple[Startup, ...]:
        """The start-ups whose pods were there at an instant: which replica ran on which node then."""
        ...

    def post(self, events: Sequence[Event], now: datetime) -> int:
        """Leave events for the engine; one whose dedup_key waits already is left alone. Returns how many are new."""
        ...

    def posted(self, after: int, since: datetime) -> tuple[tuple[int, Event], ...]:
        """Events left since an instant with a number above ``after``, oldest first, each with its number."""
        ...

    def put_document(self, name: str, paper: Mapping[str, Any], at: datetime) -> None:
        """Leave something for others to show, in place of what that name held: plain JSON values."""
        ...

    def document(self, name: str) -> tuple[datetime, dict[str, Any]] | None:
        """What was left under a name and when, None when nothing was."""
        ...

    def close(self) -> None:
        """Release every connection."""
        ...


# How the fields of a change are spelled among the attributes of its event.
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
    """The change as the event that detectors read."""
    told = {name: getattr(change, own) for own, name in _NAMES.items()}
    told["actor_kind"] = "" if change.actor_kind is ActorKind.UNKNOWN else change.actor_kind.value
    attributes = {name: value for name, value in told.items() if value}
    return Event(
        change.id, EventKind.CHANGE, change.entity, change.at, change.source, change.code, attributes, change.id
    )


def change_of(event: Event) -> Change | None:
    """The change that an event tells; None for an event of another kind."""
    if event.kind is not EventKind.CHANGE:
        return None
    said = event.attributes
    told = {own: said.get(name, "") for own, name in _NAMES.items()}
    kind = said.get("actor_kind", "")
    if said.get("by") == "outrider" or event.source == "outrider":
        told["actor"], kind = "outrider", ActorKind.SYSTEM.value
    return Change(
        id=event.dedup_key or event.id,
        code=event.code,
        entity=event.entity,
        at=event.at,
        source=event.source,
        actor=told["actor"],
        actor_kind=ActorKind(kind) if kind in set(ActorKind) else ActorKind.UNKNOWN,
        before=told["before"],
        after=told["after"],
        workload=told["workload"],
        service=event.entity.name if event.entity.kind is EntityKind.SERVICE else told["service"],
        url=told["url"],
        text=told["text"],
    )
