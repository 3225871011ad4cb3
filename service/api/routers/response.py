"""Responses of people to incidents: comments, assignment, escalation, and ``/follow-ups``."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import UsageError
from outrider.model import Incident
from outrider.records.response import MOST_TEXT, FollowUp, IncidentNote, NoteKind
from service.api import paging
from service.api.context import Context, Ctx
from service.api.errors import ConflictError, NotFoundError
from service.api.routers import incidents
from service.api.security import Writer
from service.oncall import view

router = APIRouter(tags=["incidents"])
_MICROSECOND = timedelta(microseconds=1)
_FOLLOW_UP_HINT = "GET /api/v1/follow-ups lists them"


class CommentBody(BaseModel):
    """A comment."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=MOST_TEXT)


class AssignmentBody(BaseModel):
    """The person who takes care of an incident."""

    model_config = ConfigDict(extra="forbid")
    to: str = Field(max_length=64, description="name of the person; empty: nobody any more")


class FollowUpBody(BaseModel):
    """Work that remains after an incident."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(min_length=1, max_length=MOST_TEXT)
    owner: str = Field(min_length=1, max_length=64, description="person or team that does it")
    due: date = Field(description="due date, as 2026-11-20")


class FollowUpChange(BaseModel):
    """New values of a follow-up; absent ones stay."""

    model_config = ConfigDict(extra="forbid")
    text: str | None = Field(None, min_length=1, max_length=MOST_TEXT)
    owner: str | None = Field(None, min_length=1, max_length=64)
    due: date | None = None


@router.post("/incidents/{incident_id}/comments", status_code=201)
def comment(incident_id: str, body: CommentBody, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Comment an incident, open or resolved."""
    return _added(ctx, incidents.known(ctx, incident_id), NoteKind.COMMENT, by, text=body.text)


@router.post("/incidents/{incident_id}/assign", status_code=201)
def assign(incident_id: str, body: AssignmentBody, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Assign an incident to a person, who is notified. It no longer moves to another team by itself."""
    people = [person.name for person in ctx.settings.oncall.people]
    if people and body.to and body.to not in people:
        raise UsageError(f"no person is named {body.to!r}", hint=f"oncall.people has: {', '.join(people)}")
    return _added(ctx, _open(ctx, incident_id), NoteKind.ASSIGNMENT, by, to=body.to)


@router.post("/incidents/{incident_id}/escalate", status_code=201)
def escalate(incident_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Notify the next step of the ladder now, even if the incident is acknowledged."""
    if not ctx.settings.oncall.teams:
        raise ConflictError("No team is configured, so there is nobody to escalate to.", hint="set oncall.teams")
    return _added(ctx, _open(ctx, incident_id), NoteKind.ESCALATION, by)


@router.post("/incidents/{incident_id}/follow-ups", status_code=201)
def add_follow_up(incident_id: str, body: FollowUpBody, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Add a follow-up. The same fault on the same entity then refers to it while it is open, and some time after."""
    cause = incidents.known(ctx, incident_id).suspected_cause
    follow_up = FollowUp(
        id=uuid4().hex,
        incident=incident_id,
        text=body.text,
        owner=body.owner,
        due=body.due,
        by=by,
        at=ctx.as_of(),
        fault=cause.fault if cause is not None else None,
        entity=cause.entity if cause is not None else None,
    )
    return _saved(ctx, follow_up, by)


@router.get("/follow-ups")
def follow_ups(
    ctx: Ctx,
    open_only: Annotated[bool, Query(alias="open", description="only those not closed")] = False,
    incident: Annotated[str | None, Query(description="only those of one incident")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Follow-ups, newest first."""
    selected, following = paging.by_key(
        lambda after, count: ctx.state.follow_ups(open_only=open_only, incident=incident, limit=count, after=after),
        None,
        cursor,
        limit,
    )
    now = ctx.as_of()
    return {"follow_ups": [view.follow_up_json(item, now) for item in selected], "next_cursor": following}


@router.post("/follow-ups/{follow_up_id}")
def change_follow_up(follow_up_id: str, body: FollowUpChange, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Change text, owner or due date of an open follow-up."""
    changes = body.model_dump(exclude_none=True)
    if not changes:
        raise UsageError("Nothing to change.", hint="send text, owner or due")
    return _saved(ctx, replace(_open_follow_up(ctx, follow_up_id), **changes), by)


@router.post("/follow-ups/{follow_up_id}/close")
def close_follow_up(follow_up_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Close a follow-up."""
    return _saved(ctx, replace(_open_follow_up(ctx, follow_up_id), closed_at=ctx.as_of(), closed_by=by), by)


def add_note(ctx: Context, note: IncidentNote) -> None:
    """Adds an entry. Raises NotFoundError if its incident was deleted meanwhile."""
    if not ctx.state.add_note(note):
        raise NotFoundError(f"no incident has the id {note.incident!r}", hint="GET /api/v1/incidents lists them")


def _added(
    ctx: Context, incident: Incident, kind: NoteKind, by: str, *, text: str = "", to: str = ""
) -> dict[str, Any]:
    note = IncidentNote(uuid4().hex, incident.id, kind, by, _next_time(ctx, incident), text, to)
    add_note(ctx, note)
    return view.note_json(note)


def _next_time(ctx: Context, incident: Incident) -> datetime:
    """The time of the newest cycle, but after every earlier entry: of two assignments the later one counts."""
    earlier = ctx.state.notes([incident.id])
    return max([ctx.as_of(), *(note.at + _MICROSECOND for note in earlier[-1:])])


def _saved(ctx: Context, follow_up: FollowUp, by: str) -> dict[str, Any]:
    ctx.state.save_follow_up(follow_up, by, ctx.as_of())
    return view.follow_up_json(follow_up, ctx.as_of())


def _open(ctx: Context, incident_id: str) -> Incident:
    incident = incidents.known(ctx, incident_id)
    if incident.resolved_at is not None:
        raise ConflictError("The incident is already resolved.", hint="add a comment or a follow-up instead")
    return incident


def _open_follow_up(ctx: Context, follow_up_id: str) -> FollowUp:
    found = ctx.state.follow_up(follow_up_id)
    if found is None:
        raise NotFoundError(f"no follow-up has the id {follow_up_id!r}", hint=_FOLLOW_UP_HINT)
    if found.closed_at is not None:
        raise ConflictError("The follow-up is already closed.", hint=_FOLLOW_UP_HINT)
    return found
