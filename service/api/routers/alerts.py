"""``/alerts``: list alerts, resolve them manually."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from outrider.documents import serialization
from outrider.model import AlertState, Priority
from service.api import paging
from service.api.context import Ctx, Lang
from service.api.errors import ConflictError, NotFoundError
from service.api.security import Writer

router = APIRouter(tags=["alerts"])


@router.get("/alerts")
def alerts(
    ctx: Ctx,
    lang: Lang,
    state: Annotated[list[AlertState] | None, Query(description="repeat for several; all when absent")] = None,
    priority: Annotated[list[Priority] | None, Query(description="repeat for several; all when absent")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Alerts, newest first."""
    selected, following = paging.by_key(
        lambda after, count: ctx.state.alerts(states=state, priorities=priority, limit=count, after=after),
        None,
        cursor,
        limit,
    )
    return {"alerts": [serialization.alert(item, lang) for item in selected], "next_cursor": following}


@router.get("/alerts/{fingerprint:path}")
def alert(fingerprint: str, ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """One alert."""
    stored = ctx.state.alert(fingerprint)
    if stored is None:
        raise NotFoundError(f"no alert has the fingerprint {fingerprint!r}", hint="GET /api/v1/alerts lists them")
    return serialization.alert(stored, lang)


@router.post("/alerts/{fingerprint:path}/resolve")
def resolve(fingerprint: str, ctx: Ctx, lang: Lang, by: Writer) -> dict[str, Any]:
    """Resolve an alert manually. It fires again if its condition still holds."""
    if not ctx.state.resolve_alert(fingerprint, by, ctx.as_of()):
        if ctx.state.alert(fingerprint) is None:
            raise NotFoundError(f"no alert has the fingerprint {fingerprint!r}", hint="GET /api/v1/alerts lists them")
        raise ConflictError("The alert is already resolved.")
    return alert(fingerprint, ctx, lang)
