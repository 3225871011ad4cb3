"""The read side of the state store in memory."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from threading import RLock

from outrider.audit import AuditRecord
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertState,
    BreakerState,
    Calibration,
    CycleRecord,
    DeadLetter,
    DetectorState,
    DetectorStatus,
    EntityRef,
    ForecastPoint,
    Incident,
    Message,
    Plan,
    Priority,
    Receipt,
    RemediationSession,
    Window,
)
from outrider.ports import Silence
from outrider.records.drill import Drill, DrillWindow
from outrider.records.feedback import Feedback
from outrider.records.received_alerts import ReceivedAlert
from outrider.topology import Topology
from outrider.wire.cursors import Position
from store.memory.response import MemoryResponses
from store.state import keyset_pagination, state_rows


@dataclass(slots=True)
class OutboxEntry:
    """Delivery status: waiting, claimed, delivered or failed; ``until`` is a retry time or the end of a lease."""

    message: Message
    status: str
    until: datetime
    owner: str = ""
    error: str = ""
    attempts: int = 0
    receipt: Receipt | None = None
    ended_at: datetime | None = None

    def deliver(self, receipt: Receipt | None, now: datetime) -> None:
        """Marks the message as delivered."""
        self.status, self.until, self.ended_at, self.receipt, self.error = "delivered", now, now, receipt, ""

    def is_free(self, now: datetime) -> bool:
        """True if it may be claimed."""
        return self.status in ("waiting", "claimed") and self.until <= now

    def is_behind(self, earlier: OutboxEntry, now: datetime) -> bool:
        """True if the message must not overtake ``earlier``, which waits for a retry or is being sent."""
        own, other = self.message, earlier.message
        return (
            own.incident is not None
            and (own.incident, own.channel) == (other.incident, other.channel)
            and (other.created_at, other.id) < (own.created_at, own.id)
            and earlier.status in ("waiting", "claimed")
            and earlier.until > now
        )


class MemoryStateReader(MemoryResponses):
    """Implements ``outrider.ports.StateReader``."""

    def __init__(self) -> None:
        """Starts empty."""
        super().__init__()
        self._lock = RLock()
        self._installation = secrets.token_hex(state_rows.INSTALLATION_BYTES)
        self._alerts: dict[tuple[str, datetime], Alert] = {}
        self._incidents: dict[str, Incident] = {}
        self._plans: list[tuple[datetime, Plan]] = []
        self._actions: dict[str, Action] = {}
        self._leases: dict[str, tuple[datetime, str]] = {}
        self._sessions: dict[str, RemediationSession] = {}
        self._outbox: dict[str, OutboxEntry] = {}
        self._cycles: dict[str, CycleRecord] = {}
        self._audit: list[AuditRecord] = []
        self._topologies: list[tuple[datetime, Topology]] = []
        self._points: list[ForecastPoint] = []
        self._baselines: dict[tuple[object, ...], Calibration] = {}
        self._load_tests: dict[tuple[object, ...], Calibration] = {}
        self._silences: dict[str, Silence] = {}
        self._received: dict[str, ReceivedAlert] = {}
        self._heartbeats: dict[str, datetime] = {}
        self._drills: dict[str, Drill] = {}
        self._feedback: dict[str, Feedback] = {}
        self._feedback_values: dict[str, Window] = {}
        self._paused = False
        self._breaker = BreakerState()
        self._states: dict[str, DetectorState] = {}
        self._statuses: tuple[DetectorStatus, ...] = ()

    def alerts(
        self,
        *,
        states: Sequence[AlertState] | None = None,
        priorities: Sequence[Priority] | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Alert, ...]:
        """Alerts, newest first. ``since`` keeps those that had not ended before."""
        result = [
            alert
            for alert in self._alerts.values()
            if (states is None or alert.state in states)
            and (priorities is None or alert.priority in priorities)
            and (since is None or alert.ends_at is None or alert.ends_at >= since)
        ]
        return keyset_pagination.page(result, after, limit, rising=True)

    def alert(self, fingerprint: str) -> Alert | None:
        """The newest occurrence of an alert; None if unknown."""
        return next(iter(self.spells(fingerprint, 1)), None)

    def spells(self, fingerprint: str, limit: int = 100) -> tuple[Alert, ...]:
        """All occurrences of an alert, newest first; empty if unknown."""
        result = [alert for alert in self._alerts.values() if alert.fingerprint == fingerprint]
        return tuple(sorted(result, key=lambda alert: alert.starts_at, reverse=True)[:limit])

    def incidents(
        self,
        *,
        open_only: bool = False,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Incident, ...]:
        """Incidents, newest first. ``since`` keeps those open at or after that time."""
        result = [
            incident
            for incident in self._incidents.values()
            if incident.resolved_at is None or not (open_only or (since is not None and incident.resolved_at < since))
        ]
        return keyset_pagination.page(result, after, limit)

    def incident(self, incident_id: str) -> Incident | None:
        """An incident; None if unknown."""
        return self._incidents.get(incident_id)

    def plan(self) -> Plan:
        """The newest plan; empty if the planner has not run."""
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
        after: Position | None = None,
    ) -> tuple[Action, ...]:
        """Actions, newest first. ``since`` refers to the time of the decision."""
        result = [
            action
            for action in self._actions.values()
            if (incident is None or action.because == incident)
            and (sessions is None or action.session in sessions)
            and (statuses is None or action.status in statuses)
            and (since is None or action.decided_at >= since)
        ]
        return keyset_pagination.page(result, after, limit)

    def action(self, action_id: str) -> Action | None:
        """An action; None if unknown."""
        return self._actions.get(action_id)

    def sessions(self, *, open_only: bool = True) -> tuple[RemediationSession, ...]:
        """Remediation sessions, oldest first."""
        result = [session for session in self._sessions.values() if not open_only or session.closed_at is None]
        return tuple(sorted(result, key=lambda session: (session.opened_at, session.id)))

    def messages(
        self, *, incident: str | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Message, ...]:
        """Messages of the outbox, newest first, sent or not."""
        everything = [sending.message for sending in self._outbox.values()]
        result = [message for message in everything if incident is None or message.incident == incident]
        return keyset_pagination.page(result, after, limit)

    def due_channels(self, now: datetime) -> tuple[str, ...]:
        """The channels with messages that are due, sorted."""
        with self._lock:
            return tuple(sorted({entry.message.channel for entry in self._outbox.values() if entry.is_free(now)}))

    def first_receipt(self, channel: str, incident: str) -> Receipt | None:
        """The receipt of the first message of an incident that a channel delivered by itself; None without one."""
        with self._lock:
            delivered = [
                (entry.ended_at, entry.message.created_at, entry.message.id, entry.receipt)
                for entry in self._outbox.values()
                if (entry.message.channel, entry.message.incident, entry.status) == (channel, incident, "delivered")
                and entry.ended_at is not None
            ]
        receipts = (receipt for *_, receipt in sorted(delivered, key=lambda item: item[:3]))
        return state_rows.first_of_thread(receipt for receipt in receipts if receipt is not None)

    def dead_letters(self, limit: int = 1000, after: Position | None = None) -> tuple[DeadLetter, ...]:
        """Messages that failed for good, newest first; ``after`` is the position of a message."""
        with self._lock:
            failed = {key: entry for key, entry in self._outbox.items() if entry.status == "failed"}
        newest = keyset_pagination.page([entry.message for entry in failed.values()], after, limit)
        return tuple(
            DeadLetter(message, entry.ended_at, entry.attempts, entry.error)
            for message in newest
            if (entry := failed[message.id]).ended_at is not None
        )

    def cycles(self, limit: int = 100) -> tuple[CycleRecord, ...]:
        """Cycles, newest first; the newest ten thousand are kept."""
        return keyset_pagination.page(self._cycles.values(), None, limit)

    def audit(self, limit: int = 1000, after: Position | None = None) -> tuple[AuditRecord, ...]:
        """Audit records, newest first."""
        return keyset_pagination.page(self._audit, after, limit)

    def topology(self, at: datetime | None = None) -> Topology:
        """The newest topology, or that of a given time; empty if unknown."""
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
        """Forecasts for times in [since, until), by that time, then by time of creation."""
        result = [
            point
            for point in self._points
            if (entity is None or point.entity == entity)
            and (since is None or point.at >= since)
            and (until is None or point.at < until)
        ]
        return tuple(sorted(result, key=lambda point: (point.at, point.made_at)))

    def baselines(self, service: EntityRef | None = None) -> tuple[Calibration, ...]:
        """The newest measured calibration per service and shape, newest first."""
        result = [baseline for baseline in self._baselines.values() if service is None or baseline.service == service]
        return _newest_first(result)

    def load_tests(self) -> tuple[Calibration, ...]:
        """The newest load-test result per shape and source, newest first."""
        return _newest_first(self._load_tests.values())

    def drills(
        self, *, since: datetime | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Drill, ...]:
        """Drills, newest first."""
        result = [drill for drill in self._drills.values() if since is None or drill.over_at >= since]
        return keyset_pagination.page(result, after, limit)

    def drill_windows(self, since: datetime) -> tuple[DrillWindow, ...]:
        """Times and clusters of drills, newest first."""
        return tuple(drill.window for drill in self.drills(since=since))

    def feedback(
        self,
        *,
        rule: str | None = None,
        incident: str | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Feedback, ...]:
        """Verdicts, newest first. ``since`` refers to the time of the verdict."""
        result = [
            verdict
            for verdict in self._feedback.values()
            if (rule is None or verdict.rule == rule)
            and (incident is None or verdict.incident == incident)
            and (since is None or verdict.at >= since)
        ]
        return keyset_pagination.page(result, after, limit)

    def feedback_values(self, ids: Sequence[str]) -> dict[str, Window]:
        """Values stored with verdicts, by id; verdicts without values are left out."""
        return {number: self._feedback_values[number] for number in ids if number in self._feedback_values}

    def silences(self, now: datetime) -> tuple[Silence, ...]:
        """Active silences, the first to end first."""
        result = [silence for silence in self._silences.values() if silence.until > now]
        return tuple(sorted(result, key=lambda silence: (silence.until, silence.id)))

    def detector_statuses(self) -> tuple[DetectorStatus, ...]:
        """Rollout stage of each detector, by name; empty before the first cycle."""
        return self._statuses

    def installation(self) -> str:
        """The id of the store."""
        return self._installation

    def paused(self) -> bool:
        """True while remediation is paused."""
        return self._paused

    def breaker(self) -> BreakerState:
        """The breaker of remediation: open, or closed with its last reset."""
        return self._breaker


def _newest_first(calibrations: Iterable[Calibration]) -> tuple[Calibration, ...]:
    return tuple(
        sorted(calibrations, key=lambda item: item.measured_at.timestamp() if item.measured_at else 0.0, reverse=True)
    )
