"""Maintenance windows and freezes: spans of wall-clock time in a time zone, weekly or by date. Pure.

A change to or from daylight saving time skips or repeats an hour. A boundary in such an hour counts in the stricter
direction: a maintenance window is shorter, a freeze is longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from remediation.decide.autonomy import Scope, ServiceScope

_DAY = timedelta(days=1)
_WEEK = 8  # days ahead within which every weekly span begins
EVERY_DAY = frozenset(range(7))


@dataclass(frozen=True, slots=True)
class WeeklySpan:
    """From one time of day to another, on days of the week (Monday is 0). It ends on the next day unless later."""

    start: time
    end: time
    days: frozenset[int] = EVERY_DAY

    def on(self, day: date) -> tuple[datetime, datetime] | None:
        """Start and end by the wall clock of the span that begins on a day; None if none does."""
        if day.weekday() not in self.days:
            return None
        ends = day if self.end > self.start else day + _DAY
        return datetime.combine(day, self.start), datetime.combine(ends, self.end)


@dataclass(frozen=True, slots=True)
class DateSpan:
    """From one date and time to another, by the wall clock."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A maintenance window or a freeze. Without ``services`` and ``environments`` it applies to everything."""

    name: str
    zone: tzinfo
    span: WeeklySpan | DateSpan
    services: frozenset[str] = frozenset()
    environments: frozenset[str] = frozenset()

    def applies(self, service: ServiceScope) -> bool:
        """True if the window concerns the service, by its name and by its environment."""
        by_name = not self.services or bool(self.services & service.names)
        return by_name and (not self.environments or bool(self.environments & service.environments))

    def contains(self, now: datetime, *, widen: bool = False) -> bool:
        """True while the window is open. ``widen`` extends it over a repeated hour, as a freeze needs it."""
        return any(start <= now < end for start, end in self._open(now, widen=widen))

    def next_start(self, now: datetime, *, widen: bool = False) -> datetime | None:
        """The next time at which the window opens; None if it opens no more."""
        return min((start for start, _ in self._open(now, widen=widen, ahead=_WEEK) if start > now), default=None)

    def end(self, now: datetime, *, widen: bool = False) -> datetime | None:
        """The time at which the open window closes; None if it is not open.

        A span that begins when another ends continues it. One that never closes ends after the days ahead.
        """
        closes = now
        for start, end in sorted(self._open(now, widen=widen, ahead=_WEEK)):
            if start <= closes < end:
                closes = end
        return closes if closes > now else None

    def _open(self, now: datetime, *, widen: bool, ahead: int = 1) -> Iterator[tuple[datetime, datetime]]:
        """The instants of the start and end of each span that exists on its day."""
        for start, end in self._spans(now, ahead):
            opens, closes = self._instant(start, early=widen), self._instant(end, early=not widen)
            if opens < closes:
                yield opens, closes

    def _spans(self, now: datetime, ahead: int) -> list[tuple[datetime, datetime]]:
        """Start and end by the wall clock of the spans from yesterday until some days ahead."""
        if isinstance(self.span, DateSpan):
            return [(self.span.start, self.span.end)]
        today = now.astimezone(self.zone).date()
        days = (today + number * _DAY for number in range(-1, ahead + 1))  # a boundary may be a day off
        return [span for day in days if (span := self.span.on(day)) is not None]

    def _instant(self, wall: datetime, *, early: bool) -> datetime:
        """The instant of a wall-clock time; of two possible ones the earlier or the later."""
        readings = [wall.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
        return min(readings) if early else max(readings)


def applying(windows: tuple[TimeWindow, ...], scope: Scope) -> tuple[TimeWindow, ...]:
    """The windows that concern one of the services of an action."""
    return tuple(window for window in windows if any(window.applies(service) for service in scope.services))


def frozen_by(freezes: tuple[TimeWindow, ...], scope: Scope, now: datetime) -> str:
    """Names of the freezes that hold an action now; empty if there are none."""
    return ", ".join(freeze.name for freeze in applying(freezes, scope) if freeze.contains(now, widen=True))


def missed_windows(windows: tuple[TimeWindow, ...], scope: Scope, now: datetime) -> str:
    """Names of the windows that an affected service must wait for; empty if none does.

    A service without a window of its own is not restricted.
    """
    missed: dict[str, None] = {}
    for service in scope.services:
        own = [window for window in windows if window.applies(service)]
        if own and not any(window.contains(now) for window in own):
            missed.update(dict.fromkeys(window.name for window in own))
    return ", ".join(missed)
