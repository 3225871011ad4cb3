"""The loop: collect, store, detect, plan, alert, correlate, decide, commit.

Everything between ``collect`` and ``commit`` is pure; replay, drills and tests drive the same
``Cycle`` with another clock, another collector and another store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from alerts.routing import pipeline
from alerts.state import machine as alert_state
from collectors.events.deduplication import EventDeduplicator
from collectors.scrape.target_health import TargetHealth
from detectors.rca import correlate, fault_catalogue
from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import Clock, SystemClock, rfc3339
from outrider.errors import StoreAwayError
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertState,
    CycleRecord,
    DecisionReason,
    EntityKind,
    Event,
    EventKind,
    Finding,
    Incident,
    NoVerdict,
    Plan,
)
from outrider.ports import Collected, CycleCommit, MetricStore, StateStore
from outrider.topology import Topology
from outrider.vocabulary.rules import Rule
from remediation.decide import guards, policy
from remediation.playbooks import files as playbook_files
from service.engine import audit_trail, drill_marking, fleet_state
from service.engine.detection import Detection
from service.engine.forecast_context import ForecastContext
from service.engine.recent_topology import RecentTopology
from service.incidents import recent_feedback
from service.planning import role_pools
from service.planning.planning import NoPlanning, Planning

_log = log.get("cycle")
EVENTS_LOOKED_BACK = timedelta(minutes=45)  # a rollout shows its fault once it has taken its share of the load
ACTS_LOOKED_BACK = timedelta(hours=1)
DECISIONS_LOOKED_BACK = timedelta(hours=24)  # the limits are by the day at most
DRILLS_LOOKED_BACK = timedelta(hours=24)  # what a drill opened may take as long to close
TOPOLOGY_EVERY = timedelta(minutes=5)  # also when it stands still, should another engine have written meanwhile
_STOPWATCH = SystemClock()  # how long a cycle takes is real time, whatever clock the fleet lives by
CLOCK_TOLERANCE = timedelta(seconds=5)  # a smaller step back is what time services do every day


class Source(Protocol):
    """Where batches come from: the scraper, a Prometheus, a recording or a simulated fleet."""

    async def collect(self, at: datetime) -> Collected:
        """One round of collection."""
        ...

    def topology(self, at: datetime) -> Topology:
        """What is known of the topology."""
        ...

    @property
    def health(self) -> list[TargetHealth]:
        """How each target fares; a Prometheus speaks of itself first."""
        ...

    async def close(self) -> None:
        """End what is under way and release connections."""
        ...


@dataclass(slots=True)
class Parts:
    """What a cycle is made of."""

    clock: Clock
    source: Source
    metrics: MetricStore
    state: StateStore
    detection: Detection
    planning: Planning | NoPlanning
    rules: Sequence[Rule]
    knowledge: fault_catalogue.Knowledge
    policy: policy.Policy
    messaging: pipeline.Messaging
    last_at: datetime | None = None
    committed: Topology | None = None  # the topology as it was last committed


class Cycle:
    """One platform's loop. Not safe for two threads: there is one engine per store."""

    def __init__(self, parts: Parts) -> None:
        """``parts`` is shared with nobody."""
        self.parts = parts
        self._facts: policy.FleetFacts | None = None
        self._standing = audit_trail.Standing()
        self._acts_told: datetime | None = None
        self._heard_at: datetime | None = None  # when verdicts were read
        self._lately = RecentTopology()
        self._foretelling = ForecastContext()
        self._deduplicator = EventDeduplicator()  # two pages of one device, a recorded event and the page that shows it

    def may_act(self) -> bool:
        """True once the fleet has been looked at: intents of an earlier life wait for the first cycle."""
        return self._facts is not None

    def recheck(self, action: Action, now: datetime) -> DecisionReason | None:
        """Why an intent must not be performed now, None when it may."""
        if self._facts is None:
            return DecisionReason.VALUES_NOT_TRUSTED
        return guards.recheck(action, self.parts.policy, self._facts, now)

    async def run(self) -> CycleRecord:
        """One whole round at the clock's instant."""
        now = self.parts.clock.now()
        return self.digest(now, await self.parts.source.collect(now))

    async def run_in_thread(self) -> CycleRecord:
        """The same, with everything after collection off the event loop."""
        now = self.parts.clock.now()
        return await asyncio.to_thread(self.digest, now, await self.parts.source.collect(now))

    def digest(self, now: datetime, collected: Collected) -> CycleRecord:
        """Everything after collection, ending in one transaction."""
        parts = self.parts
        started = _STOPWATCH.monotonic()
        cycle_id = f"{rfc3339(now)}-{secrets.token_hex(2)}"
        topology = parts.source.topology(now)
        heard = self._deduplicator.deduplicate(collected.events)
        added = (*self._acts_to_tell(topology, now), *_of_their_replicas(heard, topology))
        collected = replace(collected, events=(*heard, *added))
        written = parts.metrics.write(now, collected.batches, collected.events)
        if self._stepped_back(now):
            return self._hold(cycle_id, now, written, collected)
        self._hear_verdicts(now)
        looked = parts.detection.look(now, collected, topology, self._foretelling.at(now))
        findings = looked.findings
        plan = parts.planning.plan_if_due(now, topology)
        if plan is not None:
            self._foretelling.take(plan)
        active = fleet_state.active_alerts(parts.state)
        pooled = role_pools.with_pools(topology)
        alerts = self._advance(active, looked.heard, plan, pooled, now)
        before, after = self._correlate(alerts, findings, topology, now)
        alerts = _with_incidents(alerts, after)
        alerts = alert_state.mute(alerts, after, parts.state.silences(now))
        decisions = self._decide(after, alerts, pooled, now)
        told = pipeline.messages(before, after, alerts, decisions.actions, parts.messaging, now)
        drills = parts.state.drill_windows(now - DRILLS_LOOKED_BACK)
        told = replace(told, messages=drill_marking.mark(told.messages, told.incidents, alerts, drills))
        targets, targets_up = fleet_state.targets(collected)
        record = CycleRecord(
            id=cycle_id,
            at=now,
            duration_seconds=_STOPWATCH.monotonic() - started,
            targets=targets,
            targets_up=targets_up,
            signals_written=written,
            findings=len(findings),
            alerts_firing=sum(alert.state is AlertState.FIRING for alert in alerts),
            incidents_open=sum(incident.resolved_at is None for incident in told.incidents),
        )
        decided = audit_trail.Decided(active, alerts, before, told.incidents, plan, decisions, told.reasons)
        trail, standing = audit_trail.of_cycle(record, decided, self._standing)
        news = self._unless_committed(topology)
        parts.state.commit(
            CycleCommit(
                cycle=record,
                alerts=tuple(alerts),
                incidents=told.incidents,
                plan=plan,
                actions=decisions.actions,
                sessions=decisions.sessions,
                messages=told.messages,
                audit=trail,
                topology=news,
                standings=looked.standings,
            )
        )
        self._standing = standing
        parts.committed = news or parts.committed
        _log.info(
            "cycle", cycle=cycle_id, findings=len(findings), firing=record.alerts_firing, open=record.incidents_open
        )
        return record

    def _hear_verdicts(self, now: datetime) -> None:
        """Every few minutes what people said since. While the store is away it waits: the values must not."""
        last = self._heard_at
        if last is not None and timedelta(0) <= now - last < recent_feedback.UNLIMITED:
            return
        try:
            self.parts.detection.teach(recent_feedback.of(self.parts.state, self.parts.rules, now))
        except StoreAwayError:
            return
        self._heard_at = now

    def _unless_committed(self, topology: Topology) -> Topology | None:
        """A topology that is new or was not committed for a while: a large one takes long to write."""
        last = self.parts.committed
        if last is None or last.at is None or topology.at is None or not topology.shares_graph(last):
            return topology
        return topology if abs(topology.at - last.at) >= TOPOLOGY_EVERY else None

    def _acts_to_tell(self, topology: Topology, now: datetime) -> tuple[Event, ...]:
        """Our own acts since they were last told. While the store is away they wait: the values must not."""
        try:
            found = tuple(self._our_own_acts(topology, self._acts_told or now, now))
        except StoreAwayError:
            return ()
        self._acts_told = now
        return found

    def _our_own_acts(self, topology: Topology, since: datetime, now: datetime) -> Iterator[Event]:
        """What the dispatcher did since an instant, as events: a restart of ours is no crash."""
        for action in fleet_state.acts_of(self.parts.state, now - ACTS_LOOKED_BACK):
            if action.status is not ActionStatus.DONE or action.ended_at is None or action.ended_at < since:
                continue
            for entity in (action.target, *topology.above(action.target, EntityKind.REPLICA)):
                yield Event(
                    id=f"{action.id}:{entity.key}",
                    kind=EventKind.ACTION,
                    entity=entity,
                    at=action.ended_at,
                    source="outrider",
                    code=action.kind.value,
                    attributes={"because": action.because},
                    dedup_key=f"{action.id}:{entity.key}",
                )

    def _stepped_back(self, now: datetime) -> bool:
        last, self.parts.last_at = self.parts.last_at, now
        return last is not None and now < last - CLOCK_TOLERANCE

    def _hold(self, cycle_id: str, now: datetime, written: int, collected: Collected) -> CycleRecord:
        """A clock that stepped back decides nothing: values are kept, the step is audited."""
        targets, up = fleet_state.targets(collected)
        record = CycleRecord(cycle_id, now, 0.0, targets, up, written, 0, 0, 0)
        note = AuditRecord(now, AuditEvent.CLOCK_STEPPED_BACK, "clock", "clock_step", cycle_id)
        self.parts.state.commit(CycleCommit(cycle=record, audit=(note,)))
        _log.warning("clock_stepped_back", cycle=cycle_id)
        return record

    def _advance(
        self,
        active: Sequence[Alert],
        heard: Sequence[Finding | NoVerdict],
        plan: Plan | None,
        topology: Topology,
        now: datetime,
    ) -> tuple[Alert, ...]:
        context = fleet_state.service_context(active, self.parts.planning.latest, topology, self.parts.detection)
        return alert_state.advance(active, heard, plan, self.parts.rules, context, now)

    def _correlate(
        self,
        alerts: Sequence[Alert],
        findings: Sequence[Finding],
        topology: Topology,
        now: datetime,
    ) -> tuple[tuple[Incident, ...], tuple[Incident, ...]]:
        before = fleet_state.open_incidents(self.parts.state)
        events = self.parts.metrics.events(now - EVENTS_LOOKED_BACK, now + timedelta(seconds=1))
        recent = self._lately.widened(topology, now)
        changed = correlate.correlate(
            before, alerts, findings, events, recent, self.parts.knowledge, now, self.parts.detection.interval
        )
        by_id = {incident.id: incident for incident in before} | {incident.id: incident for incident in changed}
        return before, tuple(by_id.values())

    def _decide(
        self, incidents: Sequence[Incident], alerts: Sequence[Alert], topology: Topology, now: datetime
    ) -> policy.Decisions:
        parts = self.parts
        self._facts = fleet_state.fleet_facts(
            parts.state, incidents, alerts, parts.planning.latest, topology, parts.detection
        )
        sessions = parts.state.sessions()
        return policy.decide(
            parts.policy,
            incidents,
            alerts,
            parts.planning.latest,
            fleet_state.weighed_actions(parts.state, sessions, now - DECISIONS_LOOKED_BACK),
            sessions,
            topology,
            self._facts,
            now,
            playbook_files.packaged(),
        )


_STOPS = frozenset({"Killing", "Evicted"})  # what the kubelet says of stopping a pod


def _of_their_replicas(events: Sequence[Event], topology: Topology) -> Iterator[Event]:
    """What the kubelet says of stopping a pod, said of the replica that it carried: a planned stop is no crash."""
    for event in events:
        if event.code in _STOPS and event.entity.kind is EntityKind.POD:
            for replica in topology.above(event.entity, EntityKind.REPLICA):
                name = f"{event.id}:{replica.key}"
                yield replace(event, id=name, entity=replica, dedup_key=name)


def _with_incidents(alerts: Sequence[Alert], incidents: Sequence[Incident]) -> tuple[Alert, ...]:
    """Tell each alert which incident it is folded into."""
    incident_of = {fingerprint: incident.id for incident in incidents for fingerprint in incident.alerts}
    return tuple(replace(alert, incident=incident_of.get(alert.fingerprint, alert.incident)) for alert in alerts)
