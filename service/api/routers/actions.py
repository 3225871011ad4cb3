"""``/actions``, ``/remediation`` and ``/audit``: actions taken, pending approvals, audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from outrider.documents import serialization
from service.api import paging
from service.api.context import Context, Ctx
from service.api.errors import ConflictError, NotFoundError
from service.api.security import Writer

router = APIRouter(tags=["actions"])


@router.get("/actions")
def actions(
    ctx: Ctx,
    incident: Annotated[str | None, Query(description="only those of one incident")] = None,
    since: Annotated[AwareDatetime | None, Query(description="only those decided at or after this time")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Actions, newest first: taken, refused and waiting ones."""
    selected, following = paging.by_key(
        lambda after, count: ctx.state.actions(incident=incident, since=since, limit=count, after=after),
        None,
        cursor,
        limit,
    )
    return {"actions": [serialization.action(action) for action in selected], "next_cursor": following}


@router.post("/actions/{action_id:path}/approve")
def approve(action_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Approve a waiting action."""
    return _decide(ctx, action_id, True, by)


@router.post("/actions/{action_id:path}/reject")
def reject(action_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Reject a waiting action."""
    return _decide(ctx, action_id, False, by)


@router.post("/session")
def session(by: Writer) -> dict[str, str]:
    """Check the token, and return the name under which writes are recorded. Changes nothing."""
    return {"by": by}


@router.get("/remediation")
def remediation(ctx: Ctx) -> dict[str, Any]:
    """Pause state of remediation, and its open sessions."""
    return {
        "paused": ctx.state.paused(),
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


@router.get("/audit")
def audit(ctx: Ctx, limit: paging.Limit = 100, cursor: paging.Cursor = "") -> dict[str, Any]:
    """Audit records, newest first."""
    records, following = paging.by_key(lambda after, count: ctx.state.audit(count, after), None, cursor, limit)
    return {"audit": [serialization.audit(record) for record in records], "next_cursor": following}


def _decide(ctx: Context, action_id: str, approved: bool, by: str) -> dict[str, Any]:
    if not ctx.state.decide_action(action_id, approved, by, ctx.as_of()):
        if ctx.state.action(action_id) is None:
            raise NotFoundError(f"no action has the id {action_id!r}", hint="GET /api/v1/actions lists them")
        raise ConflictError("The action does not wait for approval.", hint="GET /api/v1/actions shows its status")
    action = ctx.state.action(action_id)
    return serialization.action(action) if action else {"id": action_id}


def _set_paused(ctx: Context, paused: bool, by: str) -> dict[str, Any]:
    ctx.state.set_paused(paused, by, ctx.as_of())
    return {"paused": paused}
