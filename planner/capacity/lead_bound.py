"""Bound of the load when a replica ordered now can serve, and until then; shared by plan and replay.

It uses the ensemble: its median, plus the distance to its 99.5 % quantile times a margin. Any past slot may be an
origin, and none uses newer data. So the newest origin is that of a plan, and all of them are those of a replay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats, Forecast
from planner.forecast.ensemble import CEILING_OVER_MAXIMUM, HISTORY_DAYS, MEDIAN, SURE, at_origins

MARGINS = (1.0, 0.5, 0.7, 0.85, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Factors of the distance from the median to the 99.5 % quantile, chosen by a service's own history (``quantile``).

The first is the default, used without history and if all do equally well. Calm traffic needs less than the full
distance: waits cost the same, and the queue is served anyway.
"""
DEFAULT_MARGIN = MARGINS[0]
WARM_UP_DAYS = 2
"""Before so many days the load is carried forward with ``UNKNOWN_SHARE`` added."""
UNKNOWN_SHARE = 0.3
COLLAPSE_SHARE = 0.1
DOUBT_HOURS = 1
LINE_MINUTES = 3
_LINE_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Paths:
    """Load paths from each origin: (origins, slots ahead), column 0 is the newest known slot itself.

    ``sure`` is the 99.5 % quantile. No bound exceeds ``most`` (origins,) or falls below the median.
    """

    usual: Floats
    sure: Floats
    most: Floats

    def bound(self, margin: float) -> Floats:
        """The load to plan for, in the shape of the paths."""
        planned = self.usual + margin * (self.sure - self.usual)
        return np.maximum(np.minimum(planned, self.most[:, None]), self.usual)


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


def build_paths(values: Floats, season: int, step_seconds: float, steps: int) -> Paths:
    """Paths of every slot of ``values`` (slots,), NaN if missing, from ensemble forecasts made at that slot."""
    load = fill_gaps(values, season)
    usual = np.repeat(load[:, None], steps + 1, axis=1)
    sure = usual * (1.0 + UNKNOWN_SHARE)
    first = WARM_UP_DAYS * season
    if load.size >= first:
        origins = range(first, load.size + 1)
        quantiles = at_origins(values, origins, step_seconds=step_seconds, steps=steps, wanted=(MEDIAN, SURE)).quantiles
        usual[first - 1 :, 1:], sure[first - 1 :, 1:] = quantiles[MEDIAN], quantiles[SURE]
    sure[:, 0] = load
    span = min(load.size, HISTORY_DAYS * season)
    padded = np.concatenate([np.repeat(load[:1], span - 1), load])
    highest = np.lib.stride_tricks.sliding_window_view(padded, span).max(axis=-1)
    return Paths(usual, np.maximum(sure, usual), CEILING_OVER_MAXIMUM * highest)


def forecast_path(forecast: Forecast, newest: float, most: float) -> Paths:
    """Path of a forecast; ``newest`` is the newest known slot, ``most`` the cap of the bound.

    A forecast of an earlier version without the 99.5 % quantile uses its highest one.
    """
    sure = forecast.quantiles[SURE if SURE in forecast.quantiles else max(forecast.quantiles)]
    usual = np.concatenate([[newest], forecast.quantiles[MEDIAN]])[None]
    return Paths(usual, np.maximum(np.concatenate([[newest], sure])[None], usual), np.array([most]))


def highest_between(bounds: Floats, begin: Floats, end: Floats) -> Floats:
    """Highest value of each row between two times, in slots after its column 0: (rows, slots ahead) to (rows,).

    Between slots the load is a straight line; before the first and past the last it is constant. ``begin`` and ``end``
    are (rows,), ``end`` not before ``begin``.
    """
    rows, last = np.arange(bounds.shape[0]), bounds.shape[1] - 1
    result = np.maximum(_at(bounds, rows, begin), _at(bounds, rows, end))
    columns = np.arange(1, last)
    inside = (begin[:, None] < columns) & (columns < end[:, None])
    highest: Floats = np.where(inside, bounds[:, 1:last], -np.inf).max(axis=1, initial=-np.inf)
    return np.maximum(result, highest)


def _at(bounds: Floats, rows: NDArray[np.int64], at_slot: Floats) -> Floats:
    last = bounds.shape[1] - 1
    position = np.clip(at_slot, 0.0, last)
    low = np.minimum(position.astype(np.int64), max(0, last - 1))
    high, share = np.minimum(low + 1, last), position - low
    result: Floats = bounds[rows, low] * (1.0 - share) + bounds[rows, high] * share
    return result


def extrapolate_line(minutes: Floats, ahead: Floats) -> Floats:
    """Extends the line of the newest minutes (rows, ``LINE_MINUTES``) by ``ahead`` (rows,) minutes.

    NaN if the minutes are not on one line: noise must not be extrapolated. Never below 0.
    """
    slope = (minutes[:, -1] - minutes[:, 0]) / (minutes.shape[1] - 1)
    line = minutes[:, :1] + slope[:, None] * np.arange(minutes.shape[1])
    level = np.maximum(np.abs(minutes).max(axis=1), 1e-12)
    off = np.abs(minutes - line).max(axis=1)
    return np.where(off <= _LINE_TOLERANCE * level, np.maximum(minutes[:, -1] + slope * ahead, 0.0), np.nan)
