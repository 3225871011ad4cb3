"""When capacity is needed, when it must be started, and when it may be given back.

A forecast adds replicas and never takes one away. A replica is given back only when the survivors,
carrying its share, still have room, and only while the values can be trusted (safety rules 1 to 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np

from outrider.clock import from_unix
from outrider.model import Calibration, Floats, Forecast, PlanReason

P95 = 0.95
HYSTERESIS = 0.05
"""Survivors keep this much more room than they need, so that constant load with noise never flaps."""

NO_REVERSAL = timedelta(minutes=30)
"""Scale-in looks this far back and, past the lead time, ahead: what would be needed again stays."""

FRESH_SLOTS = 3


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest load of a stretch of time, in requests per second."""

    value: float
    at: datetime | None


@dataclass(frozen=True, slots=True)
class LoadNow:
    """The newest load in requests per second. None where it cannot be trusted.

    ``before`` is the highest of the half hour before the newest value and of the same time a day and a week
    earlier, None where none of them is known.
    """

    newest: float | None
    recent: float | None
    before: float | None = None

    @property
    def trusted(self) -> bool:
        """True when the newest slots hold a fresh value."""
        return self.newest is not None


@dataclass(frozen=True, slots=True)
class Target:
    """How many replicas, what bound the number, and why."""

    replicas: int
    binding: str
    reason: PlanReason


def load_now(times: Floats, values: Floats, held: np.ndarray, now: datetime, step: timedelta) -> LoadNow:
    """The load of the newest slot and the highest of the last half hour.

    ``held`` is True where a cell must not be believed. Nothing within three steps before ``now``
    means: not trusted.
    """
    known = np.isfinite(values) & ~held & (times < now.timestamp())
    fresh = known & (times >= (now - FRESH_SLOTS * step).timestamp())
    # The newest slots decide: one believable value behind two lost ones is old news.
    if not fresh.any():
        return LoadNow(None, None)
    recent = known & (times >= (now - max(NO_REVERSAL, FRESH_SLOTS * step)).timestamp())
    newest = np.flatnonzero(fresh)[-1]
    newer_held = held[newest + 1 :] & (times[newest + 1 :] < now.timestamp())
    if newer_held.sum() >= FRESH_SLOTS - 1:
        return LoadNow(None, None)
    return LoadNow(
        float(values[newest]), float(values[recent].max()), _before(times, values, known, float(times[newest]))
    )


def _before(times: Floats, values: Floats, known: np.ndarray, newest: float) -> float | None:
    """The highest of what went before, and of what was usual at this time of the day and of the week."""
    half_hour = NO_REVERSAL.total_seconds()
    alike = known & (times < newest) & (times >= newest - half_hour)
    for days in (1, 7):
        alike |= known & (np.abs(times - (newest - days * 86400.0)) <= half_hour)
    return float(values[alike].max()) if alike.any() else None


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    """How fast a service may grow: in one plan, and in one hour. Whichever of the two numbers is larger counts.

    A single sample above ``spike_ratio`` times what went before is believed when the next one says the same.
    ``cooling`` is how long after a scale-out nothing is taken away.
    """

    step_ratio: float = 2.0
    step_replicas: int = 4
    hour_ratio: float = 4.0
    hour_replicas: int = 16
    spike_ratio: float = 3.0
    cooling: timedelta = NO_REVERSAL


def most(current: int, lately: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits) -> int:
    """The most replicas that may be ordered now: bounded by one step, and by the fewest of the last hour."""
    fewest = min([current, *(count for at, count in lately if at >= now - timedelta(hours=1))])
    step = max(int(current * limits.step_ratio), current + limits.step_replicas)
    hour = max(int(fewest * limits.hour_ratio), fewest + limits.hour_replicas)
    return max(current, min(step, hour))


def is_cooling(current: int, lately: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits) -> bool:
    """True while replicas were added within the cooling time: the direction is not reversed so soon."""
    recent = [count for at, count in lately if now - limits.cooling <= at <= now]
    return any(after > before for before, after in pairwise([*recent, current]))


def peak(forecast: Forecast, until: datetime, quantile: float = P95) -> Peak:
    """The highest load up to ``until``; at least the first step is always looked at.

    Its value is the quantile of the peak where the forecast has one, else the highest quantile of a step.
    """
    values = forecast.quantiles[quantile]
    count = max(1, int(np.searchsorted(forecast.times, until.timestamp(), side="right")))
    index = int(np.argmax(values[:count]))
    highest = float(values[index])
    if quantile in forecast.peaks:
        highest = float(forecast.peaks[quantile][min(count, values.size) - 1])
    return Peak(highest, from_unix(float(forecast.times[index])))


def first_need(forecast: Forecast, capacity: float, quantile: float = P95) -> datetime | None:
    """The first instant at which the forecast exceeds ``capacity`` requests per second; None if never."""
    above = np.flatnonzero(forecast.quantiles[quantile] > capacity * (1 + 1e-9))
    return from_unix(float(forecast.times[above[0]])) if above.size else None


def capacity_per_second(calibration: Calibration, replicas: int, buffer: float) -> float:
    """Requests per second that ``replicas`` carry with the buffer kept free."""
    sequences = replicas * calibration.batch
    return sequences * calibration.tokens_per_second_per_sequence / calibration.tokens_per_request / (1.0 + buffer)


def target(
    *,
    current: int,
    floor: int,
    ceiling: int,
    need_now: int | None,
    need_forecast: int,
    need_survivors: int,
    quota: int | None = None,
    most: int | None = None,
    ready: int | None = None,
    cooling: bool = False,
    doubted: bool = False,
) -> Target:
    """Replicas to run: clamp(floor, ceiling, max(need now, forecast)), scale-in only where it is safe.

    ``need_now`` None means that the load cannot be trusted: then nothing is taken away.
    ``need_survivors`` is what the load of the last and next half hour needs with some room on top; it
    limits scale-in alone. ``quota`` are the replicas that the GPUs allowed make, ``most`` what one step may
    reach, ``ready`` those that serve; ``doubted`` when a spike was not believed.
    """
    top, name, at_top = ceiling, "ceiling", PlanReason.AT_CEILING
    if quota is not None and quota < ceiling:
        top, name, at_top = quota, "quota", PlanReason.AT_QUOTA
    wanted = max(need_now or 0, need_forecast)
    clamped = min(max(wanted, floor), top)
    if max(wanted, floor) > top:
        limit = Target(clamped, name, at_top)
    elif wanted < floor:
        limit = Target(clamped, "floor", PlanReason.AT_FLOOR)
    elif clamped > current:
        by_load = need_now is not None and need_now >= need_forecast
        limit = Target(clamped, *(("load", PlanReason.LOAD_NOW) if by_load else ("forecast", PlanReason.FORECAST_PEAK)))
    elif clamped == current and ready is not None and ready < wanted:
        limit = Target(clamped, "ready", PlanReason.NOT_READY_YET)
    else:
        limit = Target(clamped, "load", PlanReason.ENOUGH)
    if most is not None and clamped > max(most, floor):
        return Target(max(most, floor, current), "step", PlanReason.STEP_LIMIT)
    if clamped >= current:
        return replace(limit, reason=PlanReason.SPIKE_DOUBTED) if doubted else limit
    survivors = _Survivors(current, clamped, top, name, need_survivors)
    return _scale_in(limit, survivors, need_now is not None, ready, cooling=cooling)


@dataclass(frozen=True, slots=True)
class _Survivors:
    current: int
    clamped: int
    top: int
    limit: str
    need: int


def _scale_in(wish: Target, of: _Survivors, trusted: bool, ready: int | None, *, cooling: bool) -> Target:
    """The first reason that holds replicas back, else as few as the survivors can bear.

    A limit that more replicas than it allows run beyond is named, and never takes away what the load needs.
    """
    if not trusted:
        return Target(of.current, "values", PlanReason.SCALE_IN_HELD_NO_VALUES)
    if of.need >= of.current:
        over = of.current > of.top
        named = (of.limit, PlanReason.OVER_LIMIT) if over else ("survivors", PlanReason.SURVIVORS_TOO_BUSY)
        return Target(of.current, *named)
    if ready is not None and ready < of.need:
        return Target(of.current, "ready", PlanReason.NOT_READY_YET)
    if cooling:
        return Target(of.current, "cooling", PlanReason.SCALE_IN_COOLING)
    if of.need <= of.clamped:
        return wish
    over = of.need > of.top
    return Target(of.need, *((of.limit, PlanReason.OVER_LIMIT) if over else ("survivors", PlanReason.ENOUGH)))
