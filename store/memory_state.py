"""The state store in memory: for tests, replays and drills. One process, any number of threads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import RLock

from outrider.audit import AuditEvent, AuditRecord
from outrider.drill import Drill, DrillWindow
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertState,
    Calibration,
    CycleRecord,
    DetectorState,
    EntityRef,
    ForecastPoint,
    Incident,
    Message,
    Outcome,
    Plan,
    Priority,
    RemediationSession,
)
from outrider.places import Place
from outrider.ports import DEFAULT_STATE_RETENTION, CycleCommit, Silence, StateRetention
from outrider.topology import Topology
from store import pages, plan_rows, state_rows
from store.memory_standings import MemoryStandings


@dataclass(slots=True)
class _Sending:
    """Where a message stands: waiting, claimed, delivered or failed; ``until`` is a retry time or a lease."""

    message: Message
    status: str
    until: datetime
    owner: str = ""
    error: str = ""


class MemoryStateStore(MemoryStandings):
    """Implements ``outrider.ports.StateStore``."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = RLock()
        self._alerts: dict[tuple[str, datetime], Alert] = {}
        self._incidents: dict[str, Incident] = {}
        self._plans: list[tuple[datetime, Plan]] = []
        self._actions: dict[str, Action] = {}
        self._leases: dict[str, tuple[datetime, str]] = {}
        self._sessions: dict[str, RemediationSession] = {}
        self._outbox: dict[str, _Sending] = {}
        self._cycles: dict[str, CycleRecord] = {}
        self._audit: list[AuditRecord] = []
        self._topologies: list[tuple[datetime, Topology]] = []
        self._points: list[ForecastPoint] = []
        self._baselines: dict[tuple[object, ...], Calibration] = {}
        self._silences: dict[str, Silence] = {}
        self._drills: dict[str, Drill] = {}
        self._paused = False
        self._states: dict[str, DetectorState] = {}

    # --- read -------------------------------------------------------------------------------------

    def alerts(
        self,
        *,
        states: Sequence[AlertState] | None = None,
        priorities: Sequence[Priority] | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Place | None = None,
    ) -> tuple[Alert, ...]:
        """Alerts, newest first. ``since`` keeps those that had not ended before that instant."""
        found = [
            alert
            for alert in self._alerts.values()
            if (states is None or alert.state in states)
            and (priorities is None or alert.priority in priorities)
            and (since is None or alert.ends_at is None or alert.ends_at >= since)
        ]
        return pages.page(found, after, limit, rising=True)

    def alert(self, fingerprint: str) -> Alert | None:
        """The newest spell of an alert, None when unknown."""
        spells = [alert for alert in self._alerts.values() if alert.fingerprint == fingerprint]
        return max(spells, key=lambda alert: alert.starts_at, default=None)

    def incidents(
        self,
        *,
        open_only: bool = False,
        since: datetime | None = None,
        limit: int = 1000,
        after: Place | None = None,
    ) -> tuple[Incident, ...]:
        """Incidents, newest first. ``since`` keeps those open at or after that instant."""
        found = [
            incident
            for incident in self._incidents.values()
            if incident.resolved_at is None or not (open_only or (since is not None and incident.resolved_at < since))
        ]
        return pages.page(found, after, limit)

    def incident(self, incident_id: str) -> Incident | None:
        """One incident, None when unknown."""
        return self._incidents.get(incident_id)

    def plan(self) -> Plan:
        """The newest plan; empty when the planner has not run."""
        return self._plans[-1][1] if self._plans else Plan()

    def plans(self, *, since: datetime | None = None, limit: int = state_rows.KEPT_PLANS) -> tuple[Plan, ...]:
        """Plans, newest first."""
        return tuple(plan for at, plan in reversed(self._plans) if since is None or at >= since)[:limit]

    def actions(
        self,
        *,
        incident: str | None = None,
        sessions: Collection[str] | None = None,
        statuses: Collection[ActionStatus] | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Place | None = None,
    ) -> tuple[Action, ...]:
        """Actions, newest first. ``since`` is about the instant of the decision."""
        found = [
            action
            for action in self._actions.values()
            if (incident is None or action.because == incident)
            and (sessions is None or action.session in sessions)
            and (statuses is None or action.status in statuses)
            and (since is None or action.decided_at >= since)
        ]
        return pages.page(found, after, limit)

    def action(self, action_id: str) -> Action | None:
        """One action, None when unknown."""
        return self._actions.get(action_id)

    def sessions(self, *, open_only: bool = True) -> tuple[RemediationSession, ...]:
        """Remediation sessions, oldest first."""
        found = [session for session in self._sessions.values() if not open_only or session.closed_at is None]
        return tuple(sorted(found, key=lambda session: (session.opened_at, session.id)))

    def messages(
        self, *, incident: str | None = None, limit: int = 1000, after: Place | None = None
    ) -> tuple[Message, ...]:
        """Messages of the outbox, newest first, sent or not."""
        everything = [sending.message for sending in self._outbox.values()]
        found = [message for message in everything if incident is None or message.incident == incident]
        return pages.page(found, after, limit)

    def cycles(self, limit: int = 100) -> tuple[CycleRecord, ...]:
        """Cycles, newest first; the newest ten thousand are kept."""
        return pages.page(self._cycles.values(), None, limit)

    def audit(self, limit: int = 1000, after: Place | None = None) -> tuple[AuditRecord, ...]:
        """Audit records, newest first."""
        return pages.page(self._audit, after, limit)

    def topology(self, at: datetime | None = None) -> Topology:
        """The newest topology, or what was known of it at an instant; empty when nothing was."""
        if at is None:
            return self._topologies[-1][1] if self._topologies else Topology()
        past = [graph for since, graph in self._topologies if since <= at]
        return replace(past[-1], at=at) if past else Topology()

    def forecasts(
        self,
        *,
        entity: EntityRef | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[ForecastPoint, ...]:
        """What was forecast for instants in [since, until), by that instant, then by when it was said."""
        found = [
            point
            for point in self._points
            if (entity is None or point.entity == entity)
            and (since is None or point.at >= since)
            and (until is None or point.at < until)
        ]
        return tuple(sorted(found, key=lambda point: (point.at, point.made_at)))

    def baselines(self, service: EntityRef | None = None) -> tuple[Calibration, ...]:
        """The newest measured calibration of each shape of each service, the newest first."""
        found = [one for one in self._baselines.values() if service is None or one.service == service]
        return tuple(sorted(found, key=lambda one: plan_rows.of_calibration(one)["measured_at_us"], reverse=True))

    def drills(
        self, *, since: datetime | None = None, limit: int = 1000, after: Place | None = None
    ) -> tuple[Drill, ...]:
        """Drills, newest first."""
        found = [drill for drill in self._drills.values() if since is None or drill.over_at >= since]
        return pages.page(found, after, limit)

    def drill_windows(self, since: datetime) -> tuple[DrillWindow, ...]:
        """When and where drills run, newest first."""
        return tuple(drill.window for drill in self.drills(since=since))

    def silences(self, now: datetime) -> tuple[Silence, ...]:
        """Silences in force, the one that ends first first."""
        found = [silence for silence in self._silences.values() if silence.until > now]
        return tuple(sorted(found, key=lambda silence: (silence.until, silence.id)))

    def paused(self) -> bool:
        """True while remediation is paused."""
        return self._paused

    # --- write ------------------------------------------------------------------------------------

    def take_over(self, owner: str) -> None:
        """Nothing to guard: a store in memory has one handle."""

    def owned(self) -> bool:
        """True: nobody else can take it over."""
        return True

    def commit(self, commit: CycleCommit) -> None:
        """Write a whole cycle, with the rules of the SQLite store."""
        with self._lock:
            for alert in commit.alerts:
                spell = (alert.fingerprint, alert.starts_at)
                self._alerts[spell] = state_rows.keep_hand(self._alerts.get(spell), alert)
            for incident in commit.incidents:
                stored = self._incidents.get(incident.id)
                self._incidents[incident.id] = state_rows.keep_acknowledgement(stored, incident)
            self._sessions.update({session.id: session for session in commit.sessions})
            for action in commit.actions:
                known = self._actions.setdefault(action.id, action)
                if state_rows.cancels(known, action):
                    self._actions[action.id] = action
            for message in commit.messages:
                self._outbox.setdefault(message.id, _Sending(message, "waiting", message.created_at))
            if commit.plan is not None:
                self._plans = [*self._plans, (commit.cycle.at, commit.plan)][-state_rows.KEPT_PLANS :]
                self._keep_plan(commit.plan)
            if commit.topology is not None:
                self._keep_topology(commit.topology, commit.cycle.at)
            self._keep_standings(commit.standings)
            self._append(commit.audit)
            self._cycles[commit.cycle.id] = commit.cycle
            while len(self._cycles) > state_rows.KEPT_CYCLES:
                del self._cycles[next(iter(self._cycles))]

    def claim_actions(self, owner: str, now: datetime, lease: timedelta, limit: int = 10) -> tuple[Action, ...]:
        """Take INTENDED actions, or CLAIMED ones whose lease ran out, oldest first."""
        with self._lock:
            free = [
                action
                for action in self._actions.values()
                if action.status is ActionStatus.INTENDED
                or (action.status is ActionStatus.CLAIMED and self._leases[action.id][0] <= now)
            ]
            claimed = []
            for action in sorted(free, key=lambda action: (action.decided_at, action.id))[:limit]:
                taken = replace(action, status=ActionStatus.CLAIMED, started_at=now)
                self._actions[action.id], self._leases[action.id] = taken, (now + lease, owner)
                claimed.append(taken)
            return tuple(claimed)

    def finish_action(self, outcome: Outcome) -> None:
        """Record what became of a claimed action; the first record stays. Raises StoreError for an unknown id."""
        with self._lock:
            action = self._actions.get(outcome.action_id)
            if action is None:
                raise state_rows.unknown("action", outcome.action_id)
            if action.status is ActionStatus.CLAIMED:
                self._actions[action.id] = state_rows.finished(action, outcome)

    def claim_messages(self, owner: str, now: datetime, lease: timedelta, limit: int = 50) -> tuple[Message, ...]:
        """Take unsent messages whose retry time has come, oldest first."""
        with self._lock:
            free = [
                sending
                for sending in self._outbox.values()
                if sending.status in ("waiting", "claimed") and sending.until <= now
            ]
            chosen = sorted(free, key=lambda sending: (sending.message.created_at, sending.message.id))[:limit]
            for sending in chosen:
                sending.status, sending.until, sending.owner = "claimed", now + lease, owner
            return tuple(sending.message for sending in chosen)

    def finish_message(
        self, message_id: str, *, delivered: bool, now: datetime, retry_at: datetime | None = None, error: str = ""
    ) -> None:
        """Record delivery, a retry to come, or (neither) a final failure. A delivered message stays delivered."""
        with self._lock:
            sending = self._outbox.get(message_id)
            if sending is None:
                raise state_rows.unknown("message", message_id)
            if sending.status == "delivered":
                return
            sending.error = error
            if not delivered and retry_at is not None:
                sending.status, sending.until = "waiting", retry_at
            else:
                sending.status, sending.until = "delivered" if delivered else "failed", now

    # --- hands ------------------------------------------------------------------------------------

    def acknowledge(self, incident_id: str, by: str, now: datetime) -> bool:
        """Acknowledge an open incident, audited; False when it is unknown or resolved. The first one stays."""
        with self._lock:
            incident = self._incidents.get(incident_id)
            if incident is None or incident.resolved_at is not None:
                return False
            if incident.acknowledged_at is None:
                self._incidents[incident_id] = replace(incident, acknowledged_at=now, acknowledged_by=by)
                self._append([state_rows.hand(AuditEvent.ACKNOWLEDGED, incident_id, by, now)])
            return True

    def resolve_alert(self, fingerprint: str, by: str, now: datetime) -> bool:
        """Resolve an alert by hand, audited; False when it is unknown or already resolved."""
        with self._lock:
            alert = self.alert(fingerprint)
            if alert is None or alert.state is AlertState.RESOLVED:
                return False
            self._alerts[fingerprint, alert.starts_at] = state_rows.resolved_by_hand(alert, now)
            self._append([state_rows.hand(AuditEvent.RESOLVED_BY_HAND, fingerprint, by, now)])
            return True

    def decide_action(self, action_id: str, approve: bool, by: str, now: datetime) -> bool:
        """Approve or reject a WAITING_APPROVAL action, audited; False when it does not wait."""
        with self._lock:
            action = self._actions.get(action_id)
            if action is None or action.status is not ActionStatus.WAITING_APPROVAL:
                return False
            answer = state_rows.decided(action, by, now, approve=approve)
            self._actions[action_id] = answer
            event = AuditEvent.ACTION_APPROVED if approve else AuditEvent.ACTION_REJECTED
            self._append([state_rows.hand(event, action_id, by, now, answer.reason.value)])
            return True

    def set_paused(self, paused: bool, by: str, now: datetime) -> None:
        """Pause or resume remediation, audited when that changes anything."""
        with self._lock:
            if self._paused is not paused:
                self._paused = paused
                event = AuditEvent.PAUSED if paused else AuditEvent.RESUMED
                self._append([state_rows.hand(event, "remediation", by, now)])

    def add_silence(self, silence: Silence) -> None:
        """Mute alerts. The caller audits it."""
        self._silences[silence.id] = silence

    def remove_silence(self, silence_id: str) -> bool:
        """Unmute; False when unknown. The caller audits it."""
        return self._silences.pop(silence_id, None) is not None

    def save_drill(self, drill: Drill) -> None:
        """Write a drill, or what became of it. The caller audits it."""
        self._drills[drill.id] = drill

    def append_audit(self, records: Sequence[AuditRecord]) -> None:
        """Append audit records outside a cycle."""
        with self._lock:
            self._append(records)

    def save_detector_states(self, states: Mapping[str, DetectorState], at: datetime) -> None:  # noqa: ARG002 - the protocol's
        """Check-point what detectors remember, in place of the one before."""
        self._states.update(states)

    def load_detector_states(self) -> dict[str, DetectorState]:
        """The newest check-point; empty when there is none."""
        return dict(self._states)

    def prune(self, now: datetime, kept: StateRetention = DEFAULT_STATE_RETENTION) -> dict[str, int]:  # noqa: ARG002 - the protocol's
        """Nothing: what is in memory lives as long as a test or a drill."""
        return {}

    def close(self) -> None:
        """Nothing to release."""

    def _append(self, records: Sequence[AuditRecord]) -> None:
        first = len(self._audit) + 1
        self._audit.extend(replace(record, id=number) for number, record in enumerate(records, first))

    def _keep_plan(self, plan: Plan) -> None:
        self._points += [point for said in plan.forecasts for point in plan_rows.points_of(said)]
        for found in plan.calibrations:
            if found.measured_at is not None:
                self._baselines[plan_rows.shape_of(found)] = found

    def _keep_topology(self, graph: Topology, at: datetime) -> None:
        """A graph of which nothing but the instant is new takes the place of the one before."""
        since = at
        if self._topologies and graph.shares_graph(self._topologies[-1][1]):
            since, _ = self._topologies.pop()
        self._topologies.append((since, graph))
