"""On-call: people, teams, schedules, ladders of escalation, buttons of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from alerts.oncall.roster import StepTarget
from alerts.routing.escalation import LADDERS, Ladder
from outrider.errors import ConfigProblem
from outrider.model import Layer, Priority
from outrider.text import install_hints, yaml_file
from service.config.settings_base import Duration, PositiveDuration, Section, TimeZone, duplicate_names
from service.config.time_span_settings import HoursSettings
from service.config.wall_times import DateAndTime, TimeOfDay

Group = Literal["phone", "sms", "im", "mail", "report"]
LONGEST_BUTTON = timedelta(days=7)
CALENDAR_LIBRARY = "recurring_ical_events"  # of the extra calendar
_Step = Literal["on_call", "second", "lead", "team"]
_Layer = Literal["hardware", "platform", "engine", "traffic", "business", "monitoring"]
_Escalated = Literal["P0", "P1", "P2"]


Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^,\n]+$")]
Mention = Annotated[str, Field(max_length=64, pattern=r"^[\w.@+:-]*$")]  # it becomes markup of the channel
Phone = Annotated[str, Field(pattern=r"^\+[0-9][0-9 ()-]{5,24}$")]


class ContactSettings(Section):
    """The address of a person on one channel."""

    channel: str = Field(description="Name of the channel, as under notify.channels.", examples=["ding"])
    mention: Mention = Field(
        "", description="User id or phone number that the channel mentions.", examples=['"13800000001"']
    )
    phone: Phone | None = Field(
        None, description="Phone number on this channel. Default: that of the person.", examples=['"+8613800000001"']
    )
    email: str = Field(
        "", description="Address on this channel. Default: that of the person.", examples=["li@example.org"]
    )


class PersonSettings(Section):
    """A person who can be paged."""

    name: Name = Field(description="Name in messages, schedules and the audit log; without a comma.", examples=["li"])
    phone: Phone | None = Field(
        None, description="Phone number with + and the country code, for calls and SMS.", examples=['"+8613800000000"']
    )
    email: str = Field(
        "", description="E-mail address; also finds the person in calendars.", examples=["li@example.org"]
    )
    calendar_names: list[str] = Field(
        [], description="Further names of the person in calendars.", examples=["[Li Lei, lilei]"]
    )
    contacts: list[ContactSettings] = Field(
        [], description="Addresses on single channels.", examples=['[{channel: ding, mention: "13800000001"}]']
    )


class RotationSettings(Section):
    """People who take turns."""

    name: Name = Field("rotation", description="Name.")
    people: list[str] = Field(
        description="Names of people, in the order of their turns.", examples=["[li, wang]"], min_length=1
    )
    start: date = Field(description="Day of the first handover, to the first person.", examples=["2026-11-23"])
    handover: TimeOfDay = Field(time(9), description="Time of day of a handover.")
    days: Annotated[int, Field(ge=1, le=366)] = Field(7, description="Length of a shift in days.")
    timezone: TimeZone | None = Field(
        None, description="Time zone of handovers. Default: that of the schedule.", examples=["America/New_York"]
    )
    hours: list[HoursSettings] = Field(
        [], description="Hours on duty. Default: the whole day.", examples=['[{start: "08:00", end: "20:00"}]']
    )


class OverrideSettings(Section):
    """A person who is on call instead of the scheduled one."""

    person: str = Field(description="Name of the person.", examples=["wang"])
    start: DateAndTime = Field(description="Start.", examples=['"2026-12-24 18:00"'])
    end: DateAndTime = Field(description="End, not included.", examples=['"2026-12-26 09:00"'])


class CalendarSettings(Section):
    """A calendar (RFC 5545) with the shifts of a schedule. It counts before the rotations."""

    file: Path | None = Field(None, description="Path of an .ics file.", examples=["/etc/outrider/duty.ics"])
    url: str | None = Field(
        None,
        description="URL of a calendar that is not secret.",
        examples=["https://calendar.example.org/duty.ics"],
        pattern=r"^https?://",
    )
    url_file: Path | None = Field(
        None,
        description="File with the URL of a calendar, for a URL that is secret.",
        examples=["/run/secrets/duty-calendar"],
    )
    every: Duration = Field(timedelta(minutes=15), description="How often it is read again.")

    @model_validator(mode="after")
    def _one_source(self) -> CalendarSettings:
        if sum(source is not None for source in (self.file, self.url, self.url_file)) != 1:
            raise ValueError("needs one of file, url and url_file")
        if self.every < timedelta(minutes=1):
            raise ValueError("every must be 1m or longer")
        return self


class ScheduleSettings(Section):
    """An on-call schedule."""

    name: Name = Field(description="Name.", examples=["model"])
    timezone: TimeZone = Field("UTC", description="Time zone of handovers and overrides, for example Asia/Shanghai.")
    rotations: list[RotationSettings] = Field(
        [],
        description="Rotations. Of several on duty at a time, the last one counts.",
        examples=["[{people: [li, wang], start: 2026-11-23}]"],
    )
    overrides: list[OverrideSettings] = Field(
        [],
        description="Overrides; others are added on the dashboard.",
        examples=['[{person: wang, start: "2026-12-24 18:00", end: "2026-12-26 09:00"}]'],
    )
    calendar: CalendarSettings | None = Field(
        None,
        description="Calendar to import. Needs the extra calendar.",
        examples=["{url_file: /run/secrets/duty-calendar}"],
    )


class TeamSettings(Section):
    """A team that owns incidents. The first team also owns those of no other team."""

    name: Name = Field(description="Name.", examples=["model"])
    members: list[str] = Field([], description="Names of people.", examples=["[li, wang]"])
    lead: str | None = Field(None, description="Name of the person who leads it.", examples=["chen"])
    schedule: str | None = Field(None, description="Schedule of the person on call.", examples=["model"])
    second: str | None = Field(
        None,
        description="Schedule of the second person on call. Default: whoever takes over next.",
        examples=["deputies"],
    )
    layers: list[_Layer] = Field(
        [], description="Layers of faults that the team owns. Default: all.", examples=["[engine, traffic]"]
    )
    services: list[str] = Field(
        [],
        description="Names of services that it owns; * matches any characters. Default: all.",
        examples=['[chat, "code-*"]'],
    )
    groups: dict[Group, list[str]] = Field(
        {},
        description="Map from a route to channels of the team. Default: those of notify.groups.",
        examples=["{im: [ding]}"],
    )
    timezone: TimeZone = Field("UTC", description="Time zone of its night, and of times in its messages and incidents.")
    night: HoursSettings | None = Field(
        None,
        description="Hours that are summarized in a message at their end.",
        examples=['{start: "20:00", end: "08:30"}'],
    )


class LadderSettings(Section):
    """Steps of an unacknowledged incident."""

    after: PositiveDuration = Field(description="Time on each step until the next one is notified.", examples=["10m"])
    steps: list[_Step] = Field(
        ["on_call", "second", "lead", "team"],
        description="Whom each step notifies. A step that adds nobody is left out.",
        min_length=1,
    )
    groups: list[Group] = Field(
        [], description="Further routes of every step after the first one.", examples=["[phone]"]
    )


class ButtonSettings(Section):
    """Buttons of messages. They need api.public_url."""

    key_file: Path | None = Field(
        None,
        description="File with the key that signs them, the same on every host. Default: button.key, generated "
        "where admin.token is.",
        examples=["/run/secrets/button-key"],
    )
    valid: Duration = Field(timedelta(hours=12), description="Time after which a button no longer acts; at most 7d.")

    @model_validator(mode="after")
    def _bounded(self) -> ButtonSettings:
        if not timedelta(0) < self.valid <= LONGEST_BUTTON:
            raise ValueError("valid must be at most 7d")
        return self


class OnCallSettings(Section):
    """On-call duty and escalation. Without teams, messages name nobody and nothing escalates."""

    people: list[PersonSettings] = Field([], description="People.", examples=["[{name: li}]"])
    teams: list[TeamSettings] = Field([], description="Teams.", examples=["[{name: model, members: [li]}]"])
    schedules: list[ScheduleSettings] = Field(
        [], description="Schedules.", examples=["[{name: model, rotations: [{people: [li], start: 2026-11-23}]}]"]
    )
    escalation: dict[_Escalated, LadderSettings] = Field(
        {},
        description="Map from a priority to its ladder. Default: P0 after 5m, P1 after 15m, P2 after 1h.",
        examples=["{P1: {after: 10m}}"],
    )
    settle: Duration = Field(
        timedelta(minutes=1), description="Time for which a cause must stand before its incident moves to another team."
    )
    status_every: PositiveDuration = Field(
        timedelta(minutes=15), description="Interval of status messages on an open P0."
    )
    recurs_within: Duration = Field(
        timedelta(days=14),
        description="Time after the closing of a follow-up in which the same fault counts as repeated.",
    )
    summary_groups: list[Group] = Field(["im", "mail"], description="Routes of the summary of a night.")
    buttons: ButtonSettings = Field(ButtonSettings(), description="Buttons of messages.")

    @property
    def ladders(self) -> Mapping[Priority, Ladder]:
        """The ladder of each priority."""
        own = {
            Priority(name): Ladder(ladder.after, tuple(map(StepTarget, ladder.steps)), tuple(ladder.groups))
            for name, ladder in self.escalation.items()
        }
        return {**LADDERS, **own}

    def layers_of(self, team: TeamSettings) -> frozenset[Layer]:
        """The layers of a team as values."""
        return frozenset(map(Layer, team.layers))


def oncall_problems(
    settings: OnCallSettings, channels: Iterable[str], document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Checks that names are unique and known, and that each schedule has a source that can be read."""
    known = _Names(settings, frozenset(channels))
    for kind, items in (("people", settings.people), ("teams", settings.teams), ("schedules", settings.schedules)):
        yield from duplicate_names([item.name for item in items], ("oncall", kind), document)
    yield from _people_problems(settings.people, known, document)
    yield from _team_problems(settings.teams, known, document)
    for index, schedule in enumerate(settings.schedules):
        yield from _schedule_problems(schedule, ("oncall", "schedules", index), known, document)


class _Names:
    """The names that other settings may refer to."""

    def __init__(self, settings: OnCallSettings, channels: frozenset[str]) -> None:
        self.people = [person.name for person in settings.people]
        self.schedules = [schedule.name for schedule in settings.schedules]
        self.channels = sorted(channels)


def _unknown(
    kind: str, name: str | None, known: Sequence[str], path: yaml_file.Path_, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    if name is not None and name not in known:
        hint = yaml_file.near(name, known) or f"; known: {', '.join(known) or 'none'}"
        yield document.problem(path, f"no {kind} is named {name!r}{hint}")


def _people_problems(
    people: Sequence[PersonSettings], known: _Names, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    for index, person in enumerate(people):
        for number, contact in enumerate(person.contacts):
            path = ("oncall", "people", index, "contacts", number, "channel")
            yield from _unknown("channel", contact.channel, known.channels, path, document)


def _team_problems(
    teams: Sequence[TeamSettings], known: _Names, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    for index, team in enumerate(teams):
        path: yaml_file.Path_ = ("oncall", "teams", index)
        for number, member in enumerate(team.members):
            yield from _unknown("person", member, known.people, (*path, "members", number), document)
        yield from _unknown("person", team.lead, known.people, (*path, "lead"), document)
        yield from _unknown("schedule", team.schedule, known.schedules, (*path, "schedule"), document)
        yield from _unknown("schedule", team.second, known.schedules, (*path, "second"), document)
        for group, names in team.groups.items():
            for number, name in enumerate(names):
                yield from _unknown("channel", name, known.channels, (*path, "groups", group, number), document)
        if not team.members and team.lead is None and team.schedule is None:
            yield document.problem(path, "has nobody to page; set members, lead or schedule")


def _schedule_problems(
    schedule: ScheduleSettings, path: yaml_file.Path_, known: _Names, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    for index, rotation in enumerate(schedule.rotations):
        for number, person in enumerate(rotation.people):
            yield from _unknown("person", person, known.people, (*path, "rotations", index, "people", number), document)
    for index, override in enumerate(schedule.overrides):
        yield from _unknown("person", override.person, known.people, (*path, "overrides", index, "person"), document)
        if override.end <= override.start:
            yield document.problem((*path, "overrides", index, "end"), "must be after start")
    if not schedule.rotations and schedule.calendar is None:
        yield document.problem(path, "needs rotations or a calendar")
    if schedule.calendar is not None and find_spec(CALENDAR_LIBRARY) is None:
        message = f"needs extra libraries; {install_hints.how('calendar')}"
        yield document.problem((*path, "calendar"), message)
