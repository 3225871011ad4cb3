"""Spans of wall-clock time in a time zone, weekly or by date: maintenance windows, freezes, silences. Pure.

A change to or from daylight saving time skips or repeats an hour. A boundary in such an hour is read as the later start
and the earlier end, or, with ``widen``, as the earlier start and the later end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Literal

_DAY = timedelta(days=1)
WEEK = 8  # days ahead within which every weekly span begins
EVERY_DAY = frozenset(range(7))
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
Instants = tuple[datetime, datetime]


@dataclass(frozen=True, slots=True)
class WeeklySpan:
    """From one time of day to another, on days of the week (Monday is 0). It ends on the next day unless later."""

    start: time
    end: time
    days: frozenset[int] = EVERY_DAY

    def on(self, day: date) -> Instants | None:
        """Start and end by the wall clock of the span that begins on a day; None if none does."""
        if day.weekday() not in self.days:
            return None
        ends = day if self.end > self.start else day + _DAY
        return datetime.combine(day, self.start), datetime.combine(ends, self.end)

    def instants(self, day: date, zone: tzinfo) -> Instants | None:
        """Start and end in UTC of the span that begins on a day; None if none does.

        Each is the first reading of its wall-clock time, so that hours on duty that follow each other leave no gap.
        """
        wall = self.on(day)
        if wall is None:
            return None
        start, end = (at.replace(tzinfo=zone).astimezone(UTC) for at in wall)
        return start, end


@dataclass(frozen=True, slots=True)
class DateSpan:
    """From one date and time to another, by the wall clock."""

    start: datetime
    end: datetime


def occurrences(
    span: WeeklySpan | DateSpan, zone: tzinfo, now: datetime, *, widen: bool = False, ahead: int = 1
) -> Iterator[Instants]:
    """Start and end in UTC of each occurrence that exists, from yesterday until some days ahead."""
    for first, last in _walls(span, zone, now, ahead):
        start, end = _instant(first, zone, early=widen), _instant(last, zone, early=not widen)
        if start < end:
            yield start, end


def current(span: WeeklySpan | DateSpan, zone: tzinfo, now: datetime) -> Instants | None:
    """The occurrence that contains ``now``; the one that ends last of several, None without one."""
    found = [(start, end) for start, end in occurrences(span, zone, now) if start <= now < end]
    return max(found, key=lambda instants: instants[1], default=None)


def following(span: WeeklySpan | DateSpan, zone: tzinfo, now: datetime) -> Instants | None:
    """The next occurrence that begins after ``now``; None if there is none."""
    return min((item for item in occurrences(span, zone, now, ahead=WEEK) if item[0] > now), default=None)


def _walls(span: WeeklySpan | DateSpan, zone: tzinfo, now: datetime, ahead: int) -> list[Instants]:
    if isinstance(span, DateSpan):
        return [(span.start, span.end)]
    today = now.astimezone(zone).date()
    days = (today + number * _DAY for number in range(-1, ahead + 1))  # a boundary may be a day off
    return [wall for day in days if (wall := span.on(day)) is not None]


def _instant(wall: datetime, zone: tzinfo, *, early: bool) -> datetime:
    """The instant of a wall-clock time; of two possible ones the earlier or the later."""
    readings = [wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
    return min(readings) if early else max(readings)
