"""Prophet in log space, its newest residuals carried forward.

Log space keeps forecasts above zero and makes errors relative. Prophet alone forgets what the last
hour said; carrying its residuals halves the error at 30 minutes.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass

import numpy as np

from outrider.model import Floats
from planner.forecast.series import DAY_SECONDS, Series, carried, offset

_SEED = 7
_DAILY_ORDER = 12
_WEEKLY_ORDER = 3
_CHANGEPOINT_SCALE = 0.05
WEEKLY_FROM_DAYS = 14.0
"""A weekly term learned from less than two weeks repeats the accidents of one."""
_TREND_FROM_DAYS = 5.0
_LOG_LIMIT = 700.0


@dataclass(frozen=True, slots=True)
class FittedProphet:
    """A fit, evaluated once for every slot from its series' start to ``expected.size`` slots later."""

    expected: Floats
    shift: float

    def predict(self, series: Series, steps: int) -> Floats:
        """The next ``steps`` values of ``series``, never negative; its origin may lie past the fit's."""
        slots = series.values.size
        residuals = np.log(series.values + self.shift) - self.expected[:slots]
        ahead = self.expected[slots : slots + steps] + carried(residuals, steps)
        return np.maximum(np.exp(np.minimum(ahead, _LOG_LIMIT)) - self.shift, 0.0)


def fit(series: Series, ahead: int) -> FittedProphet:
    """Fit on every known slot and evaluate ``ahead`` slots past the end.

    The weekly term needs two weeks of history, the trend five days. Raises RuntimeError or ValueError
    when Stan finds no optimum.
    """
    _silence()
    # Prophet brings pandas, matplotlib and Stan: two seconds that only a fit should cost.
    import pandas as pd  # noqa: PLC0415
    from prophet import Prophet  # noqa: PLC0415

    shift = offset(series.values)
    known, observed = series.present, series.values  # noqa: PD011 (no pandas object)
    frame = pd.DataFrame(
        {
            "ds": pd.to_datetime(series.times[known], unit="s"),
            "y": np.log(observed[known] + shift),
        }
    )
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
    return FittedProphet(np.asarray(predicted["yhat"], dtype=np.float64), shift)


def _silence() -> None:
    """Keep fits quiet: cmdstanpy gives its logger a handler and a level unless it finds one."""
    for name in ("cmdstanpy", "prophet", "prophet.models", "prophet.plot"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
        logger.setLevel(logging.CRITICAL)
        logger.propagate = False
