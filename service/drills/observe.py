"""What a platform said, read from its decisions; and what each injected fault did, read from the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from outrider.clock import from_unix
from outrider.model import Action, ActionStatus, Alert, AlertReason, AlertState, EntityRef, Incident, Message
from outrider.ports import StateReader
from outrider.topology import Topology
from simulator.faults.base import Truth
from simulator.recovery import Recovery
from simulator.score import Acted, Injected, Opened

ALL = 1_000_000


@dataclass(slots=True)
class Watched:
    """One injected fault under observation. ``path`` is taken when it begins."""

    recovery: Recovery
    path: frozenset[EntityRef] = frozenset()

    @property
    def truth(self) -> Truth:
        """What was really broken."""
        return self.recovery.injection.truth

    def look(self, topology: Topology, now: datetime) -> None:
        """Note what it does now."""
        if now >= self.truth.start and not self.path:
            self.path = path_of(self.truth, topology)
        self.recovery.look()

    def injected(self) -> Injected:
        """The fault as the score wants it."""
        truth, at = self.truth, self.recovery.at
        path = self.path or frozenset({truth.entity, *truth.touches})
        recovered = None if at is None else from_unix(at)
        return Injected(truth.fault, truth.entity, truth.start, truth.end, path, recovered)


def path_of(truth: Truth, topology: Topology) -> frozenset[EntityRef]:
    """The faulted entity with everything it rests on and everything that rests on it."""
    own = {truth.entity, *truth.touches}
    return frozenset(own) | topology.affected_by(truth.entity) | topology.causes_of(truth.entity)


@dataclass(slots=True)
class Watch:
    """Every fault of a scenario."""

    faults: list[Watched] = field(default_factory=list)

    def look(self, topology: Topology, now: datetime) -> None:
        """Once a cycle."""
        for one in self.faults:
            one.look(topology, now)

    def injected(self) -> tuple[Injected, ...]:
        """What was put in, negative states apart."""
        return tuple(one.injected() for one in self.faults if not one.truth.negative)

    def touched(self) -> frozenset[EntityRef]:
        """Everything that the faults touch, negative states apart."""
        return frozenset(entity for one in self.faults if not one.truth.negative for entity in one.truth.touches)


def fired(alerts: Sequence[Alert]) -> list[Alert]:
    """Alerts that fired, whatever became of them."""
    return [
        alert
        for alert in alerts
        if alert.state is not AlertState.PENDING and alert.reason is not AlertReason.NEVER_FIRED
    ]


def opened(state: StateReader, since: datetime | None = None) -> tuple[Opened, ...]:
    """Every incident as seen from outside."""
    entity_of = {alert.fingerprint: alert.entity for alert in state.alerts(limit=ALL)}
    messages = state.messages(limit=ALL)
    told, paged = _first(messages), _first([message for message in messages if message.is_page])
    return tuple(
        _opened(incident, entity_of, paged.get(incident.id), told.get(incident.id))
        for incident in state.incidents(since=since, limit=ALL)
    )


def acted(state: StateReader, since: datetime | None = None) -> tuple[Acted, ...]:
    """Every action that was really done."""
    return tuple(
        Acted(action.because, action.kind.value, action.target, action.ended_at)
        for action in state.actions(since=since, limit=ALL)
        if _was_done(action) and action.ended_at is not None
    )


def _was_done(action: Action) -> bool:
    return action.status is ActionStatus.DONE and not action.dry_run


def _opened(
    incident: Incident, entity_of: dict[str, EntityRef], paged_at: datetime | None, notified_at: datetime | None
) -> Opened:
    causes = tuple((one.entity, one.fault) for one in incident.hypotheses)
    folded = {entity_of[fingerprint] for fingerprint in incident.alerts if fingerprint in entity_of}
    return Opened(
        id=incident.id,
        opened_at=incident.opened_at,
        resolved_at=incident.resolved_at,
        priority=incident.priority,
        hypotheses=causes,
        entities=frozenset(folded | {entity for entity, _ in causes[:1]}),
        paged_at=paged_at,
        notified_at=notified_at,
        confidences=tuple(one.confidence for one in incident.hypotheses),
    )


def _first(messages: Sequence[Message]) -> dict[str, datetime]:
    """When the first of these messages about each incident was written."""
    first: dict[str, datetime] = {}
    for message in messages:
        if message.incident is not None:
            known = first.get(message.incident)
            first[message.incident] = message.created_at if known is None else min(known, message.created_at)
    return first
