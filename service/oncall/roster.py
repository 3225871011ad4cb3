"""Rosters: people, teams and schedules of the configuration, with the stored overrides and calendars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from alerts.oncall import calendar
from alerts.oncall.roster import Contact, Person, Roster, Team
from alerts.oncall.rotation import Rotation
from alerts.oncall.schedule import Schedule, Shift
from outrider import log
from outrider.errors import OutriderError
from outrider.records.on_call import OnCallReader, ShiftOverride, StoredCalendar
from service.config.oncall_settings import (
    OnCallSettings,
    PersonSettings,
    RotationSettings,
    ScheduleSettings,
    TeamSettings,
)

_log = log.get("oncall")
BEFORE = timedelta(days=15)  # a summary and a list of shifts reach a week back
AHEAD = timedelta(days=60)
_STALE = timedelta(days=7)  # an expanded calendar still reaches a week back
_FIRST = datetime.min.replace(tzinfo=UTC)  # any stored override is a later entry than those of the file


class RosterSource:
    """Returns the roster at a time.

    An expanded calendar is kept until its text changes or a week has passed. ``prepare`` expands it again every day: an
    odd calendar takes seconds, for which no cycle should wait.
    """

    def __init__(self, settings: OnCallSettings, store: OnCallReader) -> None:
        """``store`` is read on every call."""
        self._settings = settings
        self._store = store
        self._people = {person.name: _person(person) for person in settings.people}
        self._teams = tuple(_team(settings, team) for team in settings.teams)
        self._imported: dict[str, tuple[str, datetime, calendar.CalendarShifts]] = {}

    def __call__(self, now: datetime) -> Roster:
        """The roster with the overrides and calendars around a time. Raises StoreError."""
        if not self._settings.schedules:
            return Roster(self._people, self._teams)
        overrides = self._store.shift_overrides(now - BEFORE)
        calendars = {item.schedule: item for item in self._store.calendars()} if self._imports else {}
        schedules = {
            item.name: self._schedule(item, overrides, calendars.get(item.name), now)
            for item in self._settings.schedules
        }
        return Roster(self._people, self._teams, schedules)

    def prepare(self, now: datetime) -> None:
        """Expands the stored calendars for today. Raises StoreError."""
        stored = {item.schedule: item for item in self._store.calendars()} if self._imports else {}
        for schedule in self._settings.schedules:
            self._shifts(schedule, stored.get(schedule.name), now, stale=timedelta(days=1))

    def unknown_names(self, schedule: str) -> tuple[str, ...]:
        """Summaries in a schedule's calendar that name nobody, as of the last call."""
        known = self._imported.get(schedule)
        return known[2].unknown if known is not None else ()

    @property
    def _imports(self) -> bool:
        return any(schedule.calendar is not None for schedule in self._settings.schedules)

    def _schedule(
        self,
        settings: ScheduleSettings,
        overrides: Sequence[ShiftOverride],
        stored: StoredCalendar | None,
        now: datetime,
    ) -> Schedule:
        own = [item for item in overrides if item.schedule == settings.name]
        return Schedule(
            settings.name,
            tuple(_rotation(rotation, settings.timezone) for rotation in settings.rotations),
            (*configured_overrides(settings), *own),
            self._shifts(settings, stored, now),
        )

    def _shifts(
        self, settings: ScheduleSettings, stored: StoredCalendar | None, now: datetime, stale: timedelta = _STALE
    ) -> tuple[Shift, ...]:
        text = calendar_text(settings, stored)
        day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if not text:
            return ()
        known = self._imported.get(settings.name)
        if known is None or known[0] != text or abs(day - known[1]) >= stale:
            known = (text, day, self._expanded(settings, text, day))
            self._imported[settings.name] = known
        return known[2].shifts

    def _expanded(self, settings: ScheduleSettings, text: str, day: datetime) -> calendar.CalendarShifts:
        try:
            return expand(self._settings.people, settings, text, day - BEFORE, day + AHEAD)
        except OutriderError as error:
            _log.error("calendar_unreadable", schedule=settings.name, error=error.message, hint=error.hint)
            return calendar.CalendarShifts(())


def expand(
    people: Sequence[PersonSettings], settings: ScheduleSettings, text: str, start: datetime, end: datetime
) -> calendar.CalendarShifts:
    """The shifts of a calendar text. Raises UsageError or UnavailableError."""
    zone = ZoneInfo(settings.timezone)
    return calendar.read(text, settings.name, calendar_names(people), zone, start, end)


def calendar_text(settings: ScheduleSettings, stored: StoredCalendar | None) -> str:
    """The stored text of a schedule's calendar; its file, if the engine has not stored it yet."""
    if settings.calendar is None:
        return ""
    if stored is not None and stored.read_at is not None:
        return stored.text
    try:
        return settings.calendar.file.read_text(encoding="utf-8") if settings.calendar.file is not None else ""
    except (OSError, UnicodeDecodeError):
        return ""  # the reader of calendars reports it


def calendar_names(people: Sequence[PersonSettings]) -> Mapping[str, str]:
    """The person of each name and address, in lower case."""
    return {
        name.lower(): person.name
        for person in people
        for name in (person.name, person.email, *person.calendar_names)
        if name
    }


def configured_overrides(settings: ScheduleSettings) -> tuple[ShiftOverride, ...]:
    """The overrides of the file. A stored override at the same time counts before them."""
    zone = ZoneInfo(settings.timezone)
    return tuple(
        ShiftOverride(
            f"{settings.name}:{number}",
            settings.name,
            item.person,
            item.start.replace(tzinfo=zone).astimezone(UTC),
            item.end.replace(tzinfo=zone).astimezone(UTC),
            "",
            _FIRST,
        )
        for number, item in enumerate(settings.overrides)
    )


def _rotation(settings: RotationSettings, timezone: str) -> Rotation:
    return Rotation(
        settings.name,
        tuple(settings.people),
        settings.start,
        settings.handover,
        settings.days,
        ZoneInfo(settings.timezone or timezone),
        tuple(hours.span() for hours in settings.hours),
    )


def _person(settings: PersonSettings) -> Person:
    contacts = {
        contact.channel: Contact(contact.mention, contact.phone or "", contact.email) for contact in settings.contacts
    }
    return Person(settings.name, settings.phone or "", settings.email, contacts)


def _team(settings: OnCallSettings, team: TeamSettings) -> Team:
    return Team(
        name=team.name,
        members=tuple(team.members),
        lead=team.lead,
        schedule=team.schedule,
        second=team.second,
        layers=settings.layers_of(team),
        services=tuple(team.services),
        groups={group: tuple(names) for group, names in team.groups.items()},
        night=team.night.span() if team.night is not None else None,
        zone=ZoneInfo(team.timezone),
    )
