"""Undo: pending steps are cancelled, nodes are uncordoned, routes are restored.

Only Outrider's own changes are undone, and only once the component is healthy.
"""

from __future__ import annotations

from datetime import timedelta

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityRef,
    Incident,
    RemediationSession,
    Verdict,
)
from remediation.decide import approval, sessions
from remediation.decide.context import DecisionContext
from remediation.decide.guards import Proposal, judge_undo
from remediation.decide.history import CANCELLABLE, PERFORMED, is_over
from remediation.decide.record import record

_SETTLING = timedelta(seconds=60)  # a restarted engine is not judged by a scrape from before the restart
_MOVES = frozenset({ActionKind.RESTART_POD, ActionKind.DRAIN})


def undo_all(context: DecisionContext, session: RemediationSession, incident: Incident | None) -> list[Action]:
    """Cancels pending steps and undoes changes of a session whose cause has recovered."""
    actions = [
        approval.cancelled(action, context.now, DecisionReason.RECOVERED)
        for action in context.history.of_session(session.id)
        if action.status in CANCELLABLE and action.reason is not DecisionReason.RECOVERED
    ]
    for node in session.cordoned:
        if node not in context.kept_cordoned and context.node_healthy(node):
            actions += _undo(context, session, ActionKind.UNCORDON, node, incident)
    for replica in _shifted(context, session):
        if replica in context.facts.healthy and not context.has_alert(replica):
            actions += _undo(context, session, ActionKind.RESTORE_TRAFFIC, replica, incident)
    return actions


def restore_moved(context: DecisionContext, session: RemediationSession, incident: Incident) -> list[Action]:
    """Restores the traffic of replicas that run elsewhere again, while the cause is not repaired yet."""
    cause = incident.suspected_cause
    playbook = context.playbooks.get(cause.fault) if cause else None
    if cause is None or playbook is None or playbook.serving:
        return []
    actions: list[Action] = []
    for replica in _shifted(context, session):
        healthy = replica in context.facts.healthy and not context.has_alert(replica)
        if replica != cause.entity and healthy and _moved(context, session, replica):
            actions += _undo(context, session, ActionKind.RESTORE_TRAFFIC, replica, incident, over=False)
    return actions


def recovering(context: DecisionContext, session: RemediationSession) -> bool:
    """True if the session has begun to undo with an un-cordon or a cancelled step."""
    return is_over(context.history.of_session(session.id))


def _shifted(context: DecisionContext, session: RemediationSession) -> list[EntityRef]:
    return sorted(context.history.shifted(session.id), key=lambda replica: replica.key)


def _moved(context: DecisionContext, session: RemediationSession, replica: EntityRef) -> bool:
    """True if this session restarted the replica long enough ago."""
    own = {replica, *context.topology.causes_of(replica)}
    ended = [
        action.ended_at or action.decided_at
        for action in context.history.of_session(session.id)
        if action.kind in _MOVES and action.status is ActionStatus.DONE and action.target in own
    ]
    return bool(ended) and context.now - max(ended) >= _SETTLING


def _undo(
    context: DecisionContext,
    session: RemediationSession,
    kind: ActionKind,
    target: EntityRef,
    incident: Incident | None,
    *,
    over: bool = True,
) -> list[Action]:
    """``over`` marks the session as recovered, by the reason on record."""
    before = context.history.of(session.id, kind, target)
    if before and before[-1].status in PERFORMED - {ActionStatus.FAILED}:
        return []
    proposal = Proposal(
        session=session.id,
        because=incident.id if incident else session.incident,
        kind=kind,
        target=target,
        params={**sessions.ownership(session.id), **context.objects(kind, target)},
    )
    verdict, reason = judge_undo(context.facts)
    if not over and verdict is Verdict.ALLOWED:
        reason = DecisionReason.WITHIN_LIMITS
    return record(context, proposal, (verdict, reason))
