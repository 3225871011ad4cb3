"""On-call schedules and responses as JSON, for the API and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from alerts.oncall.roster import Roster, StepTarget, Team
from alerts.oncall.schedule import Schedule, Shift
from alerts.routing.escalation import Position, assignee_of
from outrider.clock import rfc3339
from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import Incident
from outrider.records.on_call import ShiftOverride
from outrider.records.response import FollowUp, IncidentNote

LONGEST_LIST = timedelta(days=92)
FURTHEST = timedelta(days=366)  # from now, in both directions
_GAP_AHEAD = timedelta(days=28)

Json = dict[str, Any]


def who(roster: Roster, at: datetime) -> list[Json]:
    """The shift of every schedule at a time; ``person`` is null in a gap."""
    return [shift_json(schedule.shift_at(at)) for schedule in roster.schedules.values()]


def shifts(roster: Roster, start: datetime, end: datetime) -> list[Json]:
    """The shifts and gaps of every schedule in a time range."""
    return [shift_json(shift) for schedule in roster.schedules.values() for shift in schedule.shifts(start, end)]


def shift_json(shift: Shift) -> Json:
    """One shift; ``source`` is rotation, calendar, override or gap."""
    return {
        "schedule": shift.schedule,
        "person": shift.person,
        "from": rfc3339(shift.start),
        "to": rfc3339(shift.end),
        "source": shift.source.value,
    }


def check_time(at: datetime, now: datetime) -> datetime:
    """The time. Raises UsageError if it is more than a year away."""
    if abs(at - now) > FURTHEST:
        raise UsageError(f"{rfc3339(at)} is more than {FURTHEST.days} days away", hint="name a time within a year")
    return at


def team_json(roster: Roster, team: Team, now: datetime) -> Json:
    """A team with the people of each step of a ladder now."""
    return {
        "name": team.name,
        "members": list(team.members),
        "lead": team.lead,
        "schedule": team.schedule,
        "layers": sorted(layer.value for layer in team.layers),
        "services": list(team.services),
        **{target.value: list(roster.on_step(team, target, now)) for target in (StepTarget.ON_CALL, StepTarget.SECOND)},
    }


def schedule_json(schedule: Schedule, timezone: str, now: datetime, days: int) -> Json:
    """A schedule with its shifts of the next days, and its gaps within four weeks."""
    return {
        "name": schedule.name,
        "timezone": timezone,
        "now": shift_json(schedule.shift_at(now)),
        "second": schedule.second_at(now),
        "shifts": [shift_json(shift) for shift in schedule.shifts(now, now + timedelta(days=days))],
        "gaps": [shift_json(shift) for shift in schedule.gaps(now, now + _GAP_AHEAD)],
    }


def override_json(override: ShiftOverride) -> Json:
    """An override; those of the configuration have no author."""
    return {
        "id": override.id,
        "schedule": override.schedule,
        "person": override.person,
        "from": rfc3339(override.start),
        "to": rfc3339(override.end),
        "by": override.by or None,
    }


def follow_up_json(item: FollowUp, now: datetime) -> Json:
    """A follow-up."""
    return {
        "id": item.id,
        "incident": item.incident,
        "text": item.text,
        "owner": item.owner,
        "due": item.due.isoformat(),
        "overdue": item.overdue(now),
        "fault": item.fault,
        "entity": serialization.entity(item.entity) if item.entity is not None else None,
        "by": item.by,
        "at": rfc3339(item.at),
        "closed_at": serialization.instant(item.closed_at),
        "closed_by": item.closed_by,
    }


def note_json(note: IncidentNote) -> Json:
    """An entry of a person on an incident."""
    return {
        "id": note.id,
        "kind": note.kind.value,
        "by": note.by,
        "at": rfc3339(note.at),
        "text": note.text,
        "to": note.to or None,
    }


def zone_of(incident: Incident, roster: Roster) -> ZoneInfo:
    """The time zone of the team that responds to an incident, of its owner before the first page; UTC without teams."""
    team = roster.team(Position.of(incident).team) or roster.owner_of(incident)
    return team.zone if team is not None else ZoneInfo("UTC")


def responding_json(incident: Incident, notes: Sequence[IncidentNote]) -> Json:
    """The team, step and people of an incident, and the person whom it is assigned to."""
    position = Position.of(incident)
    return {
        "team": position.team,
        "step": position.step if position.team is not None else None,
        "notified": list(position.notified),
        "assignee": assignee_of(notes),
    }
