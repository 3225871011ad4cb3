"""What a platform said, read from its decisions; and what each injected fault did, read from the fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from detectors.platform.scrape_targets import stands_for
from detectors.rca.incident_lifecycle import ABSORBED_INTO
from outrider.clock import from_unix
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    EntityKind,
    EntityRef,
    Incident,
    Message,
)
from outrider.ports import StateReader
from outrider.topology import Topology
from simulator.faults.base import Truth
from simulator.scoring.grouping import FiredAlert
from simulator.scoring.recovery import Recovery
from simulator.scoring.score import GRACE, InjectedFault, ScoredAction, ScoredIncident

ALL = 1_000_000


@dataclass(slots=True)
class Watched:
    """One injected fault under observation.

    ``path`` is taken when it begins; ``beside``, the other parts of the services on it, grows with them until shortly
    after its end.
    """

    recovery: Recovery
    path: frozenset[EntityRef] = frozenset()
    beside: frozenset[EntityRef] = frozenset()
    seen: Topology | None = None  # of which ``beside`` was read

    @property
    def truth(self) -> Truth:
        """What was really broken."""
        return self.recovery.injection.truth

    def look(self, topology: Topology, now: datetime) -> None:
        """Note what it does now."""
        if now >= self.truth.start and not self.path:
            self.path = path_of(self.truth, topology)
        if self.truth.start <= now <= self.truth.end + GRACE and not topology.shares_graph(self.seen):
            self.beside |= _parts_of_services(self.path, topology)
            self.seen = topology
        self.recovery.update()

    def injected(self) -> InjectedFault:
        """The fault as the score wants it."""
        truth, at = self.truth, self.recovery.at
        path = self.path or frozenset({truth.entity, *truth.touches})
        recovered = None if at is None else from_unix(at)
        rings = (frozenset({truth.entity, *truth.touches}), path, self.beside)
        return InjectedFault(truth.fault, truth.entity, truth.start, truth.end, path, recovered, rings)


def path_of(truth: Truth, topology: Topology) -> frozenset[EntityRef]:
    """The faulted entity with everything it rests on and everything that rests on it."""
    own = {truth.entity, *truth.touches}
    return frozenset(own) | topology.affected_by(truth.entity) | topology.causes_of(truth.entity)


_PARTS = (EntityKind.REPLICA, EntityKind.POD, EntityKind.CONTAINER)


def _parts_of_services(path: frozenset[EntityRef], topology: Topology) -> frozenset[EntityRef]:
    """What serves the services of a path: load that a fault takes from one part of them comes to the others."""
    services = (entity for entity in path if entity.kind is EntityKind.SERVICE)
    return frozenset(part for service in services for kind in _PARTS for part in topology.below(service, kind))


@dataclass(slots=True)
class Watch:
    """Every fault of a scenario. ``posts`` says of each scrape target what it was last the target of."""

    faults: list[Watched] = field(default_factory=list)
    posts: dict[EntityRef, EntityRef] = field(default_factory=dict)
    seen: Topology | None = None  # of which ``posts`` were read

    def look(self, topology: Topology, now: datetime) -> None:
        """Once a cycle."""
        for one in self.faults:
            one.look(topology, now)
        if not topology.shares_graph(self.seen):
            self.posts |= {target: stands_for(target, topology) for target in topology.of_kind(EntityKind.WORKLOAD)}
            self.seen = topology

    def fired(self, alerts: Sequence[Alert], incidents: Sequence[Incident]) -> tuple[FiredAlert, ...]:
        """Alerts that fired, each with the incident that it was folded into."""
        holding: dict[str, list[Incident]] = {}
        for incident in sorted(incidents, key=_ended):
            for fingerprint in incident.alerts:
                holding.setdefault(fingerprint, []).append(incident)
        heirs = {incident.id: heir for incident in incidents if (heir := _heir(incident)) is not None}
        return tuple(
            FiredAlert(
                self.posts.get(alert.entity, alert.entity),
                alert.starts_at,
                _last(_holder(alert, holding.get(alert.fingerprint, ())), heirs),
            )
            for alert in fired(alerts)
        )

    def injected(self) -> tuple[InjectedFault, ...]:
        """What was put in, negative states apart."""
        return tuple(one.injected() for one in self.faults if not one.truth.negative)

    def touched(self) -> frozenset[EntityRef]:
        """Everything that the faults touch, negative states apart."""
        return frozenset(entity for one in self.faults if not one.truth.negative for entity in one.truth.touches)


def _ended(incident: Incident) -> tuple[bool, datetime, str]:
    """Orders incidents by their ends, those that are open last."""
    return (incident.resolved_at is None, incident.resolved_at or incident.opened_at, incident.id)


def _holder(alert: Alert, holding: Sequence[Incident]) -> str | None:
    """The first incident that held this spell. Only an incident that ends hands on what outlives it."""
    for incident in holding:
        begun = alert.ends_at is None or incident.opened_at < alert.ends_at
        if begun and (incident.resolved_at is None or incident.resolved_at > alert.starts_at):
            return incident.id
    return alert.incident


def _heir(incident: Incident) -> str | None:
    """The incident that took this one over, None for one that was not."""
    told = [entry.arguments for entry in incident.timeline if entry.what == ABSORBED_INTO]
    return told[-1]["incident"] if told else None


def _last(incident: str | None, heirs: Mapping[str, str]) -> str | None:
    """The incident at the end of a chain of those that took each other over."""
    while incident is not None and incident in heirs:
        incident = heirs[incident]
    return incident


def fired(alerts: Sequence[Alert]) -> list[Alert]:
    """Alerts that fired, whatever became of them."""
    return [
        alert
        for alert in alerts
        if alert.state is not AlertState.PENDING and alert.reason is not AlertReason.NEVER_FIRED
    ]


def opened(state: StateReader, since: datetime | None = None) -> tuple[ScoredIncident, ...]:
    """Every incident as seen from outside."""
    entity_of = {alert.fingerprint: alert.entity for alert in state.alerts(limit=ALL)}
    messages = state.messages(limit=ALL)
    told = _first(messages, also=True)
    pages = [message for message in messages if message.is_page]
    paged, called = _first(pages), _first(pages, also=True)
    return tuple(
        replace(
            _opened(incident, entity_of),
            paged_at=paged.get(incident.id),
            called_at=called.get(incident.id),
            notified_at=told.get(incident.id),
        )
        for incident in state.incidents(since=since, limit=ALL)
    )


def acted(state: StateReader, since: datetime | None = None) -> tuple[ScoredAction, ...]:
    """Every action that was really done."""
    return tuple(
        ScoredAction(action.because, action.kind.value, action.target, action.ended_at)
        for action in state.actions(since=since, limit=ALL)
        if _was_done(action) and action.ended_at is not None
    )


def _was_done(action: Action) -> bool:
    return action.status is ActionStatus.DONE and not action.dry_run


def _opened(incident: Incident, entity_of: dict[str, EntityRef]) -> ScoredIncident:
    causes = tuple((one.entity, one.fault) for one in incident.hypotheses)
    folded = {entity_of[fingerprint] for fingerprint in incident.alerts if fingerprint in entity_of}
    return ScoredIncident(
        id=incident.id,
        opened_at=incident.opened_at,
        resolved_at=incident.resolved_at,
        priority=incident.priority,
        hypotheses=causes,
        entities=frozenset(folded | {entity for entity, _ in causes[:1]}),
        confidences=tuple(one.confidence for one in incident.hypotheses),
    )


def _first(messages: Sequence[Message], *, also: bool = False) -> dict[str, datetime]:
    """When the first of these messages about each incident was written.

    ``also`` counts a message for every incident that it tells of, else for the one it goes out under: it is one page.
    """
    first: dict[str, datetime] = {}
    for message in messages:
        for name in (message.incident, *(message.also if also else ())):
            if name is not None:
                first[name] = min(first.get(name, message.created_at), message.created_at)
    return first
