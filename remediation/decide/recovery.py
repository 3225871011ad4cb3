"""Undo: pending steps are cancelled, nodes are uncordoned, routes are restored.

Only Outrider's own changes are undone, and only once the component is healthy, or no longer exists. A node may need a
diagnostic first (``diagnostic``); a replica returns step by step (``half_open``), and its traffic at once after its
replacement (``replacement``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    GuardAnswer,
    Incident,
    RemediationSession,
    StepState,
    StepStatus,
    Verdict,
)
from remediation.decide import approval, half_open, replacement, sessions
from remediation.decide.context import DecisionContext
from remediation.decide.diagnostic import NodeReturn, Return, decide_return
from remediation.decide.guards import Proposal, judge_undo
from remediation.decide.history import CANCELLABLE, PERFORMED, WAITING, gives_back, is_over, stopped_by_guard
from remediation.decide.limits import StepResults
from remediation.decide.record import record

_ROUTING = ("service", "pods")  # parameters of a shift: a replica that no longer exists has none in the topology
_RETRY = timedelta(seconds=15)  # of an undo; doubled with each failure
_RETRY_EXISTING = timedelta(minutes=30)  # of the un-cordon of a node that monitoring lost
_UNREACHED = "playbooks.undo_unreached"
_NODE_NOT_REPORTED = "playbooks.node_not_reported"
_MOVES = frozenset({ActionKind.RESTART_POD, ActionKind.DRAIN})
_RELEASES = (ActionKind.RESUME_ROLLOUT, ActionKind.RESUME_ENGINE, ActionKind.WAKE_ENGINE)


def undo_all(context: DecisionContext, session: RemediationSession, incident: Incident | None) -> StepResults:
    """Cancels pending steps and undoes changes of a session whose cause has recovered."""
    actions = [
        approval.withdrawn(action, context.now, DecisionReason.RECOVERED)
        for action in context.history.of_session(session.id)
        if action.status in CANCELLABLE
        and not is_over([action])
        and (not gives_back(action) or _awaits_approval(action))
    ]
    cancelled = {action.id for action in actions}
    steps: list[StepStatus] = []
    for node in session.cordoned:
        returned = _return_node(context, session, node, incident)
        actions += [action for action in returned.actions if action.id not in cancelled]
        steps += returned.steps
    for replica in _shifted(context, session):
        if not context.diverted_elsewhere(replica, session.id) and not _rests_on_trouble(context, replica):
            actions += _return_replica(context, session, replica, incident)
    for kind in _RELEASES:
        for target in _sorted(context.history.standing(kind, session.id)):
            actions += _release(context, session, kind, target, incident)
    for target in _sorted(context.history.standing(ActionKind.RESTORE_TRAFFIC, session.id)):
        if target.kind is EntityKind.SERVICE:
            actions += _undo(context, session, ActionKind.RESTORE_TRAFFIC, target, incident)
    return StepResults(actions, [*steps, *_unreached(context, session, incident)])


def _unreached(
    context: DecisionContext, session: RemediationSession, incident: Incident | None
) -> Iterator[StepStatus]:
    """Changes whose undo has no performer for their cluster any more, as its setting was changed: a person is paged."""
    standing: dict[ActionKind, Sequence[EntityRef]] = {
        ActionKind.UNCORDON: session.cordoned,
        ActionKind.RESTORE_TRAFFIC: _shifted(context, session),
    }
    standing |= {kind: _sorted(context.history.standing(kind, session.id)) for kind in _RELEASES}
    for kind, targets in standing.items():
        for target in targets:
            named = context.policy.unreached(kind, target)
            if named:
                objection = GuardAnswer("cluster", Verdict.REFUSED, DecisionReason.OTHER_CLUSTER, named)
                because = _because(session, incident)
                yield StepStatus(because, kind, target, StepState.HELD_BY_GUARD, page=_UNREACHED, objection=objection)


def _awaits_approval(action: Action) -> bool:
    """True for a diagnostic of a step that nobody has approved. That of a node's return needs no approval."""
    return action.kind is ActionKind.RUN_DIAGNOSTIC and action.status in WAITING


def undo_early(context: DecisionContext, session: RemediationSession, incident: Incident) -> StepResults:
    """What is undone while the cause is not repaired yet.

    The traffic of replicas that run elsewhere again is restored, and nodes that no longer exist are not ours any more.
    """
    actions: list[Action] = []
    steps: list[StepStatus] = []
    for node in session.cordoned:
        if node in context.facts.deleted_nodes:
            forgotten = _forget(context, session, node, incident, reason=DecisionReason.WITHIN_LIMITS)
            actions += forgotten.actions
            steps += forgotten.steps
    cause = incident.suspected_cause
    playbook = context.playbooks.get(cause.fault) if cause else None
    if cause is None or playbook is None:
        return StepResults(actions, steps)
    for replica in _shifted(context, session):
        returns = replica != cause.entity and not context.diverted_elsewhere(replica, session.id)
        if returns and (_moved(context, session, replica) or _is_replaced(context, session, replica)):
            actions += _return_replica(context, session, replica, incident, over=False)
    return StepResults(actions, steps)


def recovering(context: DecisionContext, session: RemediationSession) -> bool:
    """True if the session has begun to undo with an un-cordon or a cancelled step."""
    return is_over(context.history.of_session(session.id))


def _return_node(
    context: DecisionContext, session: RemediationSession, node: EntityRef, incident: Incident | None
) -> StepResults:
    """Un-cordons a healthy node, after a diagnostic if it needs one."""
    because = _because(session, incident)
    if node in context.facts.deleted_nodes:
        forgotten = _forget(context, session, node, incident)
        return StepResults([*_cancelled_diagnostic(context, session, node), *forgotten.actions], forgotten.steps)
    if node in context.kept_cordoned or not context.node_healthy(node):
        return StepResults(_cancelled_diagnostic(context, session, node))
    cause = incident.suspected_cause if incident else None
    decided = decide_return(context, session, node, cause.fault if cause else None)
    if decided.step is Return.UNCORDON:
        undone = _undo(context, session, ActionKind.UNCORDON, node, incident, reason=decided.reason)
        return StepResults([*_cancelled_diagnostic(context, session, node), *undone])
    if decided.step is Return.DIAGNOSE:
        proposal = Proposal(
            session=session.id,
            because=because,
            kind=ActionKind.RUN_DIAGNOSTIC,
            target=node,
            params={**sessions.ownership(session.id), **context.objects(ActionKind.RUN_DIAGNOSTIC, node)},
        )
        return StepResults(
            record(context, proposal, judge_undo(context.facts, node)), [_waiting(because, node, decided)]
        )
    return StepResults((), [_waiting(because, node, decided)])


def _forget(
    context: DecisionContext,
    session: RemediationSession,
    node: EntityRef,
    incident: Incident | None,
    *,
    reason: DecisionReason = DecisionReason.RECOVERED,
) -> StepResults:
    """The un-cordon of a node that no longer exists. It fails if the API server still has the node: a person is paged.

    It is retried seldom, as the answer changes only once the node is deleted or reported again.
    """
    exists = node in context.history.existing()
    steps = [_still_exists(_because(session, incident), node)] if exists else []
    newest = context.history.newest(session.id, ActionKind.UNCORDON, node)
    if exists and newest is not None and context.now - (newest.ended_at or newest.decided_at) < _RETRY_EXISTING:
        return StepResults((), steps)
    deleted = {"deleted": True}
    undone = _undo(context, session, ActionKind.UNCORDON, node, incident, reason=reason, params=deleted)
    return StepResults(undone, steps)


def _still_exists(because: str, node: EntityRef) -> StepStatus:
    return StepStatus(because, ActionKind.UNCORDON, node, StepState.NODE_NOT_REPORTED, page=_NODE_NOT_REPORTED)


def _waiting(because: str, node: EntityRef, decided: NodeReturn) -> StepStatus:
    failed = decided.step is Return.STAY_OUT
    state = StepState.DIAGNOSTIC_FAILED if failed else StepState.DIAGNOSTIC_RUNNING
    return StepStatus(because, ActionKind.RUN_DIAGNOSTIC, node, state, page=decided.page)


def _cancelled_diagnostic(context: DecisionContext, session: RemediationSession, node: EntityRef) -> list[Action]:
    """A diagnostic that has not begun is no use on a node that is broken again, or in service again."""
    newest = context.history.newest(session.id, ActionKind.RUN_DIAGNOSTIC, node)
    if newest is None or newest.status is not ActionStatus.INTENDED:
        return []
    return [approval.withdrawn(newest, context.now, DecisionReason.DIAGNOSTIC_NOT_NEEDED)]


def _return_replica(
    context: DecisionContext,
    session: RemediationSession,
    replica: EntityRef,
    incident: Incident | None,
    *,
    over: bool = True,
) -> list[Action]:
    """The next share of a diverted replica: more while it is healthy, none once it fails again.

    The backend of a replaced one gets all of its traffic back: its replacement starts like any new replica.
    """
    because = _because(session, incident)
    if _is_replaced(context, session, replica):
        return _restore(context, session, replica, incident, over=over)
    if not _serves(context, replica):
        if half_open.is_on_trial(context, session, replica):
            return half_open.set_share(context, session, replica, because, 0.0, DecisionReason.FAILED_AGAIN)
        return []
    share = half_open.next_share(context, session, replica)
    if share is None:
        return []
    if share < 1.0:
        reason = DecisionReason.RECOVERED if over else DecisionReason.HALF_OPEN
        return half_open.set_share(context, session, replica, because, share, reason)
    return _restore(context, session, replica, incident, over=over)


def _serves(context: DecisionContext, target: EntityRef) -> bool:
    """True for a healthy replica without an alert, and for a pod of healthy replicas."""
    replicas = context.replicas(target)
    return bool(replicas) and context.facts.healthy.issuperset(replicas) and not context.has_alert(target)


def _restore(
    context: DecisionContext, session: RemediationSession, replica: EntityRef, incident: Incident | None, *, over: bool
) -> list[Action]:
    """Gives a replica its full share, by the route on which it was shifted."""
    reason = DecisionReason.RECOVERED if over else DecisionReason.WITHIN_LIMITS
    shifts = context.history.of(session.id, ActionKind.SHIFT_TRAFFIC, replica)
    newest = next((shift for shift in reversed(shifts) if shift.status is ActionStatus.DONE), None)
    routing = {key: newest.params[key] for key in _ROUTING if key in newest.params} if newest else {}
    return _undo(context, session, ActionKind.RESTORE_TRAFFIC, replica, incident, reason=reason, params=routing)


def _release(
    context: DecisionContext,
    session: RemediationSession,
    kind: ActionKind,
    target: EntityRef,
    incident: Incident | None,
) -> list[Action]:
    """Undoes a pause. An engine that no longer exists has no endpoint: only its end is recorded."""
    if not replacement.is_gone(context, target):
        return _undo(context, session, kind, target, incident)
    if not _is_replaced(context, session, target):
        return []
    return _undo(context, session, kind, target, incident, params={"deleted": True})


def _is_replaced(context: DecisionContext, session: RemediationSession, replica: EntityRef) -> bool:
    return replacement.is_replaced(context, replica, context.history.of_session(session.id))


def _rests_on_trouble(context: DecisionContext, replica: EntityRef) -> bool:
    """True if something below the replica has a fault whose playbook shifts traffic away: another session will."""
    below = context.topology.causes_of(replica) - {replica}
    return any(
        entity in below and fault in context.playbooks and ActionKind.SHIFT_TRAFFIC in context.playbooks[fault].kinds
        for entity, fault in context.facts.alerted
    )


def _because(session: RemediationSession, incident: Incident | None) -> str:
    return incident.id if incident else session.incident


def _shifted(context: DecisionContext, session: RemediationSession) -> list[EntityRef]:
    return _sorted(context.history.shifted(session.id))


def _sorted(entities: frozenset[EntityRef]) -> list[EntityRef]:
    return sorted(entities, key=lambda entity: entity.key)


def _moved(context: DecisionContext, session: RemediationSession, replica: EntityRef) -> bool:
    """True if this session restarted the replica long enough ago."""
    own = {replica, *context.topology.causes_of(replica)}
    ended = [
        action.ended_at or action.decided_at
        for action in context.history.of_session(session.id)
        if action.kind in _MOVES and action.status is ActionStatus.DONE and action.target in own
    ]
    return bool(ended) and context.now - max(ended) >= replacement.SETTLING


def _failed_recently(context: DecisionContext, before: list[Action]) -> bool:
    """True if an undo failed too short a time ago: the second retry waits, then the wait doubles up to the cooldown."""
    failures = [action for action in before if action.status is ActionStatus.FAILED]
    if before[-1].status is not ActionStatus.FAILED or stopped_by_guard(before[-1]):
        return False
    wait = min(context.policy.cooldown, _RETRY * (1 << min(len(failures), 10))) if len(failures) > 1 else timedelta(0)
    return context.now - (before[-1].ended_at or before[-1].decided_at) < wait


def _is_undone(context: DecisionContext, newest: Action) -> bool:
    """True if the undo is in progress or done, unless the session has made the change again since."""
    if newest.status is ActionStatus.DONE:
        return newest.target not in context.history.standing(newest.kind, newest.session)
    return newest.status in PERFORMED - {ActionStatus.FAILED}


def _undo(
    context: DecisionContext,
    session: RemediationSession,
    kind: ActionKind,
    target: EntityRef,
    incident: Incident | None,
    *,
    reason: DecisionReason = DecisionReason.RECOVERED,
    params: Mapping[str, Any] = MappingProxyType({}),
) -> list[Action]:
    """``reason`` RECOVERED, or by values, marks the session as over. ``params`` are those that the topology lacks."""
    if context.policy.unreached(kind, target):
        return []
    before = context.history.of(session.id, kind, target)
    if before and (_is_undone(context, before[-1]) or _failed_recently(context, before)):
        return []
    proposal = Proposal(
        session=session.id,
        because=_because(session, incident),
        kind=kind,
        target=target,
        params={**params, **sessions.ownership(session.id), **context.objects(kind, target)},
    )
    verdict, given = judge_undo(context.facts, target)
    return record(context, proposal, (verdict, reason if verdict is Verdict.ALLOWED else given))
