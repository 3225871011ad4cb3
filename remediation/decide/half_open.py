"""Return of a diverted replica into rotation: a small part of its share first, then more, then all of it. Pure.

A share that the routing technique cannot express is skipped. An alert on the replica at a partial share opens the
circuit again. Each reopening makes the next trial wait longer.
"""

from __future__ import annotations

from datetime import timedelta

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, EntityRef, RemediationSession, Verdict
from remediation.decide import sessions
from remediation.decide.context import DecisionContext
from remediation.decide.guards import Proposal, judge_undo
from remediation.decide.history import IN_FLIGHT, is_half_open, stopped_by_guard
from remediation.decide.record import record

_REPAIRS = frozenset(
    {
        *(ActionKind.RESTART_POD, ActionKind.DELETE_STUCK_POD, ActionKind.DRAIN, ActionKind.ROLLBACK),
        *(ActionKind.WAKE_ENGINE, ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.RESET_PREFIX_CACHE),
    }
)


def next_share(context: DecisionContext, session: RemediationSession, replica: EntityRef) -> float | None:
    """The next share of a healthy replica: a partial one or 1.0. None while the present one is still on trial."""
    trial, shifts = context.policy.half_open, _shifts(context, session, replica)
    if not shifts or not trial.weights:
        return 1.0
    newest = shifts[-1]
    if newest.status in IN_FLIGHT:
        return None
    share = float(newest.params.get("weight", 0.0))
    since = context.now - (newest.ended_at or newest.decided_at)
    wait = trial.time if share > 0.0 else _pause(shifts, trial.time)
    if share == 0.0 and not _is_repaired(context, session, replica, newest):
        wait = max(wait, trial.hold)
    if since < wait:
        return None
    impossible = _failed_shares(context, session, replica)
    return next((weight for weight in sorted(trial.weights) if share < weight < 1.0 and weight not in impossible), 1.0)


def is_on_trial(context: DecisionContext, session: RemediationSession, replica: EntityRef) -> bool:
    """True if the replica has a partial share."""
    shifts = _shifts(context, session, replica)
    return bool(shifts) and is_half_open(shifts[-1]) and shifts[-1].status is ActionStatus.DONE


def set_share(
    context: DecisionContext,
    session: RemediationSession,
    replica: EntityRef,
    because: str,
    share: float,
    reason: DecisionReason,
) -> list[Action]:
    """The action that gives a replica a part of its share; 0 opens the circuit again."""
    proposal = Proposal(
        session=session.id,
        because=because,
        kind=ActionKind.SHIFT_TRAFFIC,
        target=replica,
        params={
            **sessions.ownership(session.id),
            **context.objects(ActionKind.SHIFT_TRAFFIC, replica),
            "weight": share,
        },
    )
    judgement = judge_undo(context.facts, replica)
    return record(context, proposal, (Verdict.ALLOWED, reason) if judgement[0] is Verdict.ALLOWED else judgement)


def _shifts(context: DecisionContext, session: RemediationSession, replica: EntityRef) -> list[Action]:
    own = context.history.of(session.id, ActionKind.SHIFT_TRAFFIC, replica)
    return [action for action in own if action.status in IN_FLIGHT | {ActionStatus.DONE} and not action.dry_run]


def _failed_shares(context: DecisionContext, session: RemediationSession, replica: EntityRef) -> frozenset[float]:
    """Partial shares that failed: a Service chooses pods by labels and has no weights, so the replica skips them."""
    return frozenset(
        float(action.params["weight"])
        for action in context.history.of(session.id, ActionKind.SHIFT_TRAFFIC, replica)
        if is_half_open(action) and action.status is ActionStatus.FAILED and not stopped_by_guard(action)
    )


def _is_repaired(context: DecisionContext, session: RemediationSession, replica: EntityRef, shift: Action) -> bool:
    """True if its process started after the shift, or this session repaired what it rests on or belongs to."""
    ended = shift.ended_at or shift.decided_at
    started = context.facts.started_at.get(replica)
    if started is not None and started >= ended:
        return True
    path = {replica, *context.topology.causes_of(replica), *context.topology.affected_by(replica)}
    return any(
        action.kind in _REPAIRS and action.status is ActionStatus.DONE and action.target in path
        for action in context.history.of_session(session.id)
        if (action.ended_at or action.decided_at) >= ended
    )


def _pause(shifts: list[Action], time: timedelta) -> timedelta:
    """Wait before the next trial: none at first, then two more steps for each reopening."""
    return 2 * time * sum(action.reason is DecisionReason.FAILED_AGAIN for action in shifts)
