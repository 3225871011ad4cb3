"""Known future effects: events with start and end, public holidays, and the clock of a time zone.

A calendar is plain values. Its effects are removed from a history before learning, and added back to forecasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from math import log
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats
from planner.forecast.grid import Slots
from planner.forecast.series import DAY_SECONDS, Series

_HOUR_SECONDS = DAY_SECONDS / 24

_LEAST_SLOTS = 6
_FARTHEST = log(20.0)
HOLIDAY = "holiday"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that changes the load from ``start`` to ``end`` (aware timestamps).

    ``ratio`` 1.5 means 50 % more load, 0.2 a fifth of it. None takes the effect from earlier events of the same
    ``name``; without one there is no effect.
    """

    name: str
    start: datetime
    end: datetime
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None or self.end <= self.start:
            raise UsageError(
                f"event {self.name}: end must be after start, both with a time zone",
                hint="write timestamps such as 2026-05-01T18:00:00Z",
            )
        if self.ratio is not None and not 0.0 < self.ratio < np.inf:
            raise UsageError(f"event {self.name}: ratio {self.ratio} must be above 0", hint="1.5 means 50 % more load")


@dataclass(frozen=True, slots=True)
class Calendar:
    """Events, and the users' time zone: a day keeps its shape across changes to summer time."""

    events: tuple[Event, ...] = ()
    zone: str = "UTC"

    def clock(self) -> ZoneInfo:
        """Returns the zone. Raises UsageError for an unknown name."""
        try:
            return ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise UsageError(f"{self.zone} is not a time zone", hint="use a name such as Europe/Berlin") from error


NO_CALENDAR = Calendar()


def holidays(country: str, first: date, last: date, zone: str = "UTC") -> tuple[Event, ...]:
    """Public holidays of a country (ISO code) from ``first`` to ``last``, whole days in ``zone``.

    All share one name, so that the effect of one applies to the next. Raises UsageError for an unknown country.
    """
    import holidays as library  # noqa: PLC0415 - a dependency of Prophet, slow to import

    clock = Calendar(zone=zone).clock()
    try:
        days = library.country_holidays(country, years=range(first.year, last.year + 1))
    except NotImplementedError as error:
        raise UsageError(f"no holidays known for {country!r}", hint="use an ISO code such as DE or CN") from error
    events = []
    for day in sorted(days):
        if first <= day <= last:
            start = datetime(day.year, day.month, day.day, tzinfo=clock)
            following = day + timedelta(days=1)
            end = datetime(following.year, following.month, following.day, tzinfo=clock)
            events.append(Event(HOLIDAY, start.astimezone(UTC), end.astimezone(UTC)))
    return tuple(events)


def effects(series: Series, steps: int, events: Sequence[Event], zone: tzinfo = UTC) -> Floats:
    """Logs of the effects of events on each slot of the history and of the next ``steps``; 0 without a known effect.

    An effect without a ratio is learned from earlier occasions: the median deviation of their slots from the median of
    the same time of day in ``zone`` on other days. Fewer than six such slots give no effect.
    """
    times = np.concatenate([series.times, series.future(steps)])
    logs = np.zeros(times.size)
    learned: dict[str, float] = {}
    for event in events:
        inside = (times < event.end.timestamp()) & (times + series.step > event.start.timestamp())
        if not inside.any():
            continue
        if event.ratio is not None:
            logs[inside] += log(event.ratio)
            continue
        if event.name not in learned:
            learned[event.name] = _learn_effect(series, [other for other in events if other.name == event.name], zone)
        logs[inside] += learned[event.name]
    return np.clip(logs, -_FARTHEST, _FARTHEST)


def _learn_effect(series: Series, occasions: Sequence[Event], zone: tzinfo) -> float:
    times = series.times
    inside = np.zeros(times.size, dtype=bool)
    for event in occasions:
        inside |= (times < event.end.timestamp()) & (times + series.step > event.start.timestamp())
    with np.errstate(divide="ignore"):
        logs = np.log(series.values)
    usable = np.isfinite(logs)
    slot_of_day = np.round((times + _offsets(times, zone)) / series.step).astype(np.int64) % series.season
    off = []
    for slot in np.flatnonzero(inside & usable):
        others = logs[(slot_of_day == slot_of_day[slot]) & ~inside & usable]
        if others.size:
            off.append(logs[slot] - float(np.median(others)))
    return float(np.median(off)) if len(off) >= _LEAST_SLOTS else 0.0


@dataclass(frozen=True, slots=True)
class WallClock:
    """A series on the local clock of a time zone, as if it were UTC.

    ``ahead`` are the local slots of the next slots, 1 being the next one; ``origin`` is its local time.
    """

    values: Floats
    ahead: Slots
    origin: float


def by_wall_clock(series: Series, steps: int, zone: ZoneInfo) -> WallClock:
    """Puts a series on the slots of a zone's clock, so that summer time does not shift the hours of the day.

    The hour skipped in spring is missing; of the hour repeated in autumn the second one counts.
    """
    count = series.values.size
    times = np.concatenate([series.times, series.future(steps)])
    shifts = np.round(_offsets(times, zone) / series.step).astype(np.int64)
    positions = np.arange(times.size) + shifts - shifts[max(0, count - 1)]
    origin = series.origin + float(shifts[count - 1]) * series.step
    if not np.diff(shifts).any():
        return WallClock(series.values, np.arange(1, steps + 1), origin)
    first, newest = int(positions[:count].min()), int(positions[count - 1])
    values = np.full(newest - first + 1, np.nan)
    inside = positions[:count] <= newest
    values[positions[:count][inside] - first] = series.values[inside]
    return WallClock(values, np.maximum(positions[count:] - newest, 1), origin)


def _offsets(times: Floats, zone: tzinfo) -> Floats:
    """Offset of the zone from UTC in seconds at each time: looked up by the hour, since zones change on the hour."""
    hours = np.floor(times / _HOUR_SECONDS).astype(np.int64)
    first = int(hours.min())
    offsets: Floats = _hourly(first, int(hours.max()) - first + 1, zone)[hours - first]
    return offsets


@lru_cache(maxsize=64)
def _hourly(first: int, count: int, zone: tzinfo) -> Floats:
    """``_offsets`` of ``count`` hours from ``first``, cached: all services of a plan use the same ones."""
    ahead = [
        datetime.fromtimestamp((first + n) * _HOUR_SECONDS, zone).utcoffset() or timedelta(0) for n in range(count)
    ]
    return np.array([shift.total_seconds() for shift in ahead])
