"""Forecasters without a fit: the last value, yesterday's value, and the mean day at today's level."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from planner.forecast.series import Series, carried, offset

_PROFILE_DAYS = 7


def last_value(series: Series, steps: int) -> Floats:
    """The newest known value for ever."""
    known = series.values[series.present]
    return np.full(steps, known[-1] if known.size else np.nan)


def seasonal_naive(series: Series, steps: int) -> Floats:
    """The value at the same time of the newest day that has one; the last value where no day has."""
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


def seasonal_profile(series: Series, steps: int) -> Floats:
    """The mean day of the last week in log space, carried to the level of the newest hour."""
    season, shift = series.season, offset(series.values)
    logs = np.log(series.values + shift)
    days = min(_PROFILE_DAYS, logs.size // season)
    if days < 1:
        return last_value(series, steps)
    blocks = logs[-days * season :].reshape(days, season)
    counts = (~np.isnan(blocks)).sum(axis=0)
    level = np.nanmean(logs)
    profile = np.where(counts > 0, np.nansum(blocks, axis=0) / np.maximum(counts, 1), level)
    expected = np.resize(profile, days * season)
    residuals = logs[-days * season :] - expected
    ahead = np.resize(profile, steps) + carried(residuals, steps)
    return np.maximum(np.exp(ahead) - shift, 0.0)
