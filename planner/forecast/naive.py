"""Reference forecasts: the last value, and yesterday's value."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from planner.forecast.series import Series


def last_value(series: Series, steps: int) -> Floats:
    """Repeats the newest known value."""
    known = series.values[series.present]
    return np.full(steps, known[-1] if known.size else np.nan)


def seasonal_naive(series: Series, steps: int) -> Floats:
    """The value at the same time of the newest day that has one; otherwise the last value."""
    season = series.season
    day = np.full(season, np.nan)
    for back in range(1, series.values.size // season + 2):
        low = series.values.size - back * season
        block = series.values[max(0, low) : low + season]
        block = np.concatenate([np.full(season - block.size, np.nan), block])
        day = np.where(np.isnan(day), block, day)
        if not np.isnan(day).any():
            break
    day = np.where(np.isnan(day), last_value(series, 1)[0], day)
    return np.resize(day, steps)
