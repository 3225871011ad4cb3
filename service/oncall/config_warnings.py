"""Warnings of ``config check`` about on-call duty and calendars of maintenance.

Nobody on call, unreadable calendars, names that nobody has, and buttons that cannot reach the API.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from alerts.oncall.schedule import Schedule
from outrider.errors import ConfigProblem, OutriderError
from outrider.records.on_call import ShiftOverride, StoredCalendar
from outrider.text import yaml_file
from service.config.oncall_settings import OnCallSettings, ScheduleSettings
from service.config.settings import Settings
from service.config.settings_base import LOOPBACK_NAMES
from service.oncall.calendars import text_of
from service.oncall.maintenance_calendars import silences_of
from service.oncall.roster import RosterSource, expand

LOOK_AHEAD = timedelta(days=28)


class _Nothing:
    """A store without overrides and calendars."""

    def shift_overrides(self, since: datetime) -> tuple[ShiftOverride, ...]:  # noqa: ARG002 - the protocol's
        return ()

    def calendars(self) -> tuple[StoredCalendar, ...]:
        return ()


def oncall_warnings(settings: OnCallSettings, document: yaml_file.Document, now: datetime) -> Iterator[ConfigProblem]:
    """Warns of gaps in the next four weeks. A calendar behind a URL is not read, so that its gaps are not known."""
    roster = RosterSource(settings, _Nothing())(now)
    for index, schedule in enumerate(settings.schedules):
        path: yaml_file.Path_ = ("oncall", "schedules", index)
        if schedule.calendar is not None and schedule.calendar.file is None:
            continue
        if schedule.calendar is not None:
            yield from _calendar_warnings(settings, schedule, (*path, "calendar"), document, now)
        message = _gaps(roster.schedules[schedule.name], ZoneInfo(schedule.timezone), now)
        if message:
            yield document.problem(path, message)


def maintenance_warnings(settings: Settings, document: yaml_file.Document, now: datetime) -> Iterator[ConfigProblem]:
    """Warns of calendars of maintenance that cannot be read. One behind a URL is not read."""
    for index, item in enumerate(settings.maintenance_calendars):
        if item.file is None:
            continue
        try:
            silences_of(item, text_of(item), now)
        except OutriderError as error:
            yield document.problem(("maintenance_calendars", index), f"{item.name}: {error.message}")


def button_warnings(settings: Settings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Warns if no button works: the API refuses the host name of its public URL, or hosts may have other keys."""
    if settings.api.public_url is not None and settings.oncall.buttons.key_file is None and _is_shared(settings):
        message = (
            "each host generates its own key of buttons, and the store may serve several; "
            "copy one to every host and set key_file"
        )
        yield document.problem(("oncall", "buttons"), message)
    host = urlsplit(settings.api.public_url or "").hostname
    known = {name.strip("[]") for name in (*LOOPBACK_NAMES, settings.api.host, *settings.api.hosts)}
    if host is not None and host not in known and "*" not in known:
        message = f"the API refuses the host name {host}; add it to api.hosts unless a proxy replaces it"
        yield document.problem(("api", "public_url"), message)


def _is_shared(settings: Settings) -> bool:
    return not settings.store.url.startswith("sqlite:")


def _calendar_warnings(
    settings: OnCallSettings,
    schedule: ScheduleSettings,
    path: yaml_file.Path_,
    document: yaml_file.Document,
    now: datetime,
) -> Iterator[ConfigProblem]:
    assert schedule.calendar is not None
    try:
        shifts = expand(settings.people, schedule, text_of(schedule.calendar), now, now + LOOK_AHEAD)
    except OutriderError as error:
        yield document.problem(path, error.message)
        return
    if shifts.unknown:
        names = ", ".join(shifts.unknown[:5])
        message = f"names nobody of oncall.people in: {names}; add their calendar_names or email"
        yield document.problem(path, message)


def _gaps(schedule: Schedule, zone: ZoneInfo, now: datetime) -> str:
    """The first gap and the number of others; empty if there is none."""
    gaps = schedule.gaps(now.astimezone(UTC), now.astimezone(UTC) + LOOK_AHEAD)
    if not gaps:
        return ""
    start, end = (at.astimezone(zone) for at in (gaps[0].start, gaps[0].end))
    others = f", and {len(gaps) - 1} more gaps within 28 days" if len(gaps) > 1 else ""
    return f"nobody is on call from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} ({zone.key}){others}"
