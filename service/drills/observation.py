"""Observation of a drill: incidents, alerts and actions of the platform, and the effect of each injected fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from detectors.platform.scrape_targets import stands_for
from detectors.rca.incident_lifecycle import ABSORBED_INTO
from outrider.clock import from_unix
from outrider.model import (
    Action,
    ActionKind,
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
from remediation.decide.history import gives_back
from remediation.playbooks.files import packaged
from remediation.procedures.files import ladder
from simulator.faults.base import Truth
from simulator.scoring.recovery import Recovery
from simulator.scoring.run import FiredAlert, InjectedFault, ScoredAction, ScoredIncident
from simulator.scoring.score import GRACE

ALL = 1_000_000


@dataclass(slots=True)
class ObservedFault:
    """One injected fault under observation.

    ``path`` is read when the fault starts. ``service_parts`` are the parts of the services on the path; it grows until
    shortly after the end.
    """

    recovery: Recovery
    path: frozenset[EntityRef] = frozenset()
    service_parts: frozenset[EntityRef] = frozenset()
    topology: Topology | None = None  # source of ``service_parts``

    @property
    def truth(self) -> Truth:
        """Ground truth."""
        return self.recovery.injection.truth

    def observe(self, topology: Topology, now: datetime) -> None:
        """Updates path, service parts and recovery."""
        if now >= self.truth.start and not self.path:
            self.path = path_of(self.truth, topology)
        if self.truth.start <= now <= self.truth.end + GRACE and not topology.shares_graph(self.topology):
            self.service_parts |= _parts_of_services(self.path, topology)
            self.topology = topology
        self.recovery.update()

    def injected(self) -> InjectedFault:
        """Returns the fault for scoring."""
        truth = self.truth
        path = self.path or frozenset({truth.entity, *truth.touches})
        recovered = _instant(self.recovery.at)
        rings = (frozenset({truth.entity, *truth.touches}), path, self.service_parts)
        return InjectedFault(
            truth.fault,
            truth.entity,
            truth.start,
            truth.end,
            path,
            recovered,
            rings,
            repaired_by=repairing_kinds(truth.fault),
            pod_created_at=_instant(self.recovery.pod_created_at),
            newest_pod_at=_instant(self.recovery.newest_pod_at),
            harmed=self.recovery.harmed,
        )


def repairing_kinds(fault: str) -> frozenset[str]:
    """Returns the action kinds of a fault's playbook, and of the degrade ladder if it is for this fault."""
    playbook = packaged().get(fault)
    shed = {ActionKind.DEGRADE_SERVICE} if fault in ladder().faults else set[ActionKind]()
    return frozenset(playbook.kinds if playbook else ()) | shed


def _instant(seconds: float | None) -> datetime | None:
    return None if seconds is None else from_unix(seconds)


def path_of(truth: Truth, topology: Topology) -> frozenset[EntityRef]:
    """Returns the faulty entities with their dependencies and dependents."""
    faulty = {truth.entity, *truth.touches}
    return frozenset(faulty) | topology.affected_by(truth.entity) | topology.causes_of(truth.entity)


_PARTS = (EntityKind.REPLICA, EntityKind.POD, EntityKind.CONTAINER)


def _parts_of_services(path: frozenset[EntityRef], topology: Topology) -> frozenset[EntityRef]:
    """Returns replicas, pods and containers of the services on a path: load of a failed part moves to the others."""
    services = (entity for entity in path if entity.kind is EntityKind.SERVICE)
    return frozenset(part for service in services for kind in _PARTS for part in topology.below(service, kind))


@dataclass(slots=True)
class Observer:
    """Observes every fault of a scenario. ``monitored`` maps each scrape target to its entity."""

    faults: list[ObservedFault] = field(default_factory=list)
    monitored: dict[EntityRef, EntityRef] = field(default_factory=dict)
    topology: Topology | None = None  # source of ``monitored``

    def observe(self, topology: Topology, now: datetime) -> None:
        """Observes all faults; called once per cycle."""
        for fault in self.faults:
            fault.observe(topology, now)
        if not topology.shares_graph(self.topology):
            self.monitored |= {target: stands_for(target, topology) for target in topology.of_kind(EntityKind.WORKLOAD)}
            self.topology = topology

    def fired(self, alerts: Sequence[Alert], incidents: Sequence[Incident]) -> tuple[FiredAlert, ...]:
        """Returns alerts that fired, each with its incident."""
        grouped: dict[str, list[Incident]] = {}
        for incident in sorted(incidents, key=_end_order):
            for fingerprint in incident.alerts:
                grouped.setdefault(fingerprint, []).append(incident)
        successors = {
            incident.id: successor for incident in incidents if (successor := _successor(incident)) is not None
        }
        return tuple(
            FiredAlert(
                self.monitored.get(alert.entity, alert.entity),
                alert.starts_at,
                _final_incident(_incident_of(alert, grouped.get(alert.fingerprint, ())), successors),
            )
            for alert in fired_alerts(alerts)
        )

    def injected(self) -> tuple[InjectedFault, ...]:
        """Returns the injected faults without negative states."""
        return tuple(fault.injected() for fault in self.faults if not fault.truth.negative)

    def touched(self) -> frozenset[EntityRef]:
        """Returns all entities that the faults touch, without negative states."""
        return frozenset(entity for fault in self.faults if not fault.truth.negative for entity in fault.truth.touches)


def _end_order(incident: Incident) -> tuple[bool, datetime, str]:
    """Sort key of incidents: by end, open ones last."""
    return (incident.resolved_at is None, incident.resolved_at or incident.opened_at, incident.id)


def _incident_of(alert: Alert, incidents: Sequence[Incident]) -> str | None:
    """Returns the first incident that contained this period of the alert. Later ones took it over."""
    for incident in incidents:
        is_open = alert.ends_at is None or incident.opened_at < alert.ends_at
        if is_open and (incident.resolved_at is None or incident.resolved_at > alert.starts_at):
            return incident.id
    return alert.incident


def _successor(incident: Incident) -> str | None:
    """Returns the incident that absorbed this one, or None."""
    merges = [entry.arguments for entry in incident.timeline if entry.what == ABSORBED_INTO]
    return merges[-1]["incident"] if merges else None


def _final_incident(incident: str | None, successors: Mapping[str, str]) -> str | None:
    """Follows incidents that absorbed each other to the last one."""
    while incident is not None and incident in successors:
        incident = successors[incident]
    return incident


def fired_alerts(alerts: Sequence[Alert]) -> list[Alert]:
    """Returns alerts that fired, in any later state."""
    return [
        alert
        for alert in alerts
        if alert.state is not AlertState.PENDING and alert.reason is not AlertReason.NEVER_FIRED
    ]


def scored_incidents(state: StateReader, since: datetime | None = None) -> tuple[ScoredIncident, ...]:
    """Returns every incident with the times of its messages."""
    entity_of = {alert.fingerprint: alert.entity for alert in state.alerts(limit=ALL)}
    messages = state.messages(limit=ALL)
    notified = _first_times(messages, also=True)
    pages = [message for message in messages if message.is_page]
    paged, called = _first_times(pages), _first_times(pages, also=True)
    return tuple(
        replace(
            _scored(incident, entity_of),
            paged_at=paged.get(incident.id),
            called_at=called.get(incident.id),
            notified_at=notified.get(incident.id),
        )
        for incident in state.incidents(since=since, limit=ALL)
    )


def performed_actions(state: StateReader, since: datetime | None = None) -> tuple[ScoredAction, ...]:
    """Returns every performed action, without dry runs."""
    return tuple(
        ScoredAction(action.because, action.kind.value, action.target, action.started_at, takes_capacity(action))
        for action in state.actions(since=since, limit=ALL)
        if _was_done(action) and action.started_at is not None
    )


def takes_capacity(action: Action) -> bool:
    """Returns True for an action that took replicas from a service, restarted one, or kept pods off a node."""
    if action.kind is ActionKind.SCALE:
        return int(action.params.get("replicas", 0)) < int(action.params.get("current", 0))
    return not gives_back(action) and action.kind not in _KEEP


_KEEP = (ActionKind.PAUSE_ROLLOUT, ActionKind.BALANCE_TRAFFIC, ActionKind.WAKE_ENGINE, ActionKind.RESET_PREFIX_CACHE)


def _was_done(action: Action) -> bool:
    return action.status is ActionStatus.DONE and not action.dry_run


def _scored(incident: Incident, entity_of: dict[str, EntityRef]) -> ScoredIncident:
    causes = tuple((hypothesis.entity, hypothesis.fault) for hypothesis in incident.hypotheses)
    folded = {entity_of[fingerprint] for fingerprint in incident.alerts if fingerprint in entity_of}
    return ScoredIncident(
        id=incident.id,
        opened_at=incident.opened_at,
        resolved_at=incident.resolved_at,
        priority=incident.priority,
        hypotheses=causes,
        entities=frozenset(folded | {entity for entity, _ in causes[:1]}),
        confidences=tuple(hypothesis.confidence for hypothesis in incident.hypotheses),
    )


def _first_times(messages: Sequence[Message], *, also: bool = False) -> dict[str, datetime]:
    """Returns the time of the first message of each incident.

    With ``also`` a message counts for every incident it reports, otherwise only for its main one.
    """
    first: dict[str, datetime] = {}
    for message in messages:
        for name in (message.incident, *(message.also if also else ())):
            if name is not None:
                first[name] = min(first.get(name, message.created_at), message.created_at)
    return first
