"""``/notifications``: messages that could not be delivered."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from outrider.documents import serialization
from outrider.model import DeadLetter
from service.api import paging
from service.api.context import Ctx
from service.api.errors import NotFoundError
from service.api.security import Writer

router = APIRouter(tags=["notifications"])


@router.get("/notifications/dead-letters")
def dead_letters(ctx: Ctx, limit: paging.Limit = 100, cursor: paging.Cursor = "") -> dict[str, Any]:
    """Messages that could not be delivered and are not retried any more, newest first."""
    letters: tuple[DeadLetter, ...] = ctx.state.dead_letters(limit=limit + 1, after=paging.position_in(cursor))
    shown = letters[:limit]
    following = paging.cursor_of(shown[-1].message) if len(letters) > limit else None
    return {"dead_letters": [serialization.dead_letter(letter) for letter in shown], "next_cursor": following}


@router.post("/notifications/dead-letters/{message_id:path}/retry")
def retry(message_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Send a message again that could not be delivered."""
    if not ctx.state.retry_message(message_id, by, ctx.as_of()):
        hint = "GET /api/v1/notifications/dead-letters lists them"
        raise NotFoundError(f"no dead letter has the id {message_id!r}", hint=hint)
    return {"id": message_id, "retried": True}
