"""The load when a replica that is ordered now can serve, and the highest until then: one bound for plan and replay.

It stands on the forecaster of the plan, the fast tier: its median, and as much more as its 99.5 % quantile lies
above that, times a margin. Every slot of the past may be an origin; none uses anything newer than that slot, so
that the newest origin is a plan's and all of them are a replay's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats, Forecast
from planner.forecast.ensemble import CEILING_OVER_MAXIMUM, HISTORY_DAYS, MEDIAN, SURE, at_origins

MARGINS = (1.0, 0.5, 0.7, 0.85, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Times the distance from the median to the 99.5 % quantile: which one, a service's own past tells (``quantile``).

The first is the usual one, used until there is a past and where all do equally well. Calm traffic earns less than
the whole distance: one wait is as bad as another, and the queue is answered besides.
"""
USUAL_MARGIN = MARGINS[0]
WARM_UP_DAYS = 2
"""Before that many days the load is carried forward and ``UNKNOWN_SHARE`` is added."""
UNKNOWN_SHARE = 0.3
COLLAPSE_SHARE = 0.1
DOUBT_HOURS = 1
LINE_MINUTES = 3
_LINE_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Paths:
    """Where the load goes from each origin on: (origins, slots ahead), column 0 the newest known slot itself.

    ``sure`` is the 99.5 % quantile. No bound lies above ``most`` (origins,), nor below the median.
    """

    usual: Floats
    sure: Floats
    most: Floats

    def bound(self, margin: float) -> Floats:
        """What is planned for, in the shape of the paths."""
        found = self.usual + margin * (self.sure - self.usual)
        return np.maximum(np.minimum(found, self.most[:, None]), self.usual)


def filled(values: Floats, season: int) -> Floats:
    """The load as far as it can be guessed: a missing slot is worth what it was a day before.

    Without a day before the slot is worth the one before it; before the first value, that value.
    """
    found = values.copy()
    for place in np.flatnonzero(np.isnan(found)):
        back = found[place - season] if place >= season else np.nan
        found[place] = back if np.isfinite(back) else (found[place - 1] if place else np.nan)
    known = found[np.isfinite(found)]
    return np.where(np.isnan(found), known[0] if known.size else 0.0, found)


def believed(values: Floats, season: int) -> Floats:
    """The values without sudden collapses: more often a broken meter or door than calm.

    A slot below a tenth both of the newest believed one and of the day before is taken as missing, for
    an hour at most; a load that stays away longer is believed.
    """
    found = values.copy()
    newest, doubted = np.nan, 0
    for place, value in enumerate(values):
        if np.isnan(value):
            continue
        before = found[place - season] if place >= season else np.nan
        least = COLLAPSE_SHARE * np.fmin(newest, before)
        if value < least and doubted < season * DOUBT_HOURS // 24:
            doubted += 1
            found[place] = np.nan
            continue
        doubted = doubted if value < least else 0
        if doubted == 0:
            newest = value
    return found


def paths(values: Floats, season: int, step_seconds: float, steps: int) -> Paths:
    """Paths of every slot of ``values`` (slots,), NaN where missing, as the fast tier says them at that slot."""
    load = filled(values, season)
    usual = np.repeat(load[:, None], steps + 1, axis=1)
    sure = usual * (1.0 + UNKNOWN_SHARE)
    first = WARM_UP_DAYS * season
    if load.size >= first:
        origins = range(first, load.size + 1)
        said = at_origins(values, origins, step_seconds=step_seconds, steps=steps, wanted=(MEDIAN, SURE)).quantiles
        usual[first - 1 :, 1:], sure[first - 1 :, 1:] = said[MEDIAN], said[SURE]
    sure[:, 0] = load
    span = min(load.size, HISTORY_DAYS * season)
    padded = np.concatenate([np.repeat(load[:1], span - 1), load])
    highest = np.lib.stride_tricks.sliding_window_view(padded, span).max(axis=-1)
    return Paths(usual, np.maximum(sure, usual), CEILING_OVER_MAXIMUM * highest)


def path_of(said: Forecast, newest: float, most: float) -> Paths:
    """The path of a forecast; ``newest`` is the newest known slot, ``most`` what no bound may exceed.

    A forecast without the 99.5 % quantile, as of an earlier version, gives its highest one.
    """
    sure = said.quantiles[SURE if SURE in said.quantiles else max(said.quantiles)]
    usual = np.concatenate([[newest], said.quantiles[MEDIAN]])[None]
    return Paths(usual, np.maximum(np.concatenate([[newest], sure])[None], usual), np.array([most]))


def highest(bounds: Floats, begin: Floats, end: Floats) -> Floats:
    """The highest of each row between two moments, in slots after its column 0: (rows, slots ahead) to (rows,).

    Between slots the load is a straight line, before the first and past the last it stays. ``begin`` and
    ``end`` are (rows,), ``end`` not before ``begin``.
    """
    rows, last = np.arange(bounds.shape[0]), bounds.shape[1] - 1
    found = np.maximum(_at(bounds, rows, begin), _at(bounds, rows, end))
    for column in range(1, last):
        inside = (begin < column) & (column < end)
        found = np.where(inside, np.maximum(found, bounds[:, column]), found)
    return found


def _at(bounds: Floats, rows: NDArray[np.int64], moment: Floats) -> Floats:
    last = bounds.shape[1] - 1
    place = np.clip(moment, 0.0, last)
    low = np.minimum(place.astype(np.int64), max(0, last - 1))
    high, share = np.minimum(low + 1, last), place - low
    found: Floats = bounds[rows, low] * (1.0 - share) + bounds[rows, high] * share
    return found


def line_end(minutes: Floats, ahead: Floats) -> Floats:
    """Where the line of the newest minutes (rows, ``LINE_MINUTES``) is ``ahead`` (rows,) minutes after the last one.

    NaN where they are not on one line: noise must not be drawn out. Never below 0.
    """
    slope = (minutes[:, -1] - minutes[:, 0]) / (minutes.shape[1] - 1)
    drawn = minutes[:, :1] + slope[:, None] * np.arange(minutes.shape[1])
    level = np.maximum(np.abs(minutes).max(axis=1), 1e-12)
    off = np.abs(minutes - drawn).max(axis=1)
    return np.where(off <= _LINE_TOLERANCE * level, np.maximum(minutes[:, -1] + slope * ahead, 0.0), np.nan)
