"""From a judgement to an action: what waits for a person, what is intended, what is only on record."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from outrider.model import Action, ActionStatus, DecisionReason, Verdict
from remediation.decide.guards import Judgement, Proposal
from remediation.decide.history import action_id

_STATUS = {
    Verdict.ALLOWED: ActionStatus.INTENDED,
    Verdict.ASK: ActionStatus.WAITING_APPROVAL,
    Verdict.REFUSED: ActionStatus.REFUSED,
}


def action(proposal: Proposal, judgement: Judgement, ordinal: int, *, dry_run: bool, now: datetime) -> Action:
    """The action of a proposal. A dry run is intended too: its performer changes nothing and says so."""
    verdict, reason = judgement
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
        status=_STATUS[verdict],
        decided_at=now,
    )


def approved(waiting: Action, by: str, now: datetime) -> Action:
    """A person said yes: the action is intended."""
    return replace(
        waiting,
        status=ActionStatus.INTENDED,
        decision=Verdict.ALLOWED,
        reason=DecisionReason.APPROVED,
        approved_by=by,
        decided_at=now,
    )


def rejected(waiting: Action, by: str, now: datetime) -> Action:
    """A person said no: it is not proposed again in this session."""
    return replace(
        waiting,
        status=ActionStatus.REFUSED,
        decision=Verdict.REFUSED,
        reason=DecisionReason.REJECTED_BY_HAND,
        approved_by=by,
        ended_at=now,
    )


def cancelled(action_: Action, now: datetime, reason: DecisionReason, detail: str = "") -> Action:
    """No longer wanted. Takes effect only where nobody has begun to perform it."""
    return replace(action_, status=ActionStatus.CANCELLED, reason=reason, ended_at=now, detail=detail)
