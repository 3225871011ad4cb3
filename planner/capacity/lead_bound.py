"""Bound of the load when a replica ordered now can serve; shared by plan and replay.

It joins the recent load with the median of the ensemble. Any past slot may be an origin, and none uses newer data. So
the newest origin is that of a plan, and all of them are those of a replay.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats, Forecast
from planner.capacity.prescale import DRAIN
from planner.forecast.ensemble import MEDIAN, at_origins


class Basis(StrEnum):
    """What a bound is made from. ``RECENT_MINUTES`` has the minutes of the recent load."""

    PRESENT = "present"  # the load of the last minute
    GROWTH = "growth"  # the recent load times the growth of the median until a replica serves
    FORECAST = "forecast"  # the larger of the recent load and the median when a replica serves


RECENT_MINUTES = {Basis.PRESENT: 1, Basis.GROWTH: 5, Basis.FORECAST: 5}
"""A mean over more minutes has less noise and follows later."""
GROWTH_LIMITS = (0.5, 3.0)
QUICK_DRAIN = timedelta(seconds=10)
"""A queue served as fast as requests in service: the queue of KEDA's rule. It starts far more replicas."""
HEADROOMS = (
    *(share / 100.0 for share in range(0, 20, 2)),
    *(0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.2, 1.5, 2.0),
)


@dataclass(frozen=True, slots=True)
class BoundRule:
    """How the bound of a service is made: ``basis`` x (1 + ``headroom``). A queue is served within ``drain``."""

    basis: Basis
    headroom: float
    drain: timedelta = DRAIN

    def bound(self, recent: Floats, now: Floats, serves: Floats) -> Floats:
        """The load to plan for. ``recent`` is the recent load; ``now`` and ``serves`` are medians of the forecast."""
        return basis_load(self.basis, recent, now, serves) * (1.0 + self.headroom)


RULES = tuple(
    BoundRule(basis, headroom, drain)
    for basis, drain in (
        (Basis.FORECAST, DRAIN),
        (Basis.GROWTH, DRAIN),
        (Basis.PRESENT, QUICK_DRAIN),
        (Basis.FORECAST, QUICK_DRAIN),
        (Basis.GROWTH, QUICK_DRAIN),
    )
    for headroom in HEADROOMS
)
"""Rules that a service's own history chooses from (``planner.replay.rule_choice``).

Those of the present load alone are a reactive autoscaler: a service whose load no forecast predicts keeps one.
"""
DEFAULT_RULE = BoundRule(Basis.FORECAST, 0.2)
"""Used without history."""
WARM_UP_DAYS = 2
"""Before so many days the load is carried forward."""
COLLAPSE_SHARE = 0.1
DOUBT_HOURS = 1


def basis_load(basis: Basis, recent: Floats, now: Floats, serves: Floats) -> Floats:
    """The load of a basis without headroom; arrays of one shape."""
    if basis is Basis.PRESENT:
        return recent
    if basis is Basis.FORECAST:
        return np.maximum(recent, serves)
    known = now > 0
    growth = np.where(known, serves, 1.0) / np.where(known, now, 1.0)
    result: Floats = recent * np.clip(growth, *GROWTH_LIMITS)
    return result


def fill_gaps(values: Floats, season: int) -> Floats:
    """Fills missing slots with the value of a day before.

    Without one a slot takes the previous value; slots before the first value take that value.
    """
    result = values.copy()
    for slot in np.flatnonzero(np.isnan(result)):
        back = result[slot - season] if slot >= season else np.nan
        result[slot] = back if np.isfinite(back) else (result[slot - 1] if slot else np.nan)
    known = result[np.isfinite(result)]
    return np.where(np.isnan(result), known[0] if known.size else 0.0, result)


def drop_collapses(values: Floats, season: int) -> Floats:
    """Removes sudden collapses: they are more often a broken meter or ingress than calm traffic.

    A slot below a tenth of both the newest accepted value and the day before counts as missing, for at most an hour. A
    load that stays low longer is accepted.
    """
    result = values.copy()
    newest, doubted = np.nan, 0
    for slot, value in enumerate(values):
        if np.isnan(value):
            continue
        before = result[slot - season] if slot >= season else np.nan
        least = COLLAPSE_SHARE * np.fmin(newest, before)
        if value < least and doubted < season * DOUBT_HOURS // 24:
            doubted += 1
            result[slot] = np.nan
            continue
        doubted = doubted if value < least else 0
        if doubted == 0:
            newest = value
    return result


def build_paths(values: Floats, season: int, step_seconds: float, steps: int) -> Floats:
    """Medians forecast at every slot of ``values`` (slots,), NaN if missing: (slots, steps + 1).

    Column 0 is the newest known slot itself.
    """
    load = fill_gaps(values, season)
    paths = np.repeat(load[:, None], steps + 1, axis=1)
    first = WARM_UP_DAYS * season
    if load.size >= first:
        origins = range(first, load.size + 1)
        known = at_origins(values, origins, step_seconds=step_seconds, steps=steps, wanted=(MEDIAN,))
        paths[first - 1 :, 1:] = known.quantiles[MEDIAN]
    return paths


def forecast_path(forecast: Forecast, newest: float) -> Floats:
    """Path of a forecast: (1, slots ahead); ``newest`` is the newest known slot."""
    return np.concatenate([[newest], forecast.quantiles[MEDIAN]])[None]


def highest_between(bounds: Floats, begin: Floats, end: Floats) -> Floats:
    """Highest value of each row between two times, in slots after its column 0: (rows, slots ahead) to (rows,).

    Between slots the load is a straight line; before the first and past the last it is constant. ``begin`` and ``end``
    are (rows,), ``end`` not before ``begin``.
    """
    rows, last = np.arange(bounds.shape[0]), bounds.shape[1] - 1
    result = np.maximum(load_at(bounds, rows, begin), load_at(bounds, rows, end))
    columns = np.arange(1, last)
    inside = (begin[:, None] < columns) & (columns < end[:, None])
    highest: Floats = np.where(inside, bounds[:, 1:last], -np.inf).max(axis=1, initial=-np.inf)
    return np.maximum(result, highest)


def load_at(bounds: Floats, rows: NDArray[np.int64], at_slot: Floats) -> Floats:
    """Load of each row at a time in slots after its column 0."""
    last = bounds.shape[1] - 1
    position = np.clip(at_slot, 0.0, last)
    low = np.minimum(position.astype(np.int64), max(0, last - 1))
    high, share = np.minimum(low + 1, last), position - low
    result: Floats = bounds[rows, low] * (1.0 - share) + bounds[rows, high] * share
    return result
