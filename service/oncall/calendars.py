"""Reads the calendars of schedules from their files and URLs into the store.

The last readable text is kept: an unavailable server leaves nobody without a schedule. Errors never name a URL, which
may be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import httpx

from alerts.oncall.calendar import MOST_TEXT
from outrider import log
from outrider.errors import OutriderError, UsageError
from outrider.records.on_call import OnCallStore, StoredCalendar
from service.config.oncall_settings import CalendarSettings, PersonSettings, ScheduleSettings
from service.config.settings import read_secret
from service.oncall.roster import AHEAD, BEFORE, expand

_log = log.get("oncall")
CHECK_EVERY = timedelta(minutes=1)
_TIMEOUT = httpx.Timeout(15.0, connect=5.0)


class CalendarReader:
    """Reads each calendar at its interval. A periodic task of the engine."""

    def __init__(
        self,
        people: Sequence[PersonSettings],
        schedules: Sequence[ScheduleSettings],
        store: OnCallStore,
        prepare: Callable[[datetime], object] = lambda _now: None,
    ) -> None:
        """``schedules`` without a calendar are skipped. ``prepare`` is called after calendars were read."""
        self._prepare = prepare
        self._people = people
        self._schedules = [schedule for schedule in schedules if schedule.calendar is not None]
        self._store = store
        self._tried: dict[str, datetime] = {}

    def run_due(self, now: datetime) -> int:
        """Reads the calendars that are due. Returns their number. Raises StoreError."""
        due = [schedule for schedule in self._schedules if self._is_due(schedule, now)]
        stored = {item.schedule: item for item in self._store.calendars()} if due else {}
        for schedule in due:
            self._tried[schedule.name] = now
            before = stored.get(schedule.name, StoredCalendar(schedule.name, "", None))
            after = self._read(schedule, before, now)
            if after != before:
                self._store.save_calendar(after)
        if due:
            self._prepare(now)
        return len(due)

    def _is_due(self, schedule: ScheduleSettings, now: datetime) -> bool:
        assert schedule.calendar is not None
        last = self._tried.get(schedule.name)
        return last is None or not timedelta(0) <= now - last < schedule.calendar.every

    def _read(self, schedule: ScheduleSettings, before: StoredCalendar, now: datetime) -> StoredCalendar:
        assert schedule.calendar is not None
        try:
            text = text_of(schedule.calendar)
            shifts = expand(self._people, schedule, text, now - BEFORE, now + AHEAD)
        except OutriderError as error:
            _log.error("calendar_not_read", schedule=schedule.name, error=error.message, hint=error.hint)
            return replace(before, error=error.message)
        if shifts.unknown:
            _log.warning("calendar_names_unknown", schedule=schedule.name, names=list(shifts.unknown))
        return StoredCalendar(schedule.name, text, now)


def text_of(settings: CalendarSettings) -> str:
    """The text of a calendar from its file or URL. Raises UsageError, or ConfigError for a missing secret file."""
    if settings.file is not None:
        try:
            return settings.file.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"the calendar {settings.file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"the calendar {settings.file} is not valid UTF-8") from error
    if settings.url is not None:
        return _fetched(settings.url)
    assert settings.url_file is not None
    return _fetched(read_secret(settings.url_file))


def _fetched(url: str) -> str:
    try:
        with (
            httpx.Client(timeout=_TIMEOUT, follow_redirects=True) as client,
            client.stream("GET", url, headers={"Accept": "text/calendar"}) as response,
        ):
            if not response.is_success:
                raise UsageError(f"the server of the calendar returned status {response.status_code}")
            body = b""
            for part in response.iter_bytes():
                body += part
                if len(body) > 4 * MOST_TEXT:
                    raise UsageError(f"the calendar is larger than {4 * MOST_TEXT} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UsageError(f"the server of the calendar cannot be reached: {type(error).__name__}") from error
    return body.decode(errors="replace")
