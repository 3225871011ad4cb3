"""``/oncall``: teams, schedules, who is on call, and overrides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.records.on_call import ShiftOverride
from service.api.context import Context, Ctx
from service.api.errors import NotFoundError
from service.api.security import Writer
from service.oncall import view
from service.oncall.roster import configured_overrides

router = APIRouter(tags=["on-call"])
_LONGEST_OVERRIDE = timedelta(days=92)


class OverrideBody(BaseModel):
    """Who is on call instead of the scheduled person, and when."""

    model_config = ConfigDict(extra="forbid")
    schedule: str = Field(description="name of the schedule")
    person: str = Field(description="name of the person")
    start: AwareDatetime = Field(description="from when on")
    end: AwareDatetime = Field(description="until when, not included")


@router.get("/oncall")
def oncall(
    ctx: Ctx, days: Annotated[int, Query(ge=1, le=92, description="days of shifts to list")] = 14
) -> dict[str, Any]:
    """Teams, schedules with their shifts and gaps, and overrides."""
    now = ctx.as_of()
    settings, roster = ctx.settings.oncall, ctx.roster(now)
    calendars = {item.schedule: item for item in ctx.state.calendars()}
    schedules = []
    for item in settings.schedules:
        row = view.schedule_json(roster.schedules[item.name], item.timezone, now, days)
        stored = calendars.get(item.name)
        row["calendar"] = None
        if item.calendar is not None:
            row["calendar"] = {
                "read_at": rfc3339(stored.read_at) if stored is not None and stored.read_at is not None else None,
                "error": stored.error if stored is not None else "",
                "unknown": list(ctx.roster.unknown_names(item.name)),
            }
        schedules.append(row)
    configured = [override for item in settings.schedules for override in configured_overrides(item)]
    overrides = [item for item in (*configured, *ctx.state.shift_overrides(now)) if item.end > now]
    return {
        "as_of": rfc3339(now),
        "people": [person.name for person in settings.people],
        "teams": [view.team_json(roster, team, now) for team in roster.teams],
        "schedules": schedules,
        "overrides": [view.override_json(item) for item in sorted(overrides, key=lambda item: (item.start, item.id))],
    }


@router.get("/oncall/who")
def who(
    ctx: Ctx, at: Annotated[AwareDatetime | None, Query(description="time; now if absent")] = None
) -> list[dict[str, Any]]:
    """The shift of every schedule at a time; ``person`` is null in a gap."""
    now = ctx.as_of()
    wanted = view.check_time(at, now) if at is not None else now
    return view.who(ctx.roster(wanted), wanted)


@router.get("/oncall/shifts")
def shifts(
    ctx: Ctx,
    since: Annotated[AwareDatetime | None, Query(description="start; now if absent")] = None,
    days: Annotated[int, Query(ge=1, le=92)] = 14,
) -> list[dict[str, Any]]:
    """The shifts and gaps of every schedule."""
    now = ctx.as_of()
    start = view.check_time(since, now) if since is not None else now
    return view.shifts(ctx.roster(start), start, start + timedelta(days=days))


@router.post("/oncall/overrides", status_code=201)
def add_override(body: OverrideBody, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Put another person on call for a time. A later entry counts before an earlier one."""
    now = ctx.as_of()
    _check(body, ctx, now)
    start, end = body.start.astimezone(UTC), body.end.astimezone(UTC)
    override = ShiftOverride(uuid4().hex, body.schedule, body.person, start, end, by, now)
    ctx.state.add_shift_override(override)
    return view.override_json(override)


@router.delete("/oncall/overrides/{override_id}")
def remove_override(override_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Remove an override. Those of the configuration are removed there."""
    if not ctx.state.remove_shift_override(override_id, by, ctx.as_of()):
        hint = "GET /api/v1/oncall lists them; one of the configuration is removed there"
        raise NotFoundError(f"no stored override has the id {override_id!r}", hint=hint)
    return {"id": override_id, "removed": True}


def _check(body: OverrideBody, ctx: Context, now: datetime) -> None:
    settings = ctx.settings.oncall
    if body.schedule not in [schedule.name for schedule in settings.schedules]:
        raise NotFoundError(f"no schedule is named {body.schedule!r}", hint="GET /api/v1/oncall lists them")
    if body.person not in [person.name for person in settings.people]:
        raise NotFoundError(f"no person is named {body.person!r}", hint="GET /api/v1/oncall lists them")
    if body.end <= body.start:
        raise UsageError("The end must be after the start.")
    if body.end <= now:
        raise UsageError("The override is over already.", hint="name an end in the future")
    if body.end - body.start > _LONGEST_OVERRIDE:
        raise UsageError(
            f"An override lasts {_LONGEST_OVERRIDE.days} days at most.", hint="change the rotation instead"
        )
