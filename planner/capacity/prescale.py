"""When capacity is needed, when it must be started, and when it may be given back.

A forecast adds replicas and never takes one away. A replica is given back only when the survivors,
carrying its share, still have room, and only while the values can be trusted (safety rules 1 to 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np

from outrider.clock import from_unix
from outrider.model import Floats, Forecast, PlanReason

P95 = 0.95
HYSTERESIS = 0.05
"""Survivors keep this much more room than they need, so that constant load with noise never flaps."""

NO_REVERSAL = timedelta(minutes=30)
"""Scale-in looks this far back and, past the lead time, ahead: what would be needed again stays."""

LOOK_PAST_LEAD = timedelta(minutes=5)
"""What is needed so soon after a start-up is not given back now."""

STEADY = 0.1
"""A load that stayed within this share of itself for half an hour is called constant."""

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
    earlier, None where none of them is known. ``steady``: it stayed within a tenth for half an hour.
    """

    newest: float | None
    recent: float | None
    before: float | None = None
    steady: bool = False

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
    highest, lowest = float(values[recent].max()), float(values[recent].min())
    before = _before(times, values, known, float(times[newest]))
    return LoadNow(float(values[newest]), highest, before, steady=highest <= lowest * (1.0 + STEADY))


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
    return int(reachable(np.array([float(current)]), np.array([float(fewest)]), limits)[0])


def reachable(current: Floats, fewest: Floats, limits: ScaleLimits) -> Floats:
    """The same of many fleets: (fleets,), ``fewest`` replicas each had within the last hour."""
    step = np.maximum(np.floor(current * limits.step_ratio), current + limits.step_replicas)
    hour = np.maximum(np.floor(fewest * limits.hour_ratio), fewest + limits.hour_replicas)
    found: Floats = np.maximum(current, np.minimum(step, hour))
    return found


def is_cooling(current: int, lately: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits) -> bool:
    """True while replicas were added within the cooling time: the direction is not reversed so soon."""
    return any(after > before for before, after in _moves(current, lately, now, limits))


def is_shrunk(current: int, lately: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits) -> bool:
    """True while replicas were taken away within the cooling time."""
    return any(after < before for before, after in _moves(current, lately, now, limits))


def _moves(
    current: int, lately: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits
) -> Iterator[tuple[int, int]]:
    """The counts before and after each look within the cooling time."""
    return pairwise([*(count for at, count in lately if now - limits.cooling <= at <= now), current])


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


def decide(
    *,
    current: Floats,
    ready: Floats,
    now: Floats,
    coming: Floats,
    stay: Floats,
    floor: float = 0.0,
    top: float = np.inf,
    most: Floats | float = np.inf,
    cooling: np.ndarray | bool = False,
    shrunk: np.ndarray | bool = False,
) -> Floats:
    """Replicas to run, in whole replicas, of many fleets at once: the one decision of a plan and of a replay.

    The larger of what is needed ``now`` (by load, queue and running; NaN where the load cannot be trusted) and
    ``coming`` (what the forecast asks for when replicas ordered now can serve), within ``floor`` and ``top``, and
    not above ``most``, what one step and one hour may reach. Fewer than ``current`` only where the load is
    trusted, the survivors (``stay``) have room and serve, and nothing was added within the cooling time: a
    forecast never takes away. Where replicas were taken away a moment ago at a constant load (``shrunk``), a
    forecast alone adds none. Arrays are (fleets,).
    """
    coming = np.where(shrunk, np.minimum(coming, np.fmax(current, now)), coming)
    clamped = np.minimum(np.maximum(np.maximum(np.nan_to_num(now), coming), floor), top)
    more = np.minimum(clamped, np.maximum(np.maximum(most, floor), current))
    held = np.isnan(now) | (stay >= current) | (ready < stay) | cooling
    fewer = np.where(held, current, np.minimum(np.maximum(clamped, stay), current))
    found: Floats = np.where(clamped >= current, more, fewer)
    return found


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
    shrunk: bool = False,
    doubted: bool = False,
) -> Target:
    """What ``decide`` says of one service, with the reason.

    ``need_now`` None means that the load cannot be trusted. ``need_survivors`` is what the load of the last and
    next half hour needs with some room on top; it limits scale-in alone. ``quota`` are the replicas that the GPUs
    allowed make, ``most`` what one step may reach, ``ready`` those that serve; ``doubted`` when a spike was not
    believed.
    """
    top, name, at_top = ceiling, "ceiling", PlanReason.AT_CEILING
    if quota is not None and quota < ceiling:
        top, name, at_top = quota, "quota", PlanReason.AT_QUOTA
    replicas = int(
        decide(
            current=np.array([float(current)]),
            ready=np.array([float(need_survivors if ready is None else ready)]),
            now=np.array([np.nan if need_now is None else float(need_now)]),
            coming=np.array([float(need_forecast)]),
            stay=np.array([float(need_survivors)]),
            floor=floor,
            top=top,
            most=np.inf if most is None else most,
            cooling=cooling,
            shrunk=shrunk,
        )[0]
    )
    wanted = max(need_now or 0, need_forecast)
    clamped = min(max(wanted, floor), top)
    by_load = need_now is not None and need_now >= need_forecast
    if max(wanted, floor) > top:
        limit = Target(replicas, name, at_top)
    elif wanted < floor:
        limit = Target(replicas, "floor", PlanReason.AT_FLOOR)
    elif clamped > current:
        limit = Target(
            replicas, *(("load", PlanReason.LOAD_NOW) if by_load else ("forecast", PlanReason.FORECAST_PEAK))
        )
    elif clamped == current and ready is not None and ready < wanted:
        limit = Target(replicas, "ready", PlanReason.NOT_READY_YET)
    else:
        limit = Target(replicas, "load" if by_load else "forecast", PlanReason.ENOUGH)
    if replicas == current < clamped and shrunk:
        return Target(replicas, "cooling", PlanReason.SCALE_OUT_COOLING)
    if most is not None and clamped > max(most, floor):
        return Target(replicas, "step", PlanReason.STEP_LIMIT)
    if clamped >= current:
        return replace(limit, reason=PlanReason.SPIKE_DOUBTED) if doubted else limit
    survivors = _Survivors(current, clamped, replicas, top, name, need_survivors)
    return _scale_in(limit, survivors, need_now is not None, ready, cooling=cooling)


@dataclass(frozen=True, slots=True)
class _Survivors:
    current: int
    clamped: int
    replicas: int
    top: int
    limit: str
    need: int


def _scale_in(wish: Target, of: _Survivors, trusted: bool, ready: int | None, *, cooling: bool) -> Target:
    """Why so many stay: the first reason that holds replicas back, else ``wish``.

    A limit that more replicas than it allows run beyond is named, and never takes away what the load needs.
    """
    if not trusted:
        return Target(of.replicas, "values", PlanReason.SCALE_IN_HELD_NO_VALUES)
    if of.need >= of.current:
        over = of.current > of.top
        named = (of.limit, PlanReason.OVER_LIMIT) if over else ("survivors", PlanReason.SURVIVORS_TOO_BUSY)
        return Target(of.replicas, *named)
    if ready is not None and ready < of.need:
        return Target(of.replicas, "ready", PlanReason.NOT_READY_YET)
    if cooling:
        return Target(of.replicas, "cooling", PlanReason.SCALE_IN_COOLING)
    if of.need <= of.clamped:
        return wish
    over = of.need > of.top
    return Target(of.replicas, *((of.limit, PlanReason.OVER_LIMIT) if over else ("survivors", PlanReason.ENOUGH)))
