"""The summary of a night: what happened to the incidents of a team while most of it was asleep, sent in the morning.

A night is due in the first cycle after its end. The message has the id of the night, so that no other cycle repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from alerts.oncall.roster import Roster, Team
from alerts.routing import wording
from alerts.routing.escalation import NOBODY, Position, Responders
from alerts.routing.routes import NotificationSettings
from outrider.documents.summaries import incident_summary
from outrider.model import Incident, Message, NotifyReason, TimelineEntry
from outrider.text.i18n import Language
from outrider.vocabulary.units import format_duration

_NEWEST = timedelta(days=2)  # nights that ended earlier are not summarized any more
_MOST_INCIDENTS = 20
_MOST_FOLLOW_UPS = 10


@dataclass(frozen=True, slots=True)
class Night:
    """The hours of one night of a team."""

    team: Team
    start: datetime
    end: datetime


def due_nights(roster: Roster, before: datetime | None, now: datetime) -> tuple[Night, ...]:
    """The nights that ended after the previous cycle, the newest one of each team; none in the very first cycle."""
    if before is None:
        return ()
    nights = (_newest(team, max(before, now - _NEWEST), now) for team in roster.teams)
    return tuple(night for night in nights if night is not None)


def _newest(team: Team, after: datetime, now: datetime) -> Night | None:
    if team.night is None:
        return None
    today = now.astimezone(team.zone).date()
    for days in range(_NEWEST.days + 2):
        span = team.night.instants(today - timedelta(days=days), team.zone)
        if span is not None and after < span[1] <= now:
            return Night(team, *span)
    return None


def messages(
    nights: Iterable[Night],
    incidents: Sequence[Incident],
    responders: Responders,
    messaging: NotificationSettings,
    now: datetime,
) -> tuple[Message, ...]:
    """The summaries. ``incidents`` are those open at any time of the nights. A quiet night has no message."""
    result: list[Message] = []
    for night in nights:
        own = [incident for incident in incidents if _entries(incident, night)]
        if own:
            result += _summaries(night, own, responders, messaging.of_team(night.team), now)
    return tuple(result)


def _entries(incident: Incident, night: Night) -> list[TimelineEntry]:
    """The entries of a night in which the incident notified people of the team."""
    return [
        entry
        for entry in incident.timeline
        if entry.arguments.get("team") == night.team.name and night.start <= entry.at < night.end
    ]


def _summaries(
    night: Night,
    incidents: Sequence[Incident],
    responders: Responders,
    messaging: NotificationSettings,
    now: datetime,
) -> list[Message]:
    ordered = sorted(incidents, key=lambda incident: (incident.priority.rank, incident.opened_at, incident.id))
    people = _people(night, ordered, responders.roster)
    result = []
    for channel in messaging.channels_of_groups(messaging.summary_groups):
        language = messaging.language_of(channel)
        title = wording.localize("title.shift_summary", language, team=night.team.name, incidents=len(ordered))
        result.append(
            Message(
                id=f"summary:{night.team.name}:{night.end:%Y%m%dT%H%M}:{channel}",
                channel=channel,
                reason=NotifyReason.SHIFT_SUMMARY,
                priority=None,
                incident=None,
                title=title,
                body="\n".join(_lines(night, ordered, people, responders, messaging, language, now)),
                created_at=now,
                language=language,
                link=f"{messaging.base_url.rstrip('/')}/oncall",
                recipients=responders.roster.recipients(people, channel),
            )
        )
    return result


def _people(night: Night, incidents: Iterable[Incident], roster: Roster) -> dict[str, int]:
    """The people on call in the night and all who were notified, with the number of their notifications."""
    schedule = roster.schedules.get(night.team.schedule or "")
    shifts = schedule.shifts(night.start, night.end) if schedule is not None else ()
    counts: dict[str, int] = {shift.person: 0 for shift in shifts if shift.person is not None}
    for incident in incidents:
        for entry in _entries(incident, night):
            if "reminder" not in entry.arguments:
                for name in entry.arguments.get("people", "").split(", "):
                    counts[name] = counts.get(name, 0) + 1
    return {name: count for name, count in counts.items() if name not in ("", NOBODY)}


def _lines(
    night: Night,
    incidents: Sequence[Incident],
    people: dict[str, int],
    responders: Responders,
    messaging: NotificationSettings,
    language: Language,
    now: datetime,
) -> list[str]:
    def localize(key: str, **arguments: object) -> str:
        return wording.localize(f"summary.{key}", language, **arguments)

    local = [at.astimezone(night.team.zone) for at in (night.start, night.end)]
    lines = [localize("span", start=f"{local[0]:%m-%d %H:%M}", end=f"{local[1]:%m-%d %H:%M}", zone=night.team.zone.key)]
    for incident in incidents[:_MOST_INCIDENTS]:
        lines += _incident_lines(incident, night, language)
        lines.append(localize("link", link=wording.link_to(messaging.base_url, incident.id)))
    if len(incidents) > _MOST_INCIDENTS:
        lines.append(localize("more", count=len(incidents) - _MOST_INCIDENTS))
    lines.append(localize("people"))
    lines += [localize("person", name=name, count=count) for name, count in people.items()]
    due = [item for item in responders.follow_ups if item.overdue(now) and item.owner in (night.team.name, *people)]
    if due:
        lines.append(localize("follow_ups"))
        lines += [
            localize("follow_up", text=item.text, owner=item.owner, due=item.due.isoformat())
            for item in due[:_MOST_FOLLOW_UPS]
        ]
    return lines


def _incident_lines(incident: Incident, night: Night, language: Language) -> list[str]:
    """What happened to one incident: who was notified when, who acknowledged, and how it ended."""

    def localize(key: str, **arguments: object) -> str:
        return wording.localize(f"summary.{key}", language, **arguments)

    def clock(at: datetime) -> str:
        return f"{at.astimezone(night.team.zone):%H:%M}"

    steps = [
        localize("step", at=clock(entry.at), people=entry.arguments["people"])
        for entry in _entries(incident, night)
        if "reminder" not in entry.arguments
    ]
    lines = [
        localize(
            "incident", priority=incident.priority, summary=incident_summary(incident, language, zone=night.team.zone)
        ),
        localize("notified", steps=", ".join(steps)),
    ]
    if incident.acknowledged_at is not None:
        first = next((entry.at for entry in incident.timeline if "step" in entry.arguments), incident.opened_at)
        after = format_duration(incident.acknowledged_at - first)
        lines.append(
            localize("acknowledged", at=clock(incident.acknowledged_at), by=incident.acknowledged_by or "", after=after)
        )
    else:
        lines.append(localize("unacknowledged"))
    if incident.resolved_at is not None:
        lasted = format_duration(incident.resolved_at - incident.opened_at)
        return [*lines, localize("resolved", at=clock(incident.resolved_at), lasted=lasted)]
    return [*lines, localize("open", team=Position.of(incident).team or "")]
