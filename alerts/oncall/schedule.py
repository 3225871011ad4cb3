"""Schedules: who is on call at a time, by rotations, an imported calendar and overrides, and where nobody is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from alerts.oncall.rotation import Rotation
from outrider.records.on_call import ShiftOverride

_DAY = timedelta(days=1)


class ShiftSource(StrEnum):
    """Why a person is on call, or that nobody is."""

    ROTATION = "rotation"
    CALENDAR = "calendar"
    OVERRIDE = "override"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Shift:
    """A time in which one person is on call. ``person`` None: a gap.

    ``key`` differs between neighbouring shifts of the same person, such as two turns in a row.
    """

    schedule: str
    person: str | None
    start: datetime
    end: datetime
    source: ShiftSource
    key: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The sources of a schedule. An override counts before the calendar, the calendar before the rotations.

    Of several rotations on duty the last one counts. ``imported`` are the shifts of the calendar.
    """

    name: str
    rotations: tuple[Rotation, ...] = ()
    overrides: tuple[ShiftOverride, ...] = ()
    imported: tuple[Shift, ...] = ()

    def person_at(self, at: datetime) -> str | None:
        """The person on call; None if nobody is."""
        return self._entry_at(at)[0]

    def second_at(self, at: datetime) -> str | None:
        """The person who takes over next, other than the one on call; None if nobody else does."""
        current = self.person_at(at)
        for shift in sorted((shift for shift in self.imported if shift.start > at), key=_order):
            if shift.person != current:
                return shift.person
        for rotation in reversed(self.rotations):
            if rotation.person_at(at) is not None:
                return next((person for person in rotation.order_after(at) if person != current), None)
        return None

    def shift_at(self, at: datetime) -> Shift:
        """The shift that contains a time, with its start and end."""
        reach = max((rotation.days for rotation in self.rotations), default=1) * _DAY + _DAY
        start, end = at - reach, at + reach
        own = self._entry_at(at)
        for first, last in self._own_spans():
            if first <= at < last:
                start, end = min(start, first), max(end, last)
        return next(shift for shift in self.shifts(start, end) if shift.start <= at < shift.end and _is(shift, own))

    def shifts(self, start: datetime, end: datetime) -> tuple[Shift, ...]:
        """All shifts and gaps of a time range, in order and without overlap; the first and the last one are cut."""
        times = sorted({start, *self._changes(start, end)})
        result: list[Shift] = []
        for index, at in enumerate(times):
            until = times[index + 1] if index + 1 < len(times) else end
            person, source, key = self._entry_at(at)
            last = result[-1] if result else None
            if last is not None and _is(last, (person, source, key)):
                result[-1] = Shift(self.name, person, last.start, until, source, key)
            else:
                result.append(Shift(self.name, person, at, until, source, key))
        return tuple(result)

    def gaps(self, start: datetime, end: datetime) -> tuple[Shift, ...]:
        """The times of a range in which nobody is on call."""
        return tuple(shift for shift in self.shifts(start, end) if shift.person is None)

    def _entry_at(self, at: datetime) -> tuple[str | None, ShiftSource, str]:
        overrides = [item for item in self.overrides if item.start <= at < item.end]
        if overrides:
            newest = max(overrides, key=lambda item: (item.at, item.id))
            return newest.person, ShiftSource.OVERRIDE, newest.id
        imported = [shift for shift in self.imported if shift.start <= at < shift.end]
        if imported:
            latest = max(imported, key=_order)
            return latest.person, ShiftSource.CALENDAR, latest.key
        for rotation in reversed(self.rotations):
            person = rotation.person_at(at)
            if person is not None:
                return person, ShiftSource.ROTATION, f"{rotation.name}:{rotation.shift_at(at)}"
        return None, ShiftSource.GAP, ""

    def _changes(self, start: datetime, end: datetime) -> Iterator[datetime]:
        for rotation in self.rotations:
            yield from rotation.changes(start, end)
        for span in self._own_spans():
            yield from (at for at in span if start <= at < end)

    def _own_spans(self) -> Iterator[tuple[datetime, datetime]]:
        """Start and end of every override and every shift of the calendar."""
        yield from ((override.start, override.end) for override in self.overrides)
        yield from ((shift.start, shift.end) for shift in self.imported)


def _order(shift: Shift) -> tuple[datetime, str]:
    return shift.start, shift.person or ""


def _is(shift: Shift, entry: tuple[str | None, ShiftSource, str]) -> bool:
    return (shift.person, shift.source, shift.key) == entry
