"""``/drills``: break the simulated fleet that is watched, and see the truth beside what was found."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import UnavailableError, UsageError
from outrider.records.drill import Drill
from service.api.context import Context, Ctx
from service.api.errors import ConflictError, NotFoundError
from service.api.security import Writer
from service.drills import running_platform
from service.drills.control import FaultControl

router = APIRouter(tags=["drills"])


class Order(BaseModel):
    """What to break. Without ``entity`` the seed chooses one."""

    model_config = ConfigDict(extra="forbid")
    fault: str = Field(description="a fault id")
    entity: str | None = Field(None, description="its name, or cluster/kind/namespace/name")
    seconds: Annotated[float | None, Field(gt=0, le=86400)] = Field(None, description="how long; the fault's own time")
    seed: int = Field(0, ge=0, description="chooses entity and magnitude")


@router.get("/drills")
def drills(ctx: Ctx, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> dict[str, Any]:
    """Drills, newest first, each with the truth beside what was found; and the faults that can be ordered."""
    possible, known, told = True, [], []
    why = ""
    try:
        control = _control(ctx)
        known, told = control.known(), control.listed()
    except (UnavailableError, ConflictError) as error:
        possible, why = False, f"{error.message}; {error.hint}" if error.hint else error.message
    return {
        "possible": possible,
        "why_not": why or None,
        "known": known,
        "drills": _judged(ctx, told)[:limit],
    }


@router.get("/drills/{drill_id}")
def drill(drill_id: str, ctx: Ctx) -> dict[str, Any]:
    """One drill."""
    found = next((one for one in _judged(ctx, _told(ctx)) if one["id"] == drill_id), None)
    if found is None:
        raise _unknown(drill_id)
    return found


@router.post("/drills")
def start(order: Order, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Break something now."""
    asked = order.model_dump(exclude_none=True)
    begun = running_platform.start(ctx.state, _control(ctx), asked, by=by, now=ctx.as_of())
    return drill(begun.id, ctx)


@router.post("/drills/{drill_id}/stop")
def stop(drill_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """End a drill before its time; the fleet is put right."""
    running_platform.stop(ctx.state, _control(ctx), _known(ctx, drill_id), by=by, now=ctx.as_of())
    return drill(drill_id, ctx)


def _known(ctx: Context, drill_id: str) -> Drill:
    found = next((one for one in _visible(ctx) if one.id == drill_id), None)
    if found is None:
        raise _unknown(drill_id)
    return found


def _judged(ctx: Context, told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All together, whatever is asked for: what one drill's incident is depends on the others."""
    return running_platform.judged(ctx.state, _visible(ctx), told)


def _visible(ctx: Context) -> list[Drill]:
    """Every drill, newest first, less those of game days that have not begun: nobody shall know beforehand."""
    now = ctx.as_of()
    return [one for one in ctx.state.drills() if one.game_day is None or one.starts_at <= now]


def _unknown(drill_id: str) -> NotFoundError:
    return NotFoundError(f"no drill has the id {drill_id!r}", hint="GET /api/v1/drills lists them")


def _told(ctx: Context) -> list[dict[str, Any]]:
    try:
        return _control(ctx).listed()
    except (UnavailableError, UsageError, ConflictError):
        return []


def _control(ctx: Context) -> FaultControl:
    if ctx.settings.control_url is None:
        raise ConflictError(
            "This platform watches no simulated fleet, so nothing is broken on purpose.",
            hint="outrider demo watches one; outrider drill run uses a private one",
        )
    return FaultControl(ctx.settings.control_url)
