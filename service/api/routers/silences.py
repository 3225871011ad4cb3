"""``/silences``: list, create, preview and end silences."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from outrider.audit import AuditEvent, AuditRecord
from outrider.records.silences import Silence
from service.api.context import Context, Ctx, Lang
from service.api.errors import ConflictError, NotFoundError
from service.api.security import Writer
from service.incidents import silence_preview
from service.incidents.silence_preview import preview_row, row
from service.incidents.silence_request import SilenceBody, silence_of

router = APIRouter(tags=["alerts"])


@router.get("/silences")
def silences(ctx: Ctx) -> list[dict[str, Any]]:
    """Silences that have not ended, with the maintenance windows of the configuration."""
    return silence_preview.rows(ctx.state, ctx.settings.maintenance, ctx.as_of())


@router.post("/silences", status_code=201)
def add_silence(body: SilenceBody, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Silence alerts by rule, entity and matchers."""
    now = ctx.as_of()
    silence = silence_of(body, by, now)
    silence_preview.check(silence)
    ctx.state.add_silence(silence)
    detail = {
        "rule": silence.rule or "",
        "entity": silence.entity.key if silence.entity else "",
        "matchers": ", ".join(map(str, silence.matchers)),
        "comment": silence.comment,
    }
    ctx.state.append_audit([AuditRecord(now, AuditEvent.SILENCED, silence.id, "by_hand", by=by, detail=detail)])
    return row(silence, now)


@router.post("/silences/preview")
def preview_silence(body: SilenceBody, ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """What a silence would mute of what fires now. Changes nothing."""
    now = ctx.as_of()
    silence = silence_of(body, "preview", now)
    return preview_row(silence_preview.preview(ctx.state, silence, ctx.topology(), now), silence, now, lang)


@router.delete("/silences/{silence_id:path}")
def remove_silence(silence_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """End a silence."""
    known = _known(silence_id, ctx)
    if known is not None and known.source:
        raise ConflictError(f"This silence was made in {known.source}.", hint="end it there")
    if not ctx.state.remove_silence(silence_id):
        raise NotFoundError(f"no silence has the id {silence_id!r}", hint="GET /api/v1/silences lists them")
    ctx.state.append_audit([AuditRecord(ctx.as_of(), AuditEvent.UNSILENCED, silence_id, "by_hand", by=by)])
    return {"id": silence_id, "removed": True}


def _known(silence_id: str, ctx: Context) -> Silence | None:
    known = (*ctx.state.silences(ctx.as_of()), *ctx.settings.maintenance)
    return next((silence for silence in known if silence.id == silence_id), None)
