"""AutoETS and MSTL of statsforecast in log space: fitted nightly, their states updated through the day.

Both are exponential smoothing with kind and parameters chosen by AICc; MSTL first removes a daily season. Between two
nights, level and slope follow the innovations form: each slot's error moves them by the fitted shares (Hyndman et
al., Forecasting with Exponential Smoothing, 2008, section 2.5). Forecasts follow the same formula. Those of
statsforecast differ past the first lead of a damped slope: it counts the first power of the damping twice.
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
"""Additive errors, since logs have any sign; any trend, damped or not; no season: ETS does not support 144 slots."""
_LOG_LIMIT = 80.0


@dataclass(frozen=True, slots=True)
class FittedSmoothing:
    """``season`` is added to the level, cyclically from ``until`` on; zero without a season.

    ``level`` and ``slope`` are those at ``until``. ``moves`` are the shares of a slot's error that move each of them.
    ``damping`` is the share of the slope left after a slot.
    """

    until: float
    season: Floats
    shift: float
    level: float
    slope: float
    moves: tuple[float, float]
    damping: float

    def at(self, series: Series, origins: Slots, leads: Slots) -> Matrix:
        """Returns forecasts at ``origins`` of ``series``: (origins, leads)."""
        first = round((self.until - series.start) / series.step)
        levels, slopes = self._states(np.log(series.values[first:] + self.shift))
        known = np.clip(origins - first, 0, levels.size - 1)
        left = np.cumsum(self.damping ** np.arange(1.0, leads.max(initial=1) + 1))[leads - 1]
        ahead = (origins[:, None] + leads[None, :] - 1 - first) % self.season.size
        logs = levels[known][:, None] + slopes[known][:, None] * left + self.season[ahead]
        result: Matrix = np.maximum(np.exp(np.minimum(logs, _LOG_LIMIT)) - self.shift, 0.0)
        return result

    def _states(self, logs: Floats) -> tuple[Floats, Floats]:
        """Level and slope at ``until`` and after each slot since; a missing slot leaves them unchanged."""
        levels, slopes = np.empty(logs.size + 1), np.empty(logs.size + 1)
        levels[0], slopes[0] = self.level, self.slope
        for slot, value in enumerate(logs):
            slope = self.damping * slopes[slot]
            expected = levels[slot] + slope
            error = value - expected - self.season[slot % self.season.size]
            error = error if np.isfinite(error) else 0.0
            levels[slot + 1] = expected + self.moves[0] * error
            slopes[slot + 1] = slope + self.moves[1] * error
        return levels, slopes


@dataclass(frozen=True, slots=True)
class Smoothing:
    """AutoETS, or MSTL with a daily season. A weekly one takes ten times as long; the mix has weekly members."""

    name: str
    title: str
    daily: bool
    extra: str = "statsforecast"

    def is_absent(self) -> bool:
        """True if statsforecast is not installed."""
        return find_spec("statsforecast") is None

    def fit(self, series: Series, ahead: int) -> FittedSmoothing:
        """Fits on all slots; gaps are interpolated, since the library does not accept them."""
        del ahead  # the states can be extended to any lead
        shift = offset(series.values)
        known = np.flatnonzero(series.present)
        logs = np.interp(np.arange(series.values.size), known, np.log(series.values[known] + shift))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, season = _fit(logs, series.season if self.daily else 0)
        kind, par, state = str(model["components"]), model["par"], model["states"][-1]
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
    """Returns the fitted ETS as the library describes it, and one day of the season removed before."""
    os.environ.setdefault("NIXTLA_ID_AS_COL", "1")
    # statsforecast imports numba: seconds that only a fit should pay
    from statsforecast.models import MSTL, AutoETS  # noqa: PLC0415

    trend = AutoETS(season_length=1, model=_ADDITIVE)
    if not day:
        model: dict[str, Any] = trend.fit(logs).model_
        return model, np.zeros(1)
    both = MSTL(season_length=[day], trend_forecaster=trend).fit(logs)
    return both.trend_forecaster.model_, np.asarray(both.model_["seasonal"], dtype=np.float64)[-day:]
