"""The loop: collect, write, read, decide, commit.

``decide`` is pure (``service.engine.decide``). Replay, drills and tests run the same ``Cycle`` with another clock,
another source and another store.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from alerts.oncall.roster import Roster
from alerts.routing.pipeline import NotificationSettings
from alerts.state.flapping import MOST_PER_HOUR, FlapMemory
from collectors.events.deduplication import EventDeduplicator
from detectors.base.protocols import AlertFeedback
from detectors.hardware.hard_fault_signs import HardFaultSign
from detectors.rca.fault_catalogue import Knowledge
from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import Clock, SystemClock, rfc3339
from outrider.errors import StoreUnavailableError
from outrider.model import Action, AlertState, CycleRecord, DecisionReason, EntityRef, Event, Finding
from outrider.ports import Collected, CycleCommit, MetricStore, Source, StateStore
from outrider.records.heartbeats import Watchdog
from outrider.records.silences import Silence
from outrider.topology import Topology
from outrider.vocabulary.rules import Rule
from remediation.decide import policy
from remediation.decide.recheck import needs_others, recheck
from remediation.playbooks.model import Playbook
from remediation.procedures.bundle import NONE, Procedures
from service.engine import derived_events, fleet_state
from service.engine import inputs as cycle_inputs
from service.engine.alert_subjects import AlertSubjects
from service.engine.audit_trail import StandingReasons
from service.engine.decide import CycleOutcome, DecisionConfig, decide
from service.engine.detect import DetectionInputs
from service.engine.detector_memory import Detection
from service.engine.early_decision import EarlyInputs, EarlyOutcome, decide_early
from service.engine.forecast_context import ForecastContext
from service.engine.inputs import CycleInputs, StoredState
from service.engine.recent_topology import RecentTopology
from service.engine.situation import situation
from service.planning import role_pools
from service.planning.planning import NoPlanning, Planning
from service.planning.replan import Situation

_log = log.get("cycle")
FEEDBACK_EVERY = timedelta(minutes=5)
TOPOLOGY_EVERY = timedelta(minutes=5)  # also without a change, in case another engine wrote in between
CLOCK_TOLERANCE = timedelta(seconds=5)  # time services step back by less than this every day
_STOPWATCH = SystemClock()  # the duration of a cycle is real time, whatever clock the fleet has


@dataclass(slots=True)
class Parts:
    """The dependencies of a cycle. ``feedback`` returns operators' feedback of the last month.

    ``kill_switch`` returns True while nothing may be done. ``cluster`` is that of received alerts that name none.
    ``maintenance`` are the silences of the configuration. ``flaps_per_hour`` is the limit of flap damping.
    ``watchdogs`` are the expected heartbeats of other monitors.
    ``roster`` returns everyone who can respond at a time.
    """

    clock: Clock
    source: Source
    metrics: MetricStore
    state: StateStore
    detection: Detection
    planning: Planning | NoPlanning
    rules: Sequence[Rule]
    knowledge: Knowledge
    policy: policy.Policy
    messaging: NotificationSettings
    playbooks: Mapping[str, Playbook]
    feedback: Callable[[datetime], Sequence[AlertFeedback]]
    procedures: Procedures = NONE
    cluster: str = "default"
    maintenance: Sequence[Silence] = ()
    flaps_per_hour: int = MOST_PER_HOUR
    watchdogs: Sequence[Watchdog] = ()
    kill_switch: Callable[[], bool] = lambda: False
    roster: Callable[[datetime], Roster] = lambda _now: Roster()

    @property
    def config(self) -> DecisionConfig:
        """The configuration of the decisions."""
        return DecisionConfig(
            self.detection.detector_set,
            self.rules,
            self.knowledge,
            self.policy,
            self.messaging,
            self.playbooks,
            self.procedures,
            self.flaps_per_hour,
            self.watchdogs,
            self.cluster,
        )


@dataclass(slots=True)
class _Memory:
    """State that the cycle itself carries on.

    ``committed`` is the topology that was last written. ``facts`` are those of the newest decision, ``findings`` those
    of the last cycle and of early decisions since. ``known`` are the entities and faults of active alerts. ``early_at``
    is the time of the newest early decision.
    """

    forecasts: ForecastContext
    topology: RecentTopology
    standing: StandingReasons
    events: EventDeduplicator  # from two sources of one device, or from a log and a metrics page
    subjects: AlertSubjects
    last_at: datetime | None = None
    actions_read_at: datetime | None = None
    feedback_read_at: datetime | None = None
    committed: Topology | None = None
    facts: policy.FleetFacts | None = None
    pages: Topology = field(default_factory=Topology)
    recent: Topology = field(default_factory=Topology)
    findings: tuple[Finding, ...] = ()
    known: frozenset[tuple[EntityRef, str | None]] = frozenset()
    early_at: datetime | None = None
    flaps: FlapMemory = field(default_factory=dict)
    running_since: datetime | None = None


class Cycle:
    """One platform's loop. There is one engine per store, and it decides in one thread at a time."""

    def __init__(self, parts: Parts) -> None:
        """``parts`` must not be shared."""
        self.parts = parts
        self.on_decision: Callable[[], None] = lambda: None
        """Called after a commit with actions or messages, so that they are dispatched at once."""
        self.on_record: Callable[[CycleRecord], None] = lambda _record: None
        """Called with the record of each committed cycle."""
        self._deciding = threading.Lock()
        self._memory = _Memory(
            ForecastContext(), RecentTopology(), StandingReasons(), EventDeduplicator(), AlertSubjects(parts.cluster)
        )

    def may_act(self) -> bool:
        """True after the first cycle: intents from before a restart wait for it."""
        return self._memory.facts is not None

    def recheck(self, action: Action, now: datetime) -> DecisionReason | None:
        """Returns the reason not to perform an intent now, None if it may be performed."""
        if self._memory.facts is None:
            return DecisionReason.VALUES_NOT_TRUSTED
        parts, others = self.parts, tuple[Action, ...]()
        if needs_others(action):  # actions since the last cycle may have taken the same replicas
            sessions = parts.state.sessions()
            others = fleet_state.weighed_actions(parts.state, sessions, now - cycle_inputs.DECISIONS_WINDOW)
        facts = self._memory.facts
        return recheck(action, parts.policy, facts, now, others=others, playbooks=parts.playbooks)

    async def run(self) -> CycleRecord:
        """Runs one cycle at the time of the clock."""
        now = self.parts.clock.now()
        return self.run_stages(now, await self.parts.source.collect(now))

    async def run_in_thread(self) -> CycleRecord:
        """Runs one cycle, with everything after collection off the event loop."""
        now = self.parts.clock.now()
        return await asyncio.to_thread(self.run_stages, now, await self.parts.source.collect(now))

    def run_stages(self, now: datetime, collected: Collected) -> CycleRecord:
        """Runs everything after collection: write, read, decide, commit in one transaction.

        ``now`` is never before an early decision: a cycle that began before it continues from it.
        """
        with self._deciding:
            record = self._run_stages(self._after_early(now), collected)
        self.on_record(record)
        return record

    def decide_early(self, collected: Sequence[Collected], signs: frozenset[HardFaultSign]) -> bool:
        """Decides about hard faults that single scrapes or readings show, without waiting for the cycle.

        Returns False if nothing was decided: the cycle that takes the same values decides. Raises StoreError.
        """
        with self._deciding:
            inputs = self._early_inputs(collected, signs)
            outcome = decide_early(inputs, self.parts.config) if inputs is not None else None
            if outcome is None:
                return False
            self._commit_early(outcome)
        if outcome.commit.actions:
            self.on_decision()
        return True

    def is_known(self, sign: HardFaultSign) -> bool:
        """True if an alert about the sign is active: the cycle follows it up."""
        return (sign.entity, sign.fault) in self._memory.known

    def _early_inputs(self, collected: Sequence[Collected], signs: frozenset[HardFaultSign]) -> EarlyInputs | None:
        """Returns None before the first cycle, after a step back of the clock, and without a new sign."""
        parts, memory, now = self.parts, self._memory, self.parts.clock.now()
        signs = frozenset(sign for sign in signs if not self.is_known(sign))
        if memory.facts is None or memory.last_at is None or now <= memory.last_at or not signs:
            return None
        deduplicator = memory.events.copy()
        unique = [replace(part, events=deduplicator.deduplicate(part.events)) for part in collected]
        inputs = CycleInputs(
            cycle_id=f"{rfc3339(now)}-{secrets.token_hex(2)}",
            now=now,
            collected=Collected(topology=memory.pages),
            detection=DetectionInputs(now, memory.pages, parts.detection),
            memory=parts.detection.memory,
            recent_topology=memory.recent,
            stored=self._stored(now),
            latest_plan=parts.planning.latest,
            standing=memory.standing,
        )
        return EarlyInputs(inputs, signs, unique, memory.findings)

    def _commit_early(self, outcome: EarlyOutcome) -> None:
        commit, memory = outcome.commit, self._memory
        memory.facts = outcome.facts  # before the commit: the dispatcher may claim its actions at once
        self.parts.state.commit(commit)
        memory.early_at = commit.cycle.at
        memory.findings = (*memory.findings, *outcome.findings)
        memory.known |= {(item.entity, item.fault) for item in outcome.findings}
        _log.info("early_decision", id=commit.cycle.id, findings=len(outcome.findings), actions=len(commit.actions))

    def _after_early(self, now: datetime) -> datetime:
        """Returns the time of the cycle. An early decision beyond the interval dates from before a clock step."""
        early = self._memory.early_at
        within = early is not None and early - now <= self.parts.detection.interval
        return max(now, early) if early is not None and within else now

    def _run_stages(self, now: datetime, collected: Collected) -> CycleRecord:
        started = _STOPWATCH.monotonic()
        cycle_id = f"{rfc3339(now)}-{secrets.token_hex(2)}"
        collected = self._with_derived_events(now, collected)
        written = self.parts.metrics.write(now, collected.batches, collected.events)
        if self._stepped_back(now):
            return self._hold(cycle_id, now, written, collected)
        inputs = self._read(cycle_id, now, collected, written)
        outcome = decide(inputs, self.parts.config)
        # the memory counts from here on, even if the commit fails: the values have been seen
        self.parts.detection.memory, self._memory.facts = outcome.memory, outcome.facts
        self._memory.pages, self._memory.recent = collected.topology, inputs.recent_topology
        self._memory.findings, self._memory.flaps = outcome.findings, outcome.flaps
        return self._commit(outcome, _STOPWATCH.monotonic() - started)

    def _read(self, cycle_id: str, now: datetime, collected: Collected, written: int) -> CycleInputs:
        """Reads the inputs of the decisions. Raises StoreError; the detectors have then run all the same."""
        parts, memory, topology = self.parts, self._memory, collected.topology
        memory.running_since = memory.running_since or now
        feedback = self._load_feedback(now)
        parts.detection.observe(now, collected)
        detection = DetectionInputs(now, topology, parts.detection, memory.forecasts.view_at(now), feedback)
        try:
            stored = self._stored(now, parts.roster(now))
        except StoreUnavailableError:
            parts.detection.detect(detection)  # nothing can be decided, but the detectors learn from the values
            raise
        plan = parts.planning.plan_if_due(now, topology, self._situation(now, topology, stored))
        if plan is not None and plan.revised is None:
            memory.forecasts.add(plan)
        return CycleInputs(
            cycle_id=cycle_id,
            now=now,
            collected=collected,
            detection=detection,
            memory=parts.detection.memory,
            recent_topology=memory.topology.extend(topology, now),
            stored=stored,
            plan=plan,
            latest_plan=parts.planning.latest,
            standing=memory.standing,
            uncommitted_topology=self._uncommitted(topology),
            signals_written=written,
            subject_of=memory.subjects.within(topology),
            flaps=memory.flaps,
            running_since=memory.running_since,
        )

    def _stored(self, now: datetime, roster: Roster | None = None) -> StoredState:
        parts = self.parts
        return cycle_inputs.read(
            parts.state,
            parts.metrics,
            now,
            killed=parts.kill_switch(),
            roster=roster,
            recurs_within=parts.messaging.recurs_within,
            maintenance=parts.maintenance,
        )

    def _situation(self, now: datetime, topology: Topology, stored: StoredState) -> Situation:
        """Returns replicas, load, incidents and ended actions of this cycle, for the planner's triggers."""
        values, with_pools = self.parts.detection, role_pools.with_pools(topology)
        ready = fleet_state.ready_replicas(with_pools, values, stored.alerts)
        return situation(with_pools, values, ready, stored.incidents, stored.actions, now)

    def _commit(self, outcome: CycleOutcome, seconds: float) -> CycleRecord:
        commit = outcome.commit
        record = replace(commit.cycle, duration_seconds=seconds)
        self.parts.state.commit(replace(commit, cycle=record))
        self._memory.standing = outcome.standing
        self._memory.committed = commit.topology or self._memory.committed
        active = (alert for alert in commit.alerts if alert.state is not AlertState.RESOLVED)
        self._memory.known = frozenset((alert.entity, alert.fault) for alert in active)
        if commit.actions or commit.messages:
            self.on_decision()
        _log.info(
            "cycle",
            cycle=record.id,
            findings=record.findings,
            firing=record.alerts_firing,
            open=record.incidents_open,
        )
        return record

    def _with_derived_events(self, now: datetime, collected: Collected) -> Collected:
        """Returns the batches with deduplicated and derived events, and with the topology as of now."""
        events = self._memory.events.deduplicate(collected.events)
        actions = self._events_of_actions(collected.topology, now)
        of_replicas = derived_events.of_pods(events, collected.topology)
        topology = replace(collected.topology, at=now)
        return replace(collected, events=(*events, *actions, *of_replicas), topology=topology)

    def _events_of_actions(self, topology: Topology, now: datetime) -> tuple[Event, ...]:
        """Returns actions since the last cycle as events. Deferred while the store is unavailable."""
        since = self._memory.actions_read_at or now
        try:
            events = tuple(derived_events.of_actions(self.parts.state, topology, since, now))
        except StoreUnavailableError:
            return ()
        self._memory.actions_read_at = now
        return events

    def _load_feedback(self, now: datetime) -> Sequence[AlertFeedback] | None:
        """Returns operators' feedback every few minutes, else None. Deferred while the store is unavailable."""
        last = self._memory.feedback_read_at
        if last is not None and timedelta(0) <= now - last < FEEDBACK_EVERY:
            return None
        try:
            feedback = self.parts.feedback(now)
        except StoreUnavailableError:
            return None
        self._memory.feedback_read_at = now
        return feedback

    def _uncommitted(self, topology: Topology) -> Topology | None:
        """Returns a topology that is new or was last committed some time ago: a large one takes long to write."""
        last = self._memory.committed
        if last is None or last.at is None or topology.at is None or not topology.shares_graph(last):
            return topology
        return topology if abs(topology.at - last.at) >= TOPOLOGY_EVERY else None

    def _stepped_back(self, now: datetime) -> bool:
        last, self._memory.last_at = self._memory.last_at, now
        return last is not None and now < last - CLOCK_TOLERANCE

    def _hold(self, cycle_id: str, now: datetime, written: int, collected: Collected) -> CycleRecord:
        """Commits no decision after a step back of the clock: values are kept, the step is audited."""
        targets, up = fleet_state.targets(collected)
        record = CycleRecord(cycle_id, now, 0.0, targets, up, written, 0, 0, 0)
        audit = AuditRecord(now, AuditEvent.CLOCK_STEPPED_BACK, "clock", "clock_step", cycle_id)
        self.parts.state.commit(CycleCommit(cycle=record, audit=(audit,)))
        _log.warning("clock_stepped_back", cycle=cycle_id)
        return record
