"""AutoETS and MSTL of statsforecast in log space: fitted by night, their states carried through the day.

Both are exponential smoothing whose kind and parameters the library chooses by AICc; before it, MSTL takes a daily
season out. Between two nights the level and the slope follow the innovations form (Hyndman et al., Forecasting with
Exponential Smoothing, 2008, section 2.5): what one slot did not expect moves them by the fitted shares. Forecasts
follow the formula too; statsforecast's own differ past the first lead where a slope is damped (it counts the first
power of the damping twice).
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from outrider.model import Floats
from planner.forecast.grid import Matrix, Slots
from planner.forecast.series import Series, offset

_ADDITIVE = "AZN"
"""Additive errors, for logs have any sign; a trend, damped or not, or none; no season: ETS knows none of 144 slots."""
_LOG_LIMIT = 80.0


@dataclass(frozen=True, slots=True)
class FittedSmoothing:
    """``season`` is added to the level, slot by slot from ``until`` on, round and round; zero where there is none.

    ``level`` and ``slope`` are those at ``until``, ``moves`` what a slot's surprise moves each by; of the slope
    ``damping`` is left after a slot.
    """

    until: float
    season: Floats
    shift: float
    level: float
    slope: float
    moves: tuple[float, float]
    damping: float

    def at(self, series: Series, origins: Slots, leads: Slots) -> Matrix:
        """What it says at origins of ``series``: (origins, leads)."""
        first = round((self.until - series.start) / series.step)
        levels, slopes = self._states(np.log(series.values[first:] + self.shift))
        known = np.clip(origins - first, 0, levels.size - 1)
        left = np.cumsum(self.damping ** np.arange(1.0, leads.max(initial=1) + 1))[leads - 1]
        ahead = (origins[:, None] + leads[None, :] - 1 - first) % self.season.size
        logs = levels[known][:, None] + slopes[known][:, None] * left + self.season[ahead]
        found: Matrix = np.maximum(np.exp(np.minimum(logs, _LOG_LIMIT)) - self.shift, 0.0)
        return found

    def _states(self, logs: Floats) -> tuple[Floats, Floats]:
        """Level and slope at ``until`` and after each slot since; a missing slot surprises nobody."""
        levels, slopes = np.empty(logs.size + 1), np.empty(logs.size + 1)
        levels[0], slopes[0] = self.level, self.slope
        for place, value in enumerate(logs):
            slope = self.damping * slopes[place]
            expected = levels[place] + slope
            missed = value - expected - self.season[place % self.season.size]
            missed = missed if np.isfinite(missed) else 0.0
            levels[place + 1] = expected + self.moves[0] * missed
            slopes[place + 1] = slope + self.moves[1] * missed
        return levels, slopes


@dataclass(frozen=True, slots=True)
class Smoothing:
    """AutoETS, or MSTL with its daily season. MSTL's weekly one takes ten times as long; the mix has weekly members."""

    name: str
    title: str
    daily: bool
    extra: str = "statsforecast"

    def is_absent(self) -> bool:
        """True where statsforecast is not installed."""
        return find_spec("statsforecast") is None

    def fit(self, series: Series, ahead: int) -> FittedSmoothing:
        """Fit on all slots; a line is drawn over gaps, which the library does not take."""
        del ahead  # states go on for as long as they are asked
        shift = offset(series.values)
        there = np.flatnonzero(series.present)
        logs = np.interp(np.arange(series.values.size), there, np.log(series.values[there] + shift))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen, season = _fit(logs, series.season if self.daily else 0)
        kind, par, state = str(chosen["components"]), chosen["par"], chosen["states"][-1]
        has_trend = kind[1] != "N"
        return FittedSmoothing(
            until=series.origin,
            season=season,
            shift=shift,
            level=float(state[0]),
            slope=float(state[1]) if has_trend else 0.0,
            moves=(float(par[0]), float(par[1]) if has_trend else 0.0),
            damping=float(par[3]) if kind.endswith("D") else 1.0,
        )


def _fit(logs: Floats, day: int) -> tuple[dict[str, Any], Floats]:
    """The ETS of the logs as the library describes it, and a day of the season that was taken out before."""
    os.environ.setdefault("NIXTLA_ID_AS_COL", "1")
    # statsforecast brings numba: seconds that only a fit should cost
    from statsforecast.models import MSTL, AutoETS  # noqa: PLC0415

    trend = AutoETS(season_length=1, model=_ADDITIVE)
    if not day:
        found: dict[str, Any] = trend.fit(logs).model_
        return found, np.zeros(1)
    both = MSTL(season_length=[day], trend_forecaster=trend).fit(logs)
    return both.trend_forecaster.model_, np.asarray(both.model_["seasonal"], dtype=np.float64)[-day:]
