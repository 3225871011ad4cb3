"""Protocols of the state store, and the values that they exchange."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

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
    Outcome,
    Plan,
    Priority,
    Receipt,
    RemediationSession,
)
from outrider.records.drill import Drill, DrillWindow
from outrider.records.feedback import FeedbackReader, FeedbackStore
from outrider.records.heartbeats import HeartbeatReader, HeartbeatStore
from outrider.records.on_call import OnCallReader, OnCallStore
from outrider.records.received_alerts import ReceivedAlertReader, ReceivedAlertStore
from outrider.records.response import ResponseReader, ResponseStore
from outrider.records.silences import Silence
from outrider.topology import Topology
from outrider.wire.cursors import Position


@dataclass(frozen=True, slots=True)
class CycleCommit:
    """All decisions of one cycle, which become visible atomically.

    ``alerts`` and ``incidents`` are those that changed. ``plan`` None: the planner did not run. ``detector_statuses``
    are those of every detector; empty leaves the previous ones. ``breaker`` is the state of one that opened.
    ``early``: decided between two cycles, so that no cycle is recorded.
    """

    cycle: CycleRecord
    alerts: tuple[Alert, ...] = ()
    incidents: tuple[Incident, ...] = ()
    plan: Plan | None = None
    actions: tuple[Action, ...] = ()
    sessions: tuple[RemediationSession, ...] = ()
    messages: tuple[Message, ...] = ()
    audit: tuple[AuditRecord, ...] = ()
    topology: Topology | None = None
    detector_statuses: tuple[DetectorStatus, ...] = ()
    breaker: BreakerState | None = None
    early: bool = False


@dataclass(frozen=True, slots=True)
class StateRetention:
    """Retention of ended decisions; ongoing ones are never deleted.

    The default exceeds a year, so that a quarter can be compared with that of the previous year.
    """

    decisions: timedelta = timedelta(days=400)
    forecasts: timedelta = timedelta(days=90)
    messages: timedelta = timedelta(days=90)
    silences: timedelta = timedelta(days=30)


DEFAULT_STATE_RETENTION = StateRetention()


class StateReader(FeedbackReader, ResponseReader, OnCallReader, ReceivedAlertReader, HeartbeatReader, Protocol):
    """Read side of the state store, for the API, dashboard, reports and CLI.

    Long lists are paginated: ``after`` is the position of the last entry of the previous page
    (``outrider.wire.cursors.position_of``), so that new entries do not shift pages.
    """

    def alerts(
        self,
        *,
        states: Sequence[AlertState] | None = None,
        priorities: Sequence[Priority] | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Alert, ...]:
        """Alerts, newest first. None: every state, every priority."""
        ...

    def alert(self, fingerprint: str) -> Alert | None:
        """The newest occurrence of an alert; None if unknown."""
        ...

    def spells(self, fingerprint: str, limit: int = 100) -> tuple[Alert, ...]:
        """All occurrences of an alert, newest first; empty if unknown."""
        ...

    def incidents(
        self,
        *,
        open_only: bool = False,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Incident, ...]:
        """Incidents, newest first. ``since`` keeps those open at or after that time."""
        ...

    def incident(self, incident_id: str) -> Incident | None:
        """An incident; None if unknown."""
        ...

    def plan(self) -> Plan:
        """The newest plan; empty if the planner has not run."""
        ...

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
        """Actions, newest first. ``sessions`` are ids; a None parameter does not filter."""
        ...

    def action(self, action_id: str) -> Action | None:
        """An action; None if unknown."""
        ...

    def sessions(self, *, open_only: bool = True) -> tuple[RemediationSession, ...]:
        """Remediation sessions, oldest first."""
        ...

    def messages(
        self, *, incident: str | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Message, ...]:
        """Messages of the outbox, newest first, sent or not."""
        ...

    def due_channels(self, now: datetime) -> tuple[str, ...]:
        """The channels with messages that are due, sorted."""
        ...

    def first_receipt(self, channel: str, incident: str) -> Receipt | None:
        """The receipt of the first message of an incident that a channel delivered by itself; None without one.

        One that began a new thread takes its place.
        """
        ...

    def dead_letters(self, limit: int = 1000, after: Position | None = None) -> tuple[DeadLetter, ...]:
        """Messages that failed for good, newest first; ``after`` is the position of a message."""
        ...

    def cycles(self, limit: int = 100) -> tuple[CycleRecord, ...]:
        """Cycles, newest first."""
        ...

    def audit(self, limit: int = 1000, after: Position | None = None) -> tuple[AuditRecord, ...]:
        """Audit records, newest first."""
        ...

    def topology(self, at: datetime | None = None) -> Topology:
        """The newest topology, or that of a given time; empty if unknown.

        The topology of a given time has that timestamp; the order of its edges is undefined.
        """
        ...

    def forecasts(
        self,
        *,
        entity: EntityRef | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[ForecastPoint, ...]:
        """Forecasts for times in [since, until), by that time, then by time of creation."""
        ...

    def baselines(self, service: EntityRef | None = None) -> tuple[Calibration, ...]:
        """The newest measured calibration per service and shape, newest first."""
        ...

    def load_tests(self) -> tuple[Calibration, ...]:
        """The newest load-test result per shape and source, newest first."""
        ...

    def silences(self, now: datetime) -> tuple[Silence, ...]:
        """Active silences."""
        ...

    def drills(
        self, *, since: datetime | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Drill, ...]:
        """Drills, newest first. ``since`` keeps those that end at or after that time."""
        ...

    def drill_windows(self, since: datetime) -> tuple[DrillWindow, ...]:
        """Times and clusters of drills that end at or after a time, newest first; never their ground truth."""
        ...

    def installation(self) -> str:
        """The id of the store, which the engine, its stand-by and the API share; empty before the first write."""
        ...

    def paused(self) -> bool:
        """True while remediation is paused."""
        ...

    def breaker(self) -> BreakerState:
        """The breaker of remediation: open, or closed with its last reset."""
        ...

    def detector_statuses(self) -> tuple[DetectorStatus, ...]:
        """Rollout stage of each detector, by name; empty before the first cycle."""
        ...


class StateStore(StateReader, FeedbackStore, ResponseStore, OnCallStore, ReceivedAlertStore, HeartbeatStore, Protocol):
    """Write side of the state store. Short transactions; several processes may use one store."""

    def take_over(self, owner: str) -> None:
        """Makes this handle the only one that may commit cycles; late commits of others are rejected."""
        ...

    def owned(self) -> bool:
        """False once another handle has taken over."""
        ...

    def commit(self, commit: CycleCommit) -> None:
        """Writes a whole cycle in ONE transaction. Actions and messages with a known id stay unchanged.

        Raises TakenOverError if this handle had taken the store over and another one did so later.
        """
        ...

    def claim_actions(self, owner: str, now: datetime, lease: timedelta, limit: int = 10) -> tuple[Action, ...]:
        """Claims due INTENDED actions (or CLAIMED ones with an expired lease) by conditional UPDATE."""
        ...

    def defer_action(self, action_id: str, detail: str, until: datetime) -> None:
        """Returns a claimed action to INTENDED; it is not claimed before ``until``. It keeps its start."""
        ...

    def finish_action(self, outcome: Outcome) -> None:
        """Records the outcome of a claimed action."""
        ...

    def claim_messages(
        self, owner: str, now: datetime, lease: timedelta, limit: int = 50, *, channel: str | None = None
    ) -> tuple[Message, ...]:
        """Claims unsent messages that are due, by conditional UPDATE: urgent ones first, then oldest first.

        A message that is not urgent waits for an earlier one of its incident and channel. ``channel`` None: every one.
        """
        ...

    def finish_message(
        self,
        message_id: str,
        *,
        delivered: bool,
        now: datetime,
        retry_at: datetime | None = None,
        error: str = "",
        receipt: Receipt | None = None,
        follow_ups: Sequence[Message] = (),
    ) -> tuple[str, ...]:
        """Records a delivery, a retry, or (neither) a final failure.

        ``follow_ups`` are added to the outbox in the same transaction; those with a known id stay unchanged. Returns
        the ids of the added ones.
        """
        ...

    def deliver_messages(
        self, message_ids: Sequence[str], receipt: Receipt, now: datetime, follow_ups: Sequence[Message] = ()
    ) -> None:
        """Records the delivery of messages that were sent as one, in ONE transaction."""
        ...

    def retry_message(self, message_id: str, by: str, now: datetime) -> bool:
        """Returns a dead letter to the outbox; False if it is not one."""
        ...

    def acknowledge(self, incident_id: str, by: str, now: datetime) -> bool:
        """Acknowledges an open incident; False if it is unknown or resolved."""
        ...

    def resolve_alert(self, fingerprint: str, by: str, now: datetime) -> bool:
        """Resolves an alert manually; False if it is unknown or already resolved."""
        ...

    def decide_action(self, action_id: str, approve: bool, by: str, now: datetime) -> bool:
        """Approves or rejects a WAITING_APPROVAL action; False if it is in another status.

        An action that needs two approvals waits until two people have approved it.
        """
        ...

    def request_action(self, action_id: str, by: str, now: datetime) -> bool:
        """Requests approval of a PROPOSED or expired action by hand.

        False if it is in another status, or if its session is closed.
        """
        ...

    def set_paused(self, paused: bool, by: str, now: datetime) -> None:
        """Pauses or resumes remediation."""
        ...

    def reset_breaker(self, by: str, now: datetime) -> bool:
        """Closes the breaker; earlier actions no longer count. False if it was closed."""
        ...

    def add_silence(self, silence: Silence) -> None:
        """Adds a silence."""
        ...

    def remove_silence(self, silence_id: str) -> bool:
        """Removes a silence; False if unknown."""
        ...

    def save_drill(self, drill: Drill) -> None:
        """Writes a drill, or its new state."""
        ...

    def save_load_test(self, calibration: Calibration) -> None:
        """Stores a load-test result, replacing the last one of its shape and source.

        Raises StoreError for one without a time, an end or a source.
        """
        ...

    def append_audit(self, records: Sequence[AuditRecord]) -> None:
        """Appends audit records outside a cycle."""
        ...

    def save_detector_states(self, states: Mapping[str, DetectorState], at: datetime) -> None:
        """Saves a checkpoint of the detector states."""
        ...

    def load_detector_states(self) -> dict[str, DetectorState]:
        """The newest checkpoint; empty if there is none. Damaged states are logged and left out."""
        ...

    def prune(self, now: datetime, kept: StateRetention = DEFAULT_STATE_RETENTION) -> dict[str, int]:
        """Deletes expired rows in short transactions; returns counts by table."""
        ...

    def close(self) -> None:
        """Releases every connection."""
        ...
