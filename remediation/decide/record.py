"""Turns a judgement into records, so that the same decision is never written twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, Verdict
from remediation.decide import approval, comparisons
from remediation.decide.autonomy import Autonomy
from remediation.decide.context import DecisionContext
from remediation.decide.guards import Judgement, Proposal, answers, is_returning, level_of
from remediation.decide.history import IN_FLIGHT, WAITING, gives_back

# If these reasons for an approval request no longer apply, the request is withdrawn and the action performed.
_DOUBTS = frozenset(
    {
        DecisionReason.LOW_CONFIDENCE,
        DecisionReason.REPORTED_ONLY,
        DecisionReason.NO_HEADROOM,
        DecisionReason.PROTECTED,
        DecisionReason.AUTONOMY_APPROVE,
        DecisionReason.AUTONOMY_RECOMMEND,
    }
)
# Parameters of a request beside its effect: they follow the load, and are measured anew in each cycle.
_MEASURED = {ActionKind.SWITCH_CLUSTER: frozenset({"headroom", "needed", "standby_needs"})}
_SHARES = frozenset({"weights", "share"})
# A change of a share of the traffic by more than this, or than this part of an even share, needs another approval.
_MATERIAL, _OF_EVEN_SHARE, _ROUNDING = 0.1, 0.3, 1e-9


def record(
    context: DecisionContext, proposal: Proposal, judgement: Judgement, *, ordinal: int | None = None
) -> list[Action]:
    """The action of a judgement, and the open approval request that it replaces.

    Empty if the same refusal or request exists already, or the action is in flight. ``ordinal`` is the number of
    earlier decisions of the session about this kind and target, unless given.
    """
    history = context.history
    newest = history.newest(proposal.session, proposal.kind, proposal.target)
    if newest is not None and newest.status in IN_FLIGHT:
        return []
    judgement = within_autonomy(context, proposal, judgement)
    verdict, _ = judgement
    request = newest if newest is not None and newest.status in WAITING else None
    if request is not None and _stands(request, proposal, judgement):
        return []
    if request is None and newest is not None and _was_answered(newest, proposal, judgement):
        return []
    if ordinal is None:
        ordinal = len(history.of(proposal.session, proposal.kind, proposal.target))
    action = _action(context, proposal, judgement, ordinal)
    if verdict is Verdict.ALLOWED and not gives_back(proposal):
        context.budget.enter(proposal)
    return [action] if request is None else [approval.replaced_by(request, action, context.now), action]


def within_autonomy(context: DecisionContext, proposal: Proposal, judgement: Judgement) -> Judgement:
    """The judgement, limited to a recommendation where the level of autonomy says so. Undo has no level."""
    verdict, reason = judgement
    if gives_back(proposal) or verdict is Verdict.REFUSED or is_returning(proposal.kind, reason):
        return judgement
    if level_of(proposal, context.policy, context.facts) is not Autonomy.RECOMMEND:
        return judgement
    return Verdict.ASK, DecisionReason.AUTONOMY_RECOMMEND


def _stands(newest: Action, proposal: Proposal, judgement: Judgement) -> bool:
    """True if an open request or recommendation remains valid."""
    verdict, reason = judgement
    if verdict is Verdict.REFUSED or not _is_same_request(newest, proposal):
        return False
    if newest.requested_by is not None and verdict is Verdict.ASK:
        return True  # a person requested it, whatever the level
    if (newest.reason is DecisionReason.AUTONOMY_RECOMMEND) != (reason is DecisionReason.AUTONOMY_RECOMMEND):
        return False  # the level was changed
    return verdict is Verdict.ASK or newest.reason not in _DOUBTS


def _was_answered(newest: Action, proposal: Proposal, judgement: Judgement) -> bool:
    """True if the same refusal is on record, or nobody answered the same request in time."""
    if newest.status is not ActionStatus.REFUSED:
        return False
    if newest.reason is DecisionReason.EXPIRED:
        return judgement[0] is Verdict.ASK and _is_same_request(newest, proposal)
    return (newest.decision, newest.reason) == judgement


def _is_same_request(newest: Action, proposal: Proposal) -> bool:
    """True if a request still describes what is proposed. Measured numbers may differ a little in each cycle."""
    ignored = _MEASURED.get(proposal.kind, frozenset())
    before, after = (
        {key: value for key, value in params.items() if key not in ignored | _SHARES}
        for params in (newest.params, proposal.params)
    )
    return before == after and _have_similar_shares(newest.params, proposal.params)


def _have_similar_shares(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """True if the traffic is shared alike between the same replicas or clusters.

    The limit shrinks with the number of replicas: of many, each has a small share.
    """
    shares, others = _shares(before), _shares(after)
    if shares.keys() != others.keys():
        return False
    limit = min(_MATERIAL, _OF_EVEN_SHARE / max(1, len(shares))) + _ROUNDING
    return all(abs(shares[name] - others[name]) <= limit for name in shares)


def _shares(params: Mapping[str, Any]) -> dict[str, float]:
    """The shares of the traffic that an action sets: by replica, or that of a cluster."""
    weights = {str(name): float(weight) for name, weight in (params.get("weights") or {}).items()}
    total = sum(weights.values())
    result = {f"replica {name}": weight / total if total else 0.0 for name, weight in weights.items()}
    return result if "share" not in params else {**result, "cluster": float(params["share"])}


def _action(context: DecisionContext, proposal: Proposal, judgement: Judgement, ordinal: int) -> Action:
    policy, undo = context.policy, gives_back(proposal)
    given = answers(proposal, policy, context.facts, context.history, context.budget, context.now)
    objections = () if undo else tuple(answer for answer in given if answer.verdict is not Verdict.ALLOWED)
    objections = comparisons.explained(context, proposal, objections)
    return approval.action(
        proposal,
        judgement,
        ordinal,
        dry_run=policy.dry_run,
        now=context.now,
        objections=objections,
        approvals_needed=2 if proposal.kind in policy.two_person and not undo else 1,
    )
