"""Rotations: people who take turns, with handovers at a time of day in one time zone.

A shift ends at the wall-clock time of the handover, so that a day of a time change is 23 or 25 hours long. A handover
in the hour that a change skips happens one hour later on the wall clock; one in the hour that it repeats happens the
first time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from outrider.vocabulary.time_spans import WeeklySpan

_DAY = timedelta(days=1)


def wall_time(day: date, at: time, zone: ZoneInfo) -> datetime:
    """The instant of a time of day, in UTC."""
    return datetime.combine(day, at, tzinfo=zone).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Rotation:
    """People who take turns. ``start`` is the day of the first handover, to the first person.

    ``days`` is the length of a shift. ``hours`` limits it to parts of the day; empty: the whole day.
    """

    name: str
    people: tuple[str, ...]
    start: date
    handover: time
    days: int
    zone: ZoneInfo
    hours: tuple[WeeklySpan, ...] = field(default=())

    def handover_at(self, shift: int) -> datetime:
        """The start of a shift, counted from 0."""
        return wall_time(self.start + shift * self.days * _DAY, self.handover, self.zone)

    def shift_at(self, at: datetime) -> int:
        """The number of the shift at a time; negative before the first handover."""
        day = at.astimezone(self.zone).date()
        shift = (day - self.start).days // self.days
        while self.handover_at(shift) > at:
            shift -= 1
        while self.handover_at(shift + 1) <= at:
            shift += 1
        return shift

    def person_at(self, at: datetime) -> str | None:
        """The person on duty; None before the first handover and outside the hours."""
        shift = self.shift_at(at)
        if shift < 0 or not self.people or not self._on_duty(at):
            return None
        return self.people[shift % len(self.people)]

    def order_after(self, at: datetime) -> tuple[str, ...]:
        """All people in the order of their next turns, beginning with the next one."""
        if not self.people:
            return ()
        first = (max(-1, self.shift_at(at)) + 1) % len(self.people)
        return (*self.people[first:], *self.people[:first])

    def changes(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The times in [start, end) at which the person on duty may change, in no order."""
        for shift in range(max(0, self.shift_at(start)), max(0, self.shift_at(end)) + 1):
            at = self.handover_at(shift)
            if start <= at < end:
                yield at
        for first, last in self._spans(start, end):
            yield from (at for at in (first, last) if start <= at < end)

    def _on_duty(self, at: datetime) -> bool:
        return not self.hours or any(first <= at < last for first, last in self._spans(at, at))

    def _spans(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
        """The hours that may overlap a time range."""
        if not self.hours:
            return
        day, last = (at.astimezone(self.zone).date() for at in (start, end))
        day -= _DAY  # hours that start in the evening end on the next day
        while day <= last:
            for hours in self.hours:
                span = hours.instants(day, self.zone)
                if span is not None:
                    yield span
            day += _DAY
