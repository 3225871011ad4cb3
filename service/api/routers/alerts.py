"""``/alerts`` and ``/silences``: list alerts, resolve and silence manually."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from outrider.audit import AuditEvent, AuditRecord
from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import AlertState, EntityKind, EntityRef, Priority
from outrider.ports import Silence
from service.api import paging
from service.api.context import Ctx, Lang
from service.api.errors import ConflictError, NotFoundError
from service.api.security import Writer

router = APIRouter(tags=["alerts"])


class EntityBody(BaseModel):
    """Entity by cluster, kind, namespace and name."""

    model_config = ConfigDict(extra="forbid")
    cluster: str
    kind: EntityKind
    namespace: str | None = None
    name: str


class SilenceBody(BaseModel):
    """Rule or entity to silence, and for how long."""

    model_config = ConfigDict(extra="forbid")
    rule: str | None = Field(None, description="rule to mute; null mutes every rule of the entity")
    entity: EntityBody | None = Field(None, description="entity to mute; null mutes the rule everywhere")
    duration_seconds: float = Field(gt=0, le=30 * 86400, description="from now; at most 30 days")
    comment: str = Field("", max_length=500)


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


@router.get("/silences")
def silences(ctx: Ctx) -> list[dict[str, Any]]:
    """Active silences."""
    return [_silence(silence) for silence in ctx.state.silences(ctx.as_of())]


@router.post("/silences", status_code=201)
def add_silence(body: SilenceBody, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Silence a rule, an entity, or a rule on one entity."""
    if body.rule is None and body.entity is None:
        raise UsageError("A silence needs a rule, an entity or both.", hint="silencing everything is not supported")
    now = ctx.as_of()
    target = body.entity
    entity = EntityRef(target.cluster, target.kind, target.namespace, target.name) if target else None
    until = now + timedelta(seconds=body.duration_seconds)
    silence = Silence(uuid4().hex, body.rule, entity, until, by, body.comment)
    ctx.state.add_silence(silence)
    detail = {"rule": body.rule or "", "entity": entity.key if entity else "", "comment": body.comment}
    ctx.state.append_audit([AuditRecord(now, AuditEvent.SILENCED, silence.id, "by_hand", by=by, detail=detail)])
    return _silence(silence)


@router.delete("/silences/{silence_id}")
def remove_silence(silence_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """End a silence."""
    if not ctx.state.remove_silence(silence_id):
        raise NotFoundError(f"no silence has the id {silence_id!r}", hint="GET /api/v1/silences lists them")
    ctx.state.append_audit([AuditRecord(ctx.as_of(), AuditEvent.UNSILENCED, silence_id, "by_hand", by=by)])
    return {"id": silence_id, "removed": True}


def _silence(silence: Silence) -> dict[str, Any]:
    return {
        "id": silence.id,
        "rule": silence.rule,
        "entity": serialization.entity(silence.entity) if silence.entity else None,
        "until": serialization.instant(silence.until),
        "by": silence.by,
        "comment": silence.comment,
    }
