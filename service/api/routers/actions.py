"""``/actions``, ``/remediation`` and ``/audit``: actions taken, pending approvals, audit log."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from outrider.documents import serialization
from outrider.model import Action, ActionStatus
from outrider.text.i18n import Language
from outrider.wire.cursors import Position
from service.api import paging
from service.api.context import Context, Ctx, Lang
from service.api.errors import ConflictError, NotFoundError
from service.api.security import ANONYMOUS, Writer
from service.engine.kill_switch import KillSwitch
from service.incidents import degrade_restore, incident_actions

router = APIRouter(tags=["actions"])
_PENDING = (ActionStatus.PROPOSED, ActionStatus.WAITING_APPROVAL)
_MOST_PENDING = 50
_NAME_HINT = "send your name in the header X-Outrider-User, enter it on the dashboard, or use --as NAME"
_REQUEST = "outrider remediate request"
_NOT_WAITING = "The action does not wait for approval."
_STATUS_HINT = "GET /api/v1/actions shows its status"


@router.get("/actions")
def actions(
    ctx: Ctx,
    lang: Lang,
    incident: Annotated[
        str | None, Query(description="only those of one incident, and scalings of its services while it lasted")
    ] = None,
    since: Annotated[AwareDatetime | None, Query(description="only those decided at or after this time")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Actions, newest first: taken, refused and waiting ones."""

    def read(after: Position | None, count: int) -> Sequence[Action]:
        if incident is None:
            return ctx.state.actions(since=since, limit=count, after=after)
        own = (action for action in _of_incident(ctx, incident) if since is None or action.decided_at >= since)
        return [item for item in own if after is None or (item.decided_at, item.id) < (after.at, after.id)][:count]

    selected, following = paging.by_key(read, None, cursor, limit)
    return {"actions": [serialization.action(action, lang) for action in selected], "next_cursor": following}


def _of_incident(ctx: Context, incident_id: str) -> Sequence[Action]:
    incident = ctx.state.incident(incident_id)
    return () if incident is None else incident_actions.of_incident(ctx.state, incident, ctx.topology())


@router.post("/actions/{action_id:path}/approve")
def approve(action_id: str, ctx: Ctx, lang: Lang, by: Writer) -> dict[str, Any]:
    """Approve a waiting action."""
    return decide(ctx, action_id, lang, by, approved=True)


@router.post("/actions/{action_id:path}/request")
def request(action_id: str, ctx: Ctx, lang: Lang, by: Writer) -> dict[str, Any]:
    """Request approval of a recommended or expired action. Of two approvals, none may be by the person who requests."""
    if not ctx.state.request_action(action_id, by, ctx.as_of()):
        known(ctx, action_id)
        raise ConflictError("The action is neither recommended nor expired, or it is over.", hint=_STATUS_HINT)
    return serialization.action(known(ctx, action_id), lang)


@router.post("/actions/{action_id:path}/reject")
def reject(action_id: str, ctx: Ctx, lang: Lang, by: Writer) -> dict[str, Any]:
    """Reject a waiting action."""
    return decide(ctx, action_id, lang, by, approved=False)


@router.post("/session")
def session(by: Writer) -> dict[str, str]:
    """Check the token, and return the name under which writes are recorded. Changes nothing."""
    return {"by": by}


@router.get("/remediation")
def remediation(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """Pause, kill switch and breaker of remediation, pending approvals, and open sessions."""
    return {
        **remediation_state(ctx),
        "pending": [
            serialization.action(action, lang) for action in ctx.state.actions(statuses=_PENDING, limit=_MOST_PENDING)
        ],
        "sessions": [
            {
                "id": open_session.id,
                "incident": open_session.incident,
                "opened_at": serialization.instant(open_session.opened_at),
                "closed_at": serialization.instant(open_session.closed_at),
                "cordoned": [serialization.entity(node) for node in open_session.cordoned],
            }
            for open_session in ctx.state.sessions()
        ],
    }


@router.post("/remediation/pause")
def pause(ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Pause actions; detection and recommendations continue."""
    return _set_paused(ctx, True, by)


@router.post("/remediation/resume")
def resume(ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Resume actions within the limits."""
    return _set_paused(ctx, False, by)


@router.post("/remediation/breaker/reset")
def reset_breaker(ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Close the breaker: actions are performed again, and earlier ones no longer count."""
    if not ctx.state.reset_breaker(by, ctx.as_of()):
        raise ConflictError("The breaker is not open.", hint="GET /api/v1/remediation shows it")
    return serialization.breaker(ctx.state.breaker())


@router.post("/remediation/services/{service:path}/restore")
def restore(service: str, ctx: Ctx, lang: Lang, by: Writer) -> dict[str, Any]:
    """End the degrade level of a service. Needs a name. Its open incident degrades the service no more."""
    if by == ANONYMOUS:
        raise ConflictError("To restore a service needs a name.", hint=_NAME_HINT)
    if ctx.settings.dry_run:
        raise ConflictError("remediation.dry_run is on, so nothing can be restored.", hint="set it to false")
    return serialization.action(degrade_restore.restore(ctx.state, service, by, ctx.as_of()), lang)


@router.get("/audit")
def audit(ctx: Ctx, limit: paging.Limit = 100, cursor: paging.Cursor = "") -> dict[str, Any]:
    """Audit records, newest first."""
    records, following = paging.by_key(lambda after, count: ctx.state.audit(count, after), None, cursor, limit)
    return {"audit": [serialization.audit(record) for record in records], "next_cursor": following}


def remediation_state(ctx: Context) -> dict[str, Any]:
    """Pause, kill switch and breaker of remediation, and its general level of autonomy."""
    file = ctx.settings.kill_switch_file
    return {
        "paused": ctx.state.paused(),
        "kill_switch": {"file": str(file) if file else None, "on": KillSwitch(file).is_on()},
        "breaker": serialization.breaker(ctx.state.breaker()),
        "autonomy": ctx.settings.autonomy,
        "dry_run": ctx.settings.dry_run,
    }


def decide(ctx: Context, action_id: str, lang: Language, by: str, *, approved: bool) -> dict[str, Any]:
    """Approves or rejects a waiting action. Raises NotFoundError or ConflictError."""
    before = known(ctx, action_id)
    objection = approval_objection(before, by) if approved else None
    if objection is not None:
        raise _conflict(objection, before, by)
    if not ctx.state.decide_action(action_id, approved, by, ctx.as_of()):
        raise ConflictError(_NOT_WAITING, hint=_STATUS_HINT)
    return serialization.action(known(ctx, action_id), lang)


class ApprovalObjection(StrEnum):
    """Why the approval of a person does not count."""

    RECOMMENDED = "recommended"
    NOT_WAITING = "not_waiting"
    NAMELESS = "two_people"
    REQUESTED = "requested_already"
    APPROVED = "approved_already"


def approval_objection(action: Action, by: str) -> ApprovalObjection | None:
    """Why the approval of this person does not count; None if it does."""
    if action.status is ActionStatus.PROPOSED:
        return ApprovalObjection.RECOMMENDED
    if action.status is not ActionStatus.WAITING_APPROVAL:
        return ApprovalObjection.NOT_WAITING
    if action.approvals_needed > 1 and by == ANONYMOUS:
        return ApprovalObjection.NAMELESS
    if action.counts_approval_of(by):
        return None
    return ApprovalObjection.APPROVED if by in action.approvals else ApprovalObjection.REQUESTED


def _conflict(objection: ApprovalObjection, action: Action, by: str) -> ConflictError:
    another = "another person must approve it"
    message, hint = {
        ApprovalObjection.RECOMMENDED: (
            "The action is only recommended.",
            f"request it first: {_REQUEST} {action.id}",
        ),
        ApprovalObjection.NOT_WAITING: (_NOT_WAITING, _STATUS_HINT),
        ApprovalObjection.NAMELESS: (
            "Two people must approve this action, so an approval needs a name.",
            _NAME_HINT,
        ),
        ApprovalObjection.REQUESTED: (f"{by} has requested this action already.", another),
        ApprovalObjection.APPROVED: (f"{by} has approved this action already.", another),
    }[objection]
    return ConflictError(message, hint=hint)


def known(ctx: Context, action_id: str) -> Action:
    """The action. Raises NotFoundError."""
    action = ctx.state.action(action_id)
    if action is None:
        raise NotFoundError(f"no action has the id {action_id!r}", hint="GET /api/v1/actions lists them")
    return action


def _set_paused(ctx: Context, paused: bool, by: str) -> dict[str, Any]:
    ctx.state.set_paused(paused, by, ctx.as_of())
    return {"paused": paused}
