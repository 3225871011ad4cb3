"""Workload of a scaling replay: arriving requests, their observed part, and the capacity of a replica."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import ceil

import numpy as np
from numpy.typing import NDArray

from outrider.clock import from_unix
from outrider.errors import UsageError
from outrider.model import Floats
from planner.capacity.lead_bound import fill_gaps
from planner.forecast.series import DAY_SECONDS, Series
from planner.replay.backtest import Trace

RATE_VARIATION = 0.05
"""Coefficient of variation of the rate from minute to minute."""
SEED = 7
PEAK_REPLICAS = 40
PEAK_PERCENTILE = 99.9
WARM_UP_DAYS = (4, 8)
"""Uncounted days of a trace of up to ten days, and of a longer one."""
LONG_TRACE_DAYS = 10.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace as traffic of a fleet.

    ``load`` is the counted arrivals of each minute, in requests per second. ``expected`` is the rate behind them, which
    no policy sees: interpolated between the slots of the trace; a missing slot takes the value of a day before.
    ``seen`` is False for minutes of missing slots: policies do not observe those. ``slots`` are means of the counted
    minutes of complete slots, NaN if missing. One replica serves ``per_replica`` requests per second. Minutes before
    ``first`` are warm-up.
    """

    name: str
    expected: Floats
    load: Floats
    seen: NDArray[np.bool_]
    slots: Floats
    slot_minutes: int
    per_replica: float
    first: int

    @property
    def season(self) -> int:
        """Slots of a day."""
        return round(DAY_SECONDS / 60.0) // self.slot_minutes

    @property
    def peak(self) -> int:
        """Replicas needed in the highest counted minute: the static fleet of hindsight."""
        return whole(float(self.load[self.first :].max()) / self.per_replica)

    @property
    def need(self) -> Floats:
        """Replicas needed in each minute."""
        replicas: Floats = np.ceil(self.load / self.per_replica - _ROUNDING)
        return replicas


def whole(amount: float) -> int:
    """Rounds up to whole replicas."""
    return ceil(amount - _ROUNDING)


def build_workload(trace: Trace) -> Workload:
    """Builds the workload of a trace.

    Raises UsageError if slots are not whole minutes (up to 60) that divide a day, or if the trace ends before the
    counted time.
    """
    minutes = trace.step / timedelta(minutes=1)
    if minutes < 1 or minutes > 60 or minutes != int(minutes) or 1440 % int(minutes):
        raise UsageError(
            f"{trace.name}: a slot of {trace.step} cannot be replayed",
            hint="give request rates in steps of whole minutes that divide an hour, such as 10 minutes",
        )
    slot = int(minutes)
    end = from_unix(float(trace.times[-1]) + slot * 60.0)
    series = Series.of(trace.times, trace.values, trace.step, end)
    slots = series.values
    if not np.isfinite(slots).any():
        raise UsageError(f"{trace.name}: no slot has a value", hint="check the column requests_per_second")
    warm_up = WARM_UP_DAYS[series.days > LONG_TRACE_DAYS]
    first = warm_up * 1440
    whole_slots = fill_gaps(slots, series.season)
    minutes_of_trace = np.arange((slots.size - 1) * slot + 1)
    if minutes_of_trace.size <= first:
        raise UsageError(
            f"{trace.name}: {series.days:.1f} days are not enough to replay",
            hint=f"the first {warm_up} days are warm-up: give more than {warm_up} days, 7 or 14 are usual",
        )
    expected = np.interp(minutes_of_trace / slot, np.arange(slots.size), whole_slots)
    load = arrivals(expected)
    per_replica_at_peak = float(np.percentile(load, PEAK_PERCENTILE)) / PEAK_REPLICAS
    highest = float(load.max())
    if highest <= 0:
        raise UsageError(f"{trace.name}: the load is always 0", hint="check the column requests_per_second")
    # a trace of a few bursts may have a percentile of zero
    per_replica = per_replica_at_peak if per_replica_at_peak > 0 else highest / PEAK_REPLICAS
    seen = np.isfinite(slots)[minutes_of_trace // slot]
    return Workload(trace.name, expected, load, seen, _means(load, seen, slot), slot, per_replica, first)


def arrivals(expected: Floats, seed: int = SEED) -> Floats:
    """Counted requests of each minute, per second: over-dispersed Poisson counts.

    The rate of each minute is the expected one times a gamma factor of mean 1, independent from minute to minute.
    """
    random = np.random.default_rng(seed)
    shape = 1.0 / RATE_VARIATION**2
    rates = expected * random.gamma(shape, 1.0 / shape, expected.size)
    result: Floats = random.poisson(rates * 60.0) / 60.0
    return result


def _means(load: Floats, seen: NDArray[np.bool_], slot: int) -> Floats:
    count = load.size // slot * slot
    minutes = np.where(seen[:count], load[:count], np.nan).reshape(-1, slot)
    result: Floats = minutes.mean(axis=1)
    return result
