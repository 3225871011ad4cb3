"""Prophet in log space with its newest residuals carried forward: fitted nightly, evaluated all day.

Log space keeps forecasts above zero and makes errors relative. Prophet alone ignores the last hour; carrying its
residuals forward halves the error at 30 minutes.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass

import numpy as np

from outrider.model import Floats
from planner.forecast.grid import Matrix, Slots
from planner.forecast.series import DAY_SECONDS, Series, offset

_SEED = 7
_DAILY_ORDER = 12
_WEEKLY_ORDER = 3
_CHANGEPOINT_SCALE = 0.05
WEEKLY_FROM_DAYS = 14.0
"""A weekly term learned from less than two weeks repeats the accidents of one week."""
_TREND_FROM_DAYS = 5.0
_LOG_LIMIT = 80.0
_RIDGE = 0.02
_SMOOTH = 6


@dataclass(frozen=True, slots=True)
class FittedProphet:
    """A fit, evaluated for every slot from ``start``; ``until`` is the first timestamp it has not seen.

    ``carry`` (leads, 2) is the share left of the newest residual, and of the mean of the newest six.
    """

    start: float
    until: float
    expected: Floats
    shift: float
    carry: Floats

    def at(self, series: Series, origins: Slots, leads: Slots) -> Matrix:
        """Returns forecasts at ``origins`` (slots of ``series``): (origins, leads), NaN past the evaluated slots."""
        ahead = round((series.start - self.start) / series.step)
        indices = np.arange(series.values.size) + ahead
        inside = (indices >= 0) & (indices < self.expected.size)
        residuals = np.zeros(series.values.size)
        residuals[inside] = np.log(series.values[inside] + self.shift) - self.expected[indices[inside]]
        newest, smooth = _newest(np.nan_to_num(residuals))
        carry = self.carry[np.minimum(leads, len(self.carry)) - 1]
        left = newest[origins][:, None] * carry[:, 0] + smooth[origins][:, None] * carry[:, 1]
        wanted = origins[:, None] + leads[None, :] - 1 + ahead
        known = (wanted >= 0) & (wanted < self.expected.size)
        logs = np.where(known, self.expected[np.clip(wanted, 0, self.expected.size - 1)], np.nan) + left
        result: Matrix = np.maximum(np.exp(np.minimum(logs, _LOG_LIMIT)) - self.shift, 0.0)
        return result


@dataclass(frozen=True, slots=True)
class LogProphet:
    """Prophet as a nightly forecaster."""

    name: str = "prophet"
    title: str = "Prophet"
    extra: str = ""

    def is_absent(self) -> bool:
        """Always False: Prophet is a dependency of this package."""
        return False

    def fit(self, series: Series, ahead: int) -> FittedProphet:
        """Fits on every known slot."""
        return fit(series, ahead)


def fit(series: Series, ahead: int) -> FittedProphet:
    """Fits on every known slot and evaluates ``ahead`` slots past the end.

    The weekly term needs two weeks of history, the trend five days. Raises RuntimeError or ValueError if Stan finds no
    optimum.
    """
    _silence()
    # Prophet imports pandas, matplotlib and Stan: two seconds that only a fit should pay.
    import pandas as pd  # noqa: PLC0415
    from prophet import Prophet  # noqa: PLC0415

    shift = offset(series.values)
    known, observed = series.present, series.values  # noqa: PD011 (no pandas object)
    logs = np.log(observed + shift)
    frame = pd.DataFrame({"ds": pd.to_datetime(series.times[known], unit="s"), "y": logs[known]})
    span_days = float(np.ptp(series.times[known])) / DAY_SECONDS + series.step / DAY_SECONDS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Prophet(
            growth="linear" if span_days >= _TREND_FROM_DAYS else "flat",
            changepoint_prior_scale=_CHANGEPOINT_SCALE,
            daily_seasonality=_DAILY_ORDER,
            weekly_seasonality=_WEEKLY_ORDER if span_days >= WEEKLY_FROM_DAYS else False,
            yearly_seasonality=False,
            uncertainty_samples=0,
        )
        model.fit(frame, seed=_SEED)
        moments = series.start + series.step * np.arange(observed.size + ahead)
        predicted = model.predict(pd.DataFrame({"ds": pd.to_datetime(moments, unit="s")}))
    expected = np.asarray(predicted["yhat"], dtype=np.float64)
    carry = _carry(np.nan_to_num(logs - expected[: observed.size]), series.season)
    return FittedProphet(series.start, series.origin, expected, shift, carry)


def default_forecast(series: Series, steps: int) -> Floats:
    """Forecast of Prophet with its default settings, on the values themselves: the reference of back-tests."""
    _silence()
    import pandas as pd  # noqa: PLC0415
    from prophet import Prophet  # noqa: PLC0415

    known, observed = series.present, series.values  # noqa: PD011 (no pandas object)
    frame = pd.DataFrame({"ds": pd.to_datetime(series.times[known], unit="s"), "y": observed[known]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Prophet(uncertainty_samples=0)
        model.fit(frame, seed=_SEED)
        predicted = model.predict(pd.DataFrame({"ds": pd.to_datetime(series.future(steps), unit="s")}))
    return np.asarray(predicted["yhat"], dtype=np.float64)


def _newest(residuals: Floats) -> tuple[Floats, Floats]:
    """The newest residual and the mean of the newest six, as known at each origin; 0 before the first."""
    sums = np.concatenate([[0.0], np.cumsum(residuals)])
    back = np.maximum(np.arange(sums.size) - _SMOOTH, 0)
    return np.concatenate([[0.0], residuals]), (sums - sums[back]) / _SMOOTH


def _carry(residuals: Floats, leads: int) -> Floats:
    """Ridge regression of the residual at each lead on (newest, mean of the newest six); missing residuals are 0.

    Zero for leads that the history does not reach.
    """
    newest, smooth = _newest(residuals)
    coefficients = np.zeros((leads, 2))
    for lead in range(1, min(leads, residuals.size - 2 * _SMOOTH) + 1):
        origins = slice(_SMOOTH, residuals.size - lead + 1)
        last, mean, later = newest[origins], smooth[origins], residuals[_SMOOTH + lead - 1 :]
        a, b, d = last @ last, last @ mean, mean @ mean
        ridge = _RIDGE * (a + d) + 1e-12
        coefficients[lead - 1] = np.linalg.solve([[a + ridge, b], [b, d + ridge]], [last @ later, mean @ later])
    return coefficients


def _silence() -> None:
    """Silences the fits: cmdstanpy adds a handler and a level to its logger unless one is set."""
    for name in ("cmdstanpy", "prophet", "prophet.models", "prophet.plot"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        logger.setLevel(logging.CRITICAL)
        logger.propagate = False
