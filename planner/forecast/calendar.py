"""What is known beforehand: events with a beginning and an end, public holidays, and the clock of a time zone.

A calendar is plain values. Its effects are taken out of a history before it is learned from, and put back
into what is forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
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
    """Something that changes the load from ``start`` to ``end`` (aware instants).

    ``ratio`` 1.5 says that half as much again is expected, 0.2 that a fifth is. None: what happened on earlier
    occasions of the same ``name`` is expected again, and nothing where there was none.
    """

    name: str
    start: datetime
    end: datetime
    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None or self.end <= self.start:
            raise UsageError(
                f"event {self.name}: it must end after it starts, both with a time zone",
                hint="write instants such as 2026-05-01T18:00:00Z",
            )
        if self.ratio is not None and not 0.0 < self.ratio < np.inf:
            raise UsageError(
                f"event {self.name}: the ratio {self.ratio} is not above 0", hint="1.5 stands for half as much again"
            )


@dataclass(frozen=True, slots=True)
class Calendar:
    """Events, and the zone whose clock the users live by: their day keeps its shape when it changes to summer time."""

    events: tuple[Event, ...] = ()
    zone: str = "UTC"

    def clock(self) -> ZoneInfo:
        """The zone. Raises UsageError for a name that is none."""
        try:
            return ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise UsageError(f"{self.zone} is not a time zone", hint="use a name such as Europe/Berlin") from error


NO_CALENDAR = Calendar()


def holidays(country: str, first: date, last: date, zone: str = "UTC") -> tuple[Event, ...]:
    """The public holidays of a country (ISO code) from ``first`` to ``last``, whole days in ``zone``.

    All bear one name, so that what one did to the load is expected of the next. Raises UsageError for an unknown
    country.
    """
    import holidays as library  # noqa: PLC0415 - it comes with Prophet and takes a while

    clock = Calendar(zone=zone).clock()
    try:
        days = library.country_holidays(country, years=range(first.year, last.year + 1))
    except NotImplementedError as error:
        raise UsageError(f"no holidays are known of {country}", hint="use an ISO code such as DE or CN") from error
    found = []
    for day in sorted(days):
        if first <= day <= last:
            start = datetime(day.year, day.month, day.day, tzinfo=clock)
            following = day + timedelta(days=1)
            end = datetime(following.year, following.month, following.day, tzinfo=clock)
            found.append(Event(HOLIDAY, start.astimezone(UTC), end.astimezone(UTC)))
    return tuple(found)


def effects(series: Series, steps: int, events: Sequence[Event]) -> Floats:
    """Logs of what events do to each slot of the history and of the next ``steps``; 0 where nothing is known.

    An effect without a ratio is the median of how far the slots of earlier occasions lie from the median
    of the same time of day on other days; fewer than six such slots teach nothing.
    """
    times = np.concatenate([series.times, series.future(steps)])
    found = np.zeros(times.size)
    learned: dict[str, float] = {}
    for event in events:
        inside = (times < event.end.timestamp()) & (times + series.step > event.start.timestamp())
        if not inside.any():
            continue
        if event.ratio is not None:
            found[inside] += log(event.ratio)
            continue
        if event.name not in learned:
            learned[event.name] = _learned(series, [other for other in events if other.name == event.name])
        found[inside] += learned[event.name]
    return np.clip(found, -_FARTHEST, _FARTHEST)


def _learned(series: Series, occasions: Sequence[Event]) -> float:
    times = series.times
    inside = np.zeros(times.size, dtype=bool)
    for event in occasions:
        inside |= (times < event.end.timestamp()) & (times + series.step > event.start.timestamp())
    with np.errstate(divide="ignore"):
        logs = np.log(series.values)
    usable = np.isfinite(logs)
    place = np.arange(times.size) % series.season
    off = []
    for slot in np.flatnonzero(inside & usable):
        others = logs[(place == place[slot]) & ~inside & usable]
        if others.size:
            off.append(logs[slot] - float(np.median(others)))
    return float(np.median(off)) if len(off) >= _LEAST_SLOTS else 0.0


@dataclass(frozen=True, slots=True)
class WallClock:
    """A series by the clock on the wall, as if that were UTC.

    ``ahead`` are the wall slots of the next slots, 1 being the next one; ``origin`` is the wall's time of it.
    """

    values: Floats
    ahead: Slots
    origin: float


def by_wall_clock(series: Series, steps: int, zone: ZoneInfo) -> WallClock:
    """Put a series on the slots of a zone's clock, so that summer time moves no hour of the day.

    The hour that is skipped in spring is missing; of the one that comes twice in autumn the second stays.
    """
    count = series.values.size
    times = np.concatenate([series.times, series.future(steps)])
    moved = np.round(_offsets(times, zone) / series.step).astype(np.int64)
    places = np.arange(times.size) + moved - moved[max(0, count - 1)]
    origin = series.origin + float(moved[count - 1]) * series.step
    if not np.diff(moved).any():
        return WallClock(series.values, np.arange(1, steps + 1), origin)
    first, newest = int(places[:count].min()), int(places[count - 1])
    values = np.full(newest - first + 1, np.nan)
    inside = places[:count] <= newest
    values[places[:count][inside] - first] = series.values[inside]
    return WallClock(values, np.maximum(places[count:] - newest, 1), origin)


def _offsets(times: Floats, zone: ZoneInfo) -> Floats:
    """Seconds that the zone is ahead of UTC, at each time: looked up by the hour, where zones change."""
    hours = np.floor(times / _HOUR_SECONDS).astype(np.int64)
    first = int(hours.min())
    found: Floats = _hourly(first, int(hours.max()) - first + 1, zone)[hours - first]
    return found


@lru_cache(maxsize=64)
def _hourly(first: int, count: int, zone: ZoneInfo) -> Floats:
    """``_offsets`` of so many hours from one on, kept: all services of a plan ask for the same."""
    ahead = [
        datetime.fromtimestamp((first + n) * _HOUR_SECONDS, zone).utcoffset() or timedelta(0) for n in range(count)
    ]
    return np.array([each.total_seconds() for each in ahead])
