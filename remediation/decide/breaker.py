"""The breaker: stops remediation that does not help, until a person resets it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from outrider.model import Action, ActionKind, ActionStatus, BreakerState, EntityRef, Incident, RemediationSession
from outrider.topology import Topology
from remediation.decide.history import History, gives_back, is_over, stopped_by_guard
from remediation.decide.limits import BreakerLimits

# These do not end a fault by themselves: a cordoned node keeps its alert until it is repaired, a surge its load, and a
# lost cluster its alerts while another one serves.
_NO_CURE = frozenset(
    {
        ActionKind.SCALE,
        ActionKind.WAKE_ENGINE,
        ActionKind.CORDON,
        ActionKind.DRAIN,
        ActionKind.SHIFT_TRAFFIC,
        ActionKind.BALANCE_TRAFFIC,
        ActionKind.DRAIN_ENGINE,
        ActionKind.PAUSE_ROLLOUT,
        ActionKind.RUN_DIAGNOSTIC,
        ActionKind.DEGRADE_SERVICE,
        ActionKind.SWITCH_CLUSTER,
    }
)


def opened(
    state: BreakerState,
    limits: BreakerLimits,
    history: History,
    sessions: Sequence[RemediationSession],
    incidents: Sequence[Incident],
    suspect: frozenset[EntityRef],
    topology: Topology,
    now: datetime,
) -> BreakerState | None:
    """The open breaker if too many actions did not help; None if it stays as it is.

    ``sessions`` are the open ones, ``suspect`` the entities with an active alert.
    """
    if state.is_open:
        return None
    counted = [action for action in history.actions if _counts(action, state, limits, now)]
    working = {session.id for session in sessions if not is_over(history.of_session(session.id))}
    unresolved = {incident.id for incident in incidents if incident.resolved_at is None}
    unsuccessful = 0
    for action in counted:
        failed = action.status is ActionStatus.FAILED
        open_case = action.session in working and action.because in unresolved
        unsuccessful += failed or (open_case and _did_not_help(action, limits, suspect, topology, now))
    too_many = unsuccessful > limits.max_unsuccessful
    if not too_many or unsuccessful <= limits.max_unsuccessful_ratio * len(counted):
        return None
    return BreakerState(now, unsuccessful, len(counted), state.reset_at, state.reset_by)


def _counts(action: Action, state: BreakerState, limits: BreakerLimits, now: datetime) -> bool:
    """True for an action that was really performed within the window, and after the last reset."""
    if action.dry_run or gives_back(action) or action.status not in (ActionStatus.DONE, ActionStatus.FAILED):
        return False
    ended = action.ended_at or action.decided_at
    return (
        not stopped_by_guard(action)
        and ended > now - limits.window
        and (state.reset_at is None or ended > state.reset_at)
    )


def _did_not_help(
    action: Action, limits: BreakerLimits, suspect: frozenset[EntityRef], topology: Topology, now: datetime
) -> bool:
    """True if the target, or a part of it or above it, still has an alert some time after the action."""
    if action.kind in _NO_CURE or now - (action.ended_at or action.decided_at) < limits.recovers_within:
        return False
    return bool(suspect & topology.affected_by(action.target))
