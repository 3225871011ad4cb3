"""The traffic of a scaling replay: what arrives, what is seen of it, and what a replica carries."""

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

PEAK_REPLICAS = 40
PEAK_PERCENTILE = 99.9
WARM_UP_DAYS = (4, 8)
"""Days that are not counted of a trace of up to ten days, and of a longer one."""
LONG_TRACE_DAYS = 10.0
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class World:
    """A trace as traffic of a fleet.

    ``load`` is requests per second, minute by minute, straight lines between the slots of the trace; a
    missing slot is worth what it was a day before. ``seen`` is False for minutes of missing slots:
    policies do not see those. ``slots`` has a value a slot, NaN where missing. One replica carries
    ``per_replica`` requests per second. Minutes before ``first`` are warm-up.
    """

    name: str
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
        """Replicas that the highest minute counted needs: the static fleet of hindsight."""
        return whole(float(self.load[self.first :].max()) / self.per_replica)

    @property
    def need(self) -> Floats:
        """Replicas that carry each minute."""
        found: Floats = np.ceil(self.load / self.per_replica - _ROUNDING)
        return found


def whole(amount: float) -> int:
    """Replicas for an amount of replicas' work."""
    return ceil(amount - _ROUNDING)


def world(trace: Trace) -> World:
    """Make traffic of a trace.

    Raises UsageError when slots are no whole minutes that divide a day, or when the trace ends before
    there is anything to count.
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
    places = np.arange((slots.size - 1) * slot + 1)
    if places.size <= first:
        raise UsageError(
            f"{trace.name}: {series.days:.1f} days are too few to replay",
            hint=f"the first {warm_up} days are warm-up: give more than {warm_up} days, 7 or 14 are usual",
        )
    load = np.interp(places / slot, np.arange(slots.size), whole_slots)
    carried = float(np.percentile(load, PEAK_PERCENTILE)) / PEAK_REPLICAS
    highest = float(load.max())
    if highest <= 0:
        raise UsageError(f"{trace.name}: nothing ever arrives", hint="check the column requests_per_second")
    # a trace whose load is a few bursts may have a percentile of nothing
    per_replica = carried if carried > 0 else highest / PEAK_REPLICAS
    seen = np.isfinite(slots)[places // slot]
    return World(trace.name, load, seen, slots, slot, per_replica, first)
