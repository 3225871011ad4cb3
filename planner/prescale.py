"""When capacity is needed, when it must be started, and when it may be given back.

A forecast adds replicas and never takes one away. A replica is given back only when the survivors,
carrying its share, still have room, and only while the values can be trusted (safety rules 1 to 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

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
    """The newest load in requests per second. None where it cannot be trusted."""

    newest: float | None
    recent: float | None

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
    return LoadNow(float(values[newest]), float(values[recent].max()))


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
) -> Target:
    """Replicas to run: clamp(floor, ceiling, max(need now, forecast)), scale-in only where it is safe.

    ``need_now`` None means that the load cannot be trusted: then nothing is taken away.
    ``need_survivors`` is what the load of the last and next half hour needs with some room on top; it
    limits scale-in alone.
    """
    wanted = max(need_now or 0, need_forecast)
    clamped = min(max(wanted, floor), ceiling)
    if wanted > ceiling:
        limit = Target(clamped, "ceiling", PlanReason.AT_CEILING)
    elif wanted < floor:
        limit = Target(clamped, "floor", PlanReason.AT_FLOOR)
    elif clamped > current:
        by_load = need_now is not None and need_now >= need_forecast
        limit = Target(clamped, *(("load", PlanReason.LOAD_NOW) if by_load else ("forecast", PlanReason.FORECAST_PEAK)))
    else:
        limit = Target(clamped, "load", PlanReason.ENOUGH)
    if clamped >= current:
        return limit
    if need_now is None:
        return Target(current, "values", PlanReason.SCALE_IN_HELD_NO_VALUES)
    if need_survivors >= current:
        return Target(current, "survivors", PlanReason.SURVIVORS_TOO_BUSY)
    return limit if need_survivors <= clamped else Target(need_survivors, "survivors", PlanReason.ENOUGH)
