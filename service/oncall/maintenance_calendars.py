"""Silences from calendars of planned maintenance.

The events of the next two weeks are silences in the store, so that lists, previews and Alertmanager show them like any
other. A calendar that cannot be read keeps the silences it had and adds none. Errors name the calendar, never its URL,
which may be secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from alerts.oncall import calendar
from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import OutriderError, UsageError
from outrider.ports import StateStore
from outrider.records.silences import Silence
from service.config.maintenance_settings import MaintenanceCalendarSettings
from service.oncall.calendars import text_of

SOURCE = "calendar"
AHEAD = timedelta(days=14)
MOST_WINDOWS = 500  # of one calendar within ``AHEAD``
_BY = "configuration"
_log = log.get("maintenance")


class MaintenanceCalendars:
    """Reads each calendar at its interval. A periodic task of the engine."""

    def __init__(
        self,
        calendars: Sequence[MaintenanceCalendarSettings],
        state: StateStore,
        read: Callable[[MaintenanceCalendarSettings], str] = text_of,
    ) -> None:
        """``read`` returns the text of a calendar. Silences of calendars that are not listed end at the first call."""
        self._calendars = {item.name: item for item in calendars}
        self._state = state
        self._text = read
        self._tried: dict[str, datetime] = {}
        self._ended = False

    def run_due(self, now: datetime) -> int:
        """Reads the calendars that are due. Returns their number. Raises StoreError."""
        due = [item for item in self._calendars.values() if self._is_due(item, now)]
        if not due and self._ended:
            return 0
        stored = {item.id: item for item in self._state.silences(now) if item.source == SOURCE}
        if not self._ended:
            self._end_of_unlisted(stored, now)
        for item in due:
            self._tried[item.name] = now
            wanted = self._read(item, now)
            if wanted is not None:
                self._replace(_of(item.name, stored), wanted, now)
        return len(due)

    def _is_due(self, item: MaintenanceCalendarSettings, now: datetime) -> bool:
        last = self._tried.get(item.name)
        return last is None or not timedelta(0) <= now - last < item.every

    def _read(self, item: MaintenanceCalendarSettings, now: datetime) -> dict[str, Silence] | None:
        """The silences of a calendar by id; None if it cannot be read."""
        try:
            return {silence.id: silence for silence in silences_of(item, self._text(item), now)}
        except OutriderError as error:
            _log.error("maintenance_calendar_not_read", calendar=item.name, error=error.message, hint=error.hint)
            return None

    def _end_of_unlisted(self, stored: Mapping[str, Silence], now: datetime) -> None:
        listed = {number for name in self._calendars for number in _of(name, stored)}
        self._replace({number: silence for number, silence in stored.items() if number not in listed}, {}, now)
        self._ended = True

    def _replace(self, before: Mapping[str, Silence], wanted: Mapping[str, Silence], now: datetime) -> None:
        for number, silence in wanted.items():
            if before.get(number) != silence:
                self._state.add_silence(silence)
                if number not in before:
                    self._audit(AuditEvent.SILENCED, silence, now)
        for number in before.keys() - wanted.keys():
            self._state.remove_silence(number)
            self._audit(AuditEvent.UNSILENCED, before[number], now)

    def _audit(self, event: AuditEvent, silence: Silence, now: datetime) -> None:
        detail = {"matchers": ", ".join(map(str, silence.matchers)), "comment": silence.comment}
        self._state.append_audit([AuditRecord(now, event, silence.id, SOURCE, by=silence.by, detail=detail)])


def silences_of(item: MaintenanceCalendarSettings, text: str, now: datetime) -> tuple[Silence, ...]:
    """The silences of a calendar's events from now on. Raises UsageError or UnavailableError."""
    events = [
        event
        for event in calendar.occurrences(text, ZoneInfo(item.timezone), now, now + AHEAD)
        if item.containing.lower() in event.summary.lower()
    ]
    if len(events) > MOST_WINDOWS:
        raise UsageError(f"it has {len(events)} events within {AHEAD.days} days; {MOST_WINDOWS} are the maximum")
    return tuple(
        Silence(
            id=f"{_prefix(item.name)}{hashlib.sha256(event.key.encode()).hexdigest()[:12]}",
            rule=None,
            entity=None,
            until=event.end,
            by=_BY,
            comment=": ".join(part for part in (item.name, event.summary[:200]) if part),
            matchers=item.matchers(),
            starts_at=event.start,
            dependents=item.dependents,
            source=SOURCE,
        )
        for event in events
    )


def _prefix(name: str) -> str:
    return f"{SOURCE}/{name}/"


def _of(name: str, stored: Mapping[str, Silence]) -> dict[str, Silence]:
    """The stored silences of a calendar. The last part of an id has no slash; a name may have one."""
    return {number: silence for number, silence in stored.items() if number.rpartition("/")[0] + "/" == _prefix(name)}
