"""Events and shifts from an iCalendar text (RFC 5545), as PagerDuty, Opsgenie, Google and Outlook export them.

The person of a shift is found by the e-mail address of an attendee, else by a name or address in the summary. All-day
events and times without a zone are in the time zone of the schedule. Recurring events are expanded by the library
``recurring-ical-events``, which the extra ``calendar`` installs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from alerts.oncall.rotation import wall_time
from alerts.oncall.schedule import Shift, ShiftSource
from outrider.errors import UnavailableError, UsageError
from outrider.text import install_hints

MOST_TEXT = 2_000_000  # characters
MOST_EVENTS = 5_000  # of the range that is read
_TOO_OFTEN = re.compile(r"FREQ=(SECONDLY|MINUTELY|HOURLY)", re.IGNORECASE)  # expanded from 1900 it would take hours
_NOT_A_CALENDAR = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError)  # of the two libraries


@dataclass(frozen=True, slots=True)
class CalendarShifts:
    """The shifts of a calendar, and the summaries of events whose person is not configured."""

    shifts: tuple[Shift, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One occurrence of an event. ``key`` is its id in the calendar with its start."""

    key: str
    summary: str
    start: datetime
    end: datetime
    attendees: tuple[str, ...] = ()


def read(
    text: str, schedule: str, people: Mapping[str, str], zone: ZoneInfo, start: datetime, end: datetime
) -> CalendarShifts:
    """The shifts that overlap a time range.

    ``people`` maps names and addresses, in lower case, to people. Raises as ``occurrences``.
    """
    shifts: list[Shift] = []
    unknown: dict[str, None] = {}
    for item in occurrences(text, zone, start, end):
        person = _person(item, people)
        if person is None:
            unknown[item.summary[:100]] = None
        else:
            shifts.append(Shift(schedule, person, item.start, item.end, ShiftSource.CALENDAR, item.key))
    return CalendarShifts(tuple(shifts), tuple(unknown))


def occurrences(text: str, zone: ZoneInfo, start: datetime, end: datetime) -> tuple[Occurrence, ...]:
    """The occurrences of all events that overlap a time range, by start; those that were cancelled are left out.

    Raises UsageError if the text is not a calendar or is too large, UnavailableError without the library.
    """
    if len(text) > MOST_TEXT:
        raise UsageError(f"the calendar has {len(text)} characters; {MOST_TEXT} are the maximum")
    if _TOO_OFTEN.search(text):
        raise UsageError(
            "the calendar has an event that recurs more often than daily", hint="list the hours of a day as events"
        )
    result: list[Occurrence] = []
    try:
        for event in islice(_events(text, start, end), MOST_EVENTS + 1):
            first, last = _bounds(event, zone)
            if first < end and last > start and first < last and str(event.get("STATUS", "")) != "CANCELLED":
                key = f"{event.get('UID', '')}:{first:%Y%m%dT%H%M%S}"
                result.append(Occurrence(key, str(event.get("SUMMARY", "")), first, last, _attendees(event)))
    except _NOT_A_CALENDAR as error:
        raise UsageError(f"it is not a calendar that can be read: {error}", hint="expected RFC 5545 text") from error
    if len(result) > MOST_EVENTS:
        raise UsageError(f"the calendar has more than {MOST_EVENTS} events from {start:%Y-%m-%d} to {end:%Y-%m-%d}")
    return tuple(sorted(result, key=lambda item: (item.start, item.key)))


def _events(text: str, start: datetime, end: datetime) -> Iterator[Any]:
    """The occurrences of all events from a time on, in order, until the end of the range."""
    try:
        import icalendar  # noqa: PLC0415 - an extra
        import recurring_ical_events  # noqa: PLC0415
    except ImportError as error:
        raise UnavailableError("calendars need extra libraries", hint=install_hints.how("calendar")) from error
    calendar = icalendar.Calendar.from_ical(text)
    for event in recurring_ical_events.of(calendar).after(start.astimezone(UTC)):
        if _instant(event["DTSTART"].dt, UTC) > end + timedelta(days=1):
            return
        yield event


def _bounds(event: Any, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """Start and end. An event without an end lasts its duration, or a day if it is an all-day event."""
    start = event["DTSTART"].dt
    if "DTEND" in event:
        end = event["DTEND"].dt
    elif "DURATION" in event:
        end = start + event["DURATION"].dt
    else:
        end = start if isinstance(start, datetime) else start + timedelta(days=1)
    return _instant(start, zone), _instant(end, zone)


def _instant(at: date | datetime, zone: Any) -> datetime:
    if not isinstance(at, datetime):
        return wall_time(at, time(), zone)
    return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).astimezone(UTC)


def _attendees(event: Any) -> tuple[str, ...]:
    """The addresses of the attendees, in lower case."""
    listed = event.get("ATTENDEE", ())
    return tuple(str(one).lower().removeprefix("mailto:") for one in (listed if isinstance(listed, list) else [listed]))


def _person(item: Occurrence, people: Mapping[str, str]) -> str | None:
    """The person of an event: an attendee, else a name in the summary."""
    known = (people[address] for address in item.attendees if address in people)
    return next(known, None) or _named(item.summary.lower(), people)


def _named(summary: str, people: Mapping[str, str]) -> str | None:
    """The person whose name or address is in a summary as whole words; the longest one counts."""
    for name in _longest_first(people):
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", summary):
            return people[name]
    return None


def _longest_first(names: Iterable[str]) -> list[str]:
    return sorted((name for name in names if name), key=lambda name: (-len(name), name))
