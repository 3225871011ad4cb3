"""Input of one cycle's decisions: everything read from the store and from memory, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from alerts.oncall.roster import Roster
from alerts.routing import shift_summary
from alerts.routing.escalation import Responders
from alerts.state.flapping import FlapMemory
from alerts.state.received import SubjectOf
from outrider.model import Action, Alert, AlertState, BreakerState, Event, Incident, Plan, RemediationSession
from outrider.ports import Collected, MetricStore, StateStore
from outrider.records.drill import DrillWindow
from outrider.records.received_alerts import ReceivedAlert
from outrider.records.response import FollowUp, IncidentNote
from outrider.records.silences import Silence, in_force
from outrider.topology import Topology
from service.engine import fleet_state
from service.engine.alert_subjects import unresolved
from service.engine.audit_trail import StandingReasons
from service.engine.detect import DetectionInputs, DetectionMemory

EVENTS_WINDOW = timedelta(minutes=45)  # a faulty rollout shows only under its share of the load
DECISIONS_WINDOW = timedelta(hours=24)  # limits are per day at most
DRILLS_WINDOW = timedelta(hours=24)  # an incident of a drill may take as long to close
FOLLOW_UP_MARGIN = timedelta(days=7)  # an open incident keeps the follow-ups that were recent when it began


@dataclass(frozen=True, slots=True)
class StoredState:
    """State that decisions depend on. ``alerts`` and ``incidents`` are the active and the open ones.

    ``received`` are the alerts of other monitors that fire at their source.
    ``killed`` is the kill switch, which is not in the store. ``notes`` are those of the open incidents, by incident.
    ``roster`` has everyone who can respond. ``night`` are the incidents of the nights that ended since ``previous_at``,
    the time of the previous cycle.
    """

    alerts: tuple[Alert, ...] = ()
    incidents: tuple[Incident, ...] = ()
    events: tuple[Event, ...] = ()
    received: tuple[ReceivedAlert, ...] = ()
    heartbeats: Mapping[str, datetime] = field(default_factory=dict)
    silences: Sequence[Silence] = ()
    sessions: Sequence[RemediationSession] = ()
    actions: tuple[Action, ...] = ()
    drills: Sequence[DrillWindow] = ()
    paused: bool = False
    killed: bool = False
    breaker: BreakerState = field(default_factory=BreakerState)
    notes: Mapping[str, Sequence[IncidentNote]] = field(default_factory=dict)
    follow_ups: Sequence[FollowUp] = ()
    roster: Roster = field(default_factory=Roster)
    previous_at: datetime | None = None
    night: tuple[Incident, ...] = ()

    @property
    def responders(self) -> Responders:
        """Who can respond, and what people added."""
        return Responders(self.roster, self.notes, self.follow_ups)


@dataclass(frozen=True, slots=True)
class CycleInputs:
    """Input of ``decide``.

    ``plan`` is the plan that was made in this cycle, ``latest_plan`` the newest one. ``recent_topology`` also holds
    recently removed edges. ``uncommitted_topology`` is None if the store has the topology already. ``subject_of``
    resolves the labels of received alerts. ``flaps`` are the times at which alerts fired.
    ``running_since`` is the time of the first cycle of this engine.
    """

    cycle_id: str
    now: datetime
    collected: Collected
    detection: DetectionInputs
    memory: DetectionMemory
    recent_topology: Topology
    stored: StoredState = field(default_factory=StoredState)
    plan: Plan | None = None
    latest_plan: Plan = field(default_factory=Plan)
    standing: StandingReasons = field(default_factory=StandingReasons)
    uncommitted_topology: Topology | None = None
    signals_written: int = 0
    subject_of: SubjectOf = unresolved
    flaps: FlapMemory = field(default_factory=dict)
    running_since: datetime | None = None


def read(
    state: StateStore,
    metrics: MetricStore,
    now: datetime,
    *,
    killed: bool = False,
    roster: Roster | None = None,
    recurs_within: timedelta = timedelta(0),
    maintenance: Sequence[Silence] = (),
) -> StoredState:
    """Reads the state that decisions depend on. ``killed`` is the kill switch. Raises StoreError.

    ``recurs_within`` is the time after the closing of a follow-up in which a fault counts as the same one again.
    ``maintenance`` are the configured silences.
    """
    roster = roster or Roster()
    sessions, incidents = state.sessions(), fleet_state.open_incidents(state)
    previous = next(iter(state.cycles(limit=1)), None)
    previous_at = previous.at if previous is not None else None
    nights = shift_summary.due_nights(roster, previous_at, now)
    return StoredState(
        alerts=fleet_state.active_alerts(state),
        incidents=incidents,
        events=tuple(metrics.events(now - EVENTS_WINDOW, now + timedelta(seconds=1))),
        received=state.received_alerts(states=(AlertState.FIRING,), limit=fleet_state.UNLIMITED),
        heartbeats=state.heartbeats(),
        silences=in_force((*state.silences(now), *maintenance), now),
        sessions=sessions,
        actions=fleet_state.weighed_actions(state, sessions, now - DECISIONS_WINDOW),
        drills=state.drill_windows(now - DRILLS_WINDOW),
        paused=state.paused(),
        killed=killed,
        breaker=state.breaker(),
        notes=_notes(state, incidents),
        follow_ups=state.follow_ups(since=now - recurs_within - FOLLOW_UP_MARGIN) if incidents or nights else (),
        roster=roster,
        previous_at=previous_at,
        night=_incidents_of(state, nights),
    )


def _notes(state: StateStore, incidents: Sequence[Incident]) -> Mapping[str, Sequence[IncidentNote]]:
    result: dict[str, list[IncidentNote]] = {}
    for note in state.notes([incident.id for incident in incidents]) if incidents else ():
        result.setdefault(note.incident, []).append(note)
    return result


def _incidents_of(state: StateStore, nights: Sequence[shift_summary.Night]) -> tuple[Incident, ...]:
    return state.incidents(since=min(night.start for night in nights)) if nights else ()
