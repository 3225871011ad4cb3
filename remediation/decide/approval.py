"""From a judgement to an action: pending approval, intended, or only on record."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from outrider.model import Action, ActionStatus, DecisionReason, GuardAnswer, Verdict
from remediation.decide.guards import Judgement, Proposal
from remediation.decide.history import action_id

_STATUS = {
    Verdict.ALLOWED: ActionStatus.INTENDED,
    Verdict.ASK: ActionStatus.WAITING_APPROVAL,
    Verdict.REFUSED: ActionStatus.REFUSED,
}


def action(
    proposal: Proposal,
    judgement: Judgement,
    ordinal: int,
    *,
    dry_run: bool,
    now: datetime,
    objections: tuple[GuardAnswer, ...] = (),
    approvals_needed: int = 1,
) -> Action:
    """The action of a proposal. A dry run is intended too: its actuator changes nothing and reports so.

    A recommendation is only proposed: nobody can approve it before it is requested.
    """
    verdict, reason = judgement
    status = ActionStatus.PROPOSED if reason is DecisionReason.AUTONOMY_RECOMMEND else _STATUS[verdict]
    return Action(
        id=action_id(proposal.session, proposal.kind, proposal.target, ordinal),
        session=proposal.session,
        kind=proposal.kind,
        target=proposal.target,
        params=dict(proposal.params),
        because=proposal.because,
        dry_run=dry_run,
        decision=verdict,
        reason=reason,
        status=status,
        decided_at=now,
        detail=next((answer.detail for answer in objections if answer.reason is reason), ""),
        objections=objections,
        approvals_needed=approvals_needed,
    )


def proposed(proposal: Proposal, judgement: Judgement, *, dry_run: bool, now: datetime) -> Action:
    """The action that a proposal would become. It is not recorded."""
    return replace(action(proposal, judgement, 0, dry_run=dry_run, now=now), status=ActionStatus.PROPOSED)


def expired(waiting: Action, now: datetime) -> Action:
    """The action after nobody answered in time."""
    return replace(
        waiting,
        status=ActionStatus.REFUSED,
        decision=Verdict.REFUSED,
        reason=DecisionReason.EXPIRED,
        ended_at=now,
    )


def withdrawn(
    action_: Action,
    now: datetime,
    reason: DecisionReason,
    detail: str = "",
    objections: tuple[GuardAnswer, ...] | None = None,
) -> Action:
    """The action when it is no longer needed. Only effective before it is performed.

    ``reason`` is why it was withdrawn, ``detail`` names what it is about: a check, an owner or a person. ``objections``
    are those of the guards that no longer allow it; None keeps those of the request.
    """
    kept = action_.objections if objections is None else objections
    return replace(action_, status=ActionStatus.CANCELLED, reason=reason, ended_at=now, detail=detail, objections=kept)


def replaced_by(request: Action, newer: Action, now: datetime) -> Action:
    """The request when a newer decision about its step replaces it: a guard refuses it, or it is requested anew."""
    if newer.decision is Verdict.REFUSED:
        return withdrawn(request, now, newer.reason, newer.detail, newer.objections)
    allowed = newer.decision is Verdict.ALLOWED
    return withdrawn(request, now, DecisionReason.APPROVAL_NOT_NEEDED if allowed else DecisionReason.REQUEST_CHANGED)
