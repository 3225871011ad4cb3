"""Turns a judgement into records, so that the same decision is never written twice."""

from __future__ import annotations

from outrider.model import Action, ActionStatus, DecisionReason, Verdict
from remediation.decide import approval
from remediation.decide.context import DecisionContext
from remediation.decide.guards import Judgement, Proposal
from remediation.decide.history import IN_FLIGHT, WAITING, gives_back

# If these reasons for an approval request no longer apply, the request is withdrawn and the action performed.
_DOUBTS = frozenset({DecisionReason.LOW_CONFIDENCE, DecisionReason.NO_HEADROOM})


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
    verdict, _ = judgement
    replaced: list[Action] = []
    if newest is not None and newest.status in WAITING:
        same = dict(newest.params) == dict(proposal.params)
        resolved = verdict is Verdict.ALLOWED and newest.reason in _DOUBTS
        if same and not resolved and verdict is not Verdict.REFUSED:
            return []
        replaced = [approval.cancelled(newest, context.now, newest.reason, "replaced by a newer decision")]
    elif newest is not None and newest.status is ActionStatus.REFUSED and (newest.decision, newest.reason) == judgement:
        return []
    if ordinal is None:
        ordinal = len(history.of(proposal.session, proposal.kind, proposal.target))
    action = approval.action(proposal, judgement, ordinal, dry_run=context.policy.dry_run, now=context.now)
    if verdict is Verdict.ALLOWED and not gives_back(action):
        context.budget.enter(proposal)
    return [*replaced, action]
