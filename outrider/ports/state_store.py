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
    Calibration,
    CycleRecord,
    DetectorStanding,
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
from outrider.records.drill import Drill, DrillWindow
from outrider.records.feedback import FeedbackReader, FeedbackStore
from outrider.topology import Topology
from outrider.wire.cursors import Position


@dataclass(frozen=True, slots=True)
class CycleCommit:
    """Everything one cycle decided; it becomes visible at once or not at all.

    ``alerts`` and ``incidents`` are those that changed. ``plan`` None means the planner did not run.
    ``standings`` are those of every detector, or none: then those before stand.
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
    standings: tuple[DetectorStanding, ...] = ()


@dataclass(frozen=True, slots=True)
class Silence:
    """Mutes alerts of a rule and, when given, of one entity, until an instant."""

    id: str
    rule: str | None
    entity: EntityRef | None
    until: datetime
    by: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class StateRetention:
    """How long decisions are kept once they are over; what still goes on is never forgotten.

    More than a year of decisions, so that this quarter can be held against the same of last year.
    """

    decisions: timedelta = timedelta(days=400)
    forecasts: timedelta = timedelta(days=90)
    messages: timedelta = timedelta(days=90)
    silences: timedelta = timedelta(days=30)


DEFAULT_STATE_RETENTION = StateRetention()


class StateReader(FeedbackReader, Protocol):
    """Decisions, read side: what the API, dashboard, reports and CLI use.

    Long lists are read page by page: ``after`` is the place of the last entry of the page before
    (``outrider.wire.cursors.place_of``), and what comes in meanwhile shifts no page.
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
        """Alerts, newest first. None means every state, every priority."""
        ...

    def alert(self, fingerprint: str) -> Alert | None:
        """One alert, None when unknown."""
        ...

    def spells(self, fingerprint: str, limit: int = 100) -> tuple[Alert, ...]:
        """The spells of one alert, newest first; empty when unknown."""
        ...

    def incidents(
        self,
        *,
        open_only: bool = False,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Incident, ...]:
        """Incidents, newest first. ``since`` keeps those open at or after that instant."""
        ...

    def incident(self, incident_id: str) -> Incident | None:
        """One incident, None when unknown."""
        ...

    def plan(self) -> Plan:
        """The newest plan; empty when the planner has not run."""
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
        """Actions, newest first. ``sessions`` are ids; what is None leaves nothing out."""
        ...

    def action(self, action_id: str) -> Action | None:
        """One action, None when unknown."""
        ...

    def sessions(self, *, open_only: bool = True) -> tuple[RemediationSession, ...]:
        """Remediation sessions, oldest first."""
        ...

    def messages(
        self, *, incident: str | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Message, ...]:
        """Messages of the outbox, newest first, sent or not."""
        ...

    def cycles(self, limit: int = 100) -> tuple[CycleRecord, ...]:
        """Cycles, newest first."""
        ...

    def audit(self, limit: int = 1000, after: Position | None = None) -> tuple[AuditRecord, ...]:
        """Audit records, newest first."""
        ...

    def topology(self, at: datetime | None = None) -> Topology:
        """The newest topology, or what was known of it at an instant; empty when nothing was.

        That of an instant bears the instant, and its edges stand in no particular order.
        """
        ...

    def forecasts(
        self,
        *,
        entity: EntityRef | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[ForecastPoint, ...]:
        """What was forecast for instants in [since, until), by that instant, then by when it was said."""
        ...

    def baselines(self, service: EntityRef | None = None) -> tuple[Calibration, ...]:
        """The newest measured calibration of each shape of each service, the newest first."""
        ...

    def load_tests(self) -> tuple[Calibration, ...]:
        """What load tests say, of each shape and source the newest; newest first."""
        ...

    def silences(self, now: datetime) -> tuple[Silence, ...]:
        """Silences in force."""
        ...

    def drills(
        self, *, since: datetime | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Drill, ...]:
        """Drills, newest first. ``since`` keeps those that end at or after that instant."""
        ...

    def drill_windows(self, since: datetime) -> tuple[DrillWindow, ...]:
        """When and where drills run that end at or after that instant, newest first; never what they break."""
        ...

    def paused(self) -> bool:
        """True while remediation is paused."""
        ...

    def standings(self) -> tuple[DetectorStanding, ...]:
        """How far each detector has come, by name; empty before the first cycle."""
        ...


class StateStore(StateReader, FeedbackStore, Protocol):
    """Decisions, write side. Short transactions; several processes may use one store."""

    def take_over(self, owner: str) -> None:
        """From now on the store takes cycles of this handle alone: a late one of another is refused."""
        ...

    def owned(self) -> bool:
        """False once another handle took over after this one."""
        ...

    def commit(self, commit: CycleCommit) -> None:
        """Write a whole cycle in ONE transaction. Actions and messages whose id exists are left alone.

        Raises TakenOverError when this handle took the store over and another one did so after it.
        """
        ...

    def claim_actions(self, owner: str, now: datetime, lease: timedelta, limit: int = 10) -> tuple[Action, ...]:
        """Take INTENDED actions (or CLAIMED ones whose lease ran out) by conditional UPDATE."""
        ...

    def finish_action(self, outcome: Outcome) -> None:
        """Record what became of a claimed action."""
        ...

    def claim_messages(self, owner: str, now: datetime, lease: timedelta, limit: int = 50) -> tuple[Message, ...]:
        """Take unsent messages whose retry time has come, by conditional UPDATE."""
        ...

    def finish_message(
        self, message_id: str, *, delivered: bool, now: datetime, retry_at: datetime | None = None, error: str = ""
    ) -> None:
        """Record delivery, a retry to come, or (neither) a final failure."""
        ...

    def acknowledge(self, incident_id: str, by: str, now: datetime) -> bool:
        """Acknowledge an open incident; False when it is unknown or resolved."""
        ...

    def resolve_alert(self, fingerprint: str, by: str, now: datetime) -> bool:
        """Resolve an alert by hand; False when it is unknown or already resolved."""
        ...

    def decide_action(self, action_id: str, approve: bool, by: str, now: datetime) -> bool:
        """Approve or reject a WAITING_APPROVAL action; False when it does not wait."""
        ...

    def set_paused(self, paused: bool, by: str, now: datetime) -> None:
        """Pause or resume remediation."""
        ...

    def add_silence(self, silence: Silence) -> None:
        """Mute alerts."""
        ...

    def remove_silence(self, silence_id: str) -> bool:
        """Unmute; False when unknown."""
        ...

    def save_drill(self, drill: Drill) -> None:
        """Write a drill, or what became of it."""
        ...

    def save_load_test(self, found: Calibration) -> None:
        """Keep what a load test says, in place of the last one of its shape and source.

        Raises StoreError for one without an instant, an end or a source.
        """
        ...

    def append_audit(self, records: Sequence[AuditRecord]) -> None:
        """Append audit records outside a cycle."""
        ...

    def save_detector_states(self, states: Mapping[str, DetectorState], at: datetime) -> None:
        """Check-point what detectors remember."""
        ...

    def load_detector_states(self) -> dict[str, DetectorState]:
        """The newest check-point; empty when there is none. One that is damaged is logged and left out."""
        ...

    def prune(self, now: datetime, kept: StateRetention = DEFAULT_STATE_RETENTION) -> dict[str, int]:
        """Forget what is past its time, in short transactions; how many rows went, by table."""
        ...

    def close(self) -> None:
        """Release every connection."""
        ...
