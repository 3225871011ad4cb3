"""Scaling decisions: when capacity is needed, when to start it, and when to remove it.

A forecast adds replicas and never removes one. A replica is removed only if the survivors have room for its share of
the load, and only while the values are trusted (safety rules 1 to 3).
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
"""Extra headroom of survivors, so that constant load with noise never flaps."""

NO_REVERSAL = timedelta(minutes=30)
"""Scale-in considers this much time before now and, past the lead time, ahead: replicas needed again stay."""

LOOK_PAST_LEAD = timedelta(minutes=5)
"""Replicas needed so soon after a start-up are not removed now."""

STEADY = 0.1
"""A load within this share of itself for half an hour counts as constant."""

DRAIN = timedelta(minutes=1)
"""Replicas added for a queue would serve it in this time; in the plan and in the replay."""

STEP_WINDOW = timedelta(minutes=10)
"""Plans made within this time of each other add one step together, not one step each."""

FRESH_SLOTS = 3


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest load of a period, in requests per second."""

    value: float
    at: datetime | None


@dataclass(frozen=True, slots=True)
class LoadNow:
    """The newest load in requests per second, None if it is not trusted.

    ``before`` is the highest of the half hour before the newest value and of the same time a day and a week earlier,
    None if none of them is known. ``steady``: within a tenth for half an hour.
    """

    newest: float | None
    recent: float | None
    before: float | None = None
    steady: bool = False

    @property
    def trusted(self) -> bool:
        """True if the newest slots have a fresh value."""
        return self.newest is not None


@dataclass(frozen=True, slots=True)
class Target:
    """Target replicas, the limit that bound them, and the reason."""

    replicas: int
    binding: str
    reason: PlanReason


def load_now(times: Floats, values: Floats, untrusted: np.ndarray, now: datetime, step: timedelta) -> LoadNow:
    """Returns the load of the newest slot and the highest of the last half hour.

    ``untrusted`` is True for cells that must not be used. Without a value within three steps before ``now`` the load is
    not trusted.
    """
    known = np.isfinite(values) & ~untrusted & (times < now.timestamp())
    fresh = known & (times >= (now - FRESH_SLOTS * step).timestamp())
    # The newest slots decide: one valid value before two missing ones is out of date.
    if not fresh.any():
        return LoadNow(None, None)
    recent = known & (times >= (now - max(NO_REVERSAL, FRESH_SLOTS * step)).timestamp())
    newest = np.flatnonzero(fresh)[-1]
    newer_untrusted = untrusted[newest + 1 :] & (times[newest + 1 :] < now.timestamp())
    if newer_untrusted.sum() >= FRESH_SLOTS - 1:
        return LoadNow(None, None)
    highest, lowest = float(values[recent].max()), float(values[recent].min())
    before = _before(times, values, known, float(times[newest]))
    return LoadNow(float(values[newest]), highest, before, steady=highest <= lowest * (1.0 + STEADY))


def _before(times: Floats, values: Floats, known: np.ndarray, newest: float) -> float | None:
    """Highest of the preceding values, and of those at this time of the day and of the week."""
    half_hour = NO_REVERSAL.total_seconds()
    reference = known & (times < newest) & (times >= newest - half_hour)
    for days in (1, 7):
        reference |= known & (np.abs(times - (newest - days * 86400.0)) <= half_hour)
    return float(values[reference].max()) if reference.any() else None


@dataclass(frozen=True, slots=True)
class ScaleLimits:
    """Limits on the growth of a service in one plan and in one hour; the larger of ratio and count applies.

    A single sample above ``spike_ratio`` times the earlier load is accepted if the next one confirms it. ``cooling`` is
    the time after a scale-out without a scale-in. A queue is served within ``drain``.
    """

    step_ratio: float = 2.0
    step_replicas: int = 4
    hour_ratio: float = 4.0
    hour_replicas: int = 16
    spike_ratio: float = 3.0
    cooling: timedelta = NO_REVERSAL
    drain: timedelta = DRAIN


def most_replicas(current: int, recent: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits) -> int:
    """The most replicas allowed now: limited by one step, and by the fewest of the last hour.

    The step is counted from the fewest since the last scheduled plan: several plans of a surge share one step.
    """
    fewest = min([current, *(count for at, count in recent if at >= now - timedelta(hours=1))])
    base = min([current, *(count for at, count in recent if now - STEP_WINDOW < at)])
    allowed = reachable_replicas(np.array([float(base)]), np.array([float(fewest)]), limits)[0]
    return max(current, int(allowed))


def reachable_replicas(current: Floats, fewest: Floats, limits: ScaleLimits) -> Floats:
    """The most replicas of many fleets: (fleets,); ``fewest`` is the minimum of each in the last hour."""
    step = np.maximum(np.floor(current * limits.step_ratio), current + limits.step_replicas)
    hour = np.maximum(np.floor(fewest * limits.hour_ratio), fewest + limits.hour_replicas)
    result: Floats = np.maximum(current, np.minimum(step, hour))
    return result


def is_cooling(current: int, recent: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits) -> bool:
    """True if replicas were added within the cooling time: no scale-in so soon."""
    return any(after > before for before, after in _count_changes(current, recent, now, limits))


def is_shrunk(current: int, recent: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits) -> bool:
    """True if replicas were removed within the cooling time."""
    return any(after < before for before, after in _count_changes(current, recent, now, limits))


def _count_changes(
    current: int, recent: Sequence[tuple[datetime, int]], now: datetime, limits: ScaleLimits
) -> Iterator[tuple[int, int]]:
    """Replica counts before and after each observation within the cooling time."""
    return pairwise([*(count for at, count in recent if now - limits.cooling <= at <= now), current])


def peak(forecast: Forecast, until: datetime, quantile: float = P95) -> Peak:
    """Returns the highest load up to ``until``, of the first step at least.

    Its value is the quantile of the peak if the forecast has one, otherwise the highest quantile of a step.
    """
    values = forecast.quantiles[quantile]
    count = max(1, int(np.searchsorted(forecast.times, until.timestamp(), side="right")))
    index = int(np.argmax(values[:count]))
    highest = float(values[index])
    if quantile in forecast.peaks:
        highest = float(forecast.peaks[quantile][min(count, values.size) - 1])
    return Peak(highest, from_unix(float(forecast.times[index])))


def first_need(forecast: Forecast, capacity: float, quantile: float = P95) -> datetime | None:
    """The first time at which the forecast exceeds ``capacity`` requests per second; None if never."""
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
    """Replicas to run, in whole replicas, of many fleets at once: the decision shared by plan and replay.

    The larger of the need ``now`` (by load, queue and running; NaN if the load is not trusted) and ``coming`` (the
    forecast's need when replicas ordered now can serve), within ``floor`` and ``top``, and at most ``most``, the limit
    of one step and one hour. Fewer than ``current`` only if the load is trusted, the survivors (``stay``) have room and
    serve, and nothing was added within the cooling time: a forecast never removes replicas. If replicas were removed
    recently at a constant load (``shrunk``), a forecast alone adds no tenth. Arrays are (fleets,).
    """
    # more than noise is a rise that the forecast expects, and not a reversal
    doubtful = np.asarray(shrunk) & (coming <= current * (1.0 + STEADY))
    coming = np.where(doubtful, np.minimum(coming, np.fmax(current, now)), coming)
    clamped = np.minimum(np.maximum(np.maximum(np.nan_to_num(now), coming), floor), top)
    more = np.minimum(clamped, np.maximum(np.maximum(most, floor), current))
    no_scale_in = np.isnan(now) | (stay >= current) | (ready < stay) | cooling
    fewer = np.where(no_scale_in, current, np.minimum(np.maximum(clamped, stay), current))
    result: Floats = np.where(clamped >= current, more, fewer)
    return result


def target(
    *,
    current: int,
    floor: int,
    ceiling: int,
    need_now: int | None,
    need_forecast: int,
    need_survivors: int,
    quota: int | None = None,
    placeable: int | None = None,
    most: int | None = None,
    ready: int | None = None,
    cooling: bool = False,
    shrunk: bool = False,
    doubted: bool = False,
) -> Target:
    """Applies ``decide`` to one service, and returns the reason.

    ``need_now`` None means that the load is not trusted. ``need_survivors`` is the need of the last and next half hour
    with hysteresis; it limits scale-in alone. ``quota`` is the allowed GPUs in replicas, ``placeable`` the replicas
    for which the fleet has GPUs: it removes none that are ordered. ``most`` is the limit of one step, ``ready`` the
    serving replicas. ``doubted`` is True if a spike was not accepted.
    """
    top, name, at_top = ceiling, "ceiling", PlanReason.AT_CEILING
    if quota is not None and quota < ceiling:
        top, name, at_top = quota, "quota", PlanReason.AT_QUOTA
    if placeable is not None and max(placeable, current) < top:
        top, name, at_top = max(placeable, current), "free_gpus", PlanReason.NO_GPU_FREE
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


def _scale_in(target: Target, of: _Survivors, trusted: bool, ready: int | None, *, cooling: bool) -> Target:
    """The first reason that keeps replicas, otherwise ``target``.

    A limit exceeded by the current replicas is named, and never removes what the load needs.
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
        return target
    over = of.need > of.top
    return Target(of.replicas, *((of.limit, PlanReason.OVER_LIMIT) if over else ("survivors", PlanReason.ENOUGH)))
