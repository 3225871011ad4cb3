"""Day profiles of many series at once, and the deviation of the newest slots from them.

Everything is in log space. Arrays are (series, slots). A profile extends one day past the newest slot; each of its
slots uses only the days before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.forecast.grid import Grid, Matrix

DAYS = 7
"""Days that a profile is made of."""
WEEKLY_FROM_DAYS = 14
"""With less history there is no weekly profile: one week repeats its accidents."""
_FADE_PER_DAY = 0.6
_KERNEL = (0.25, 0.5, 0.25)
_GLITCH, _SPIKE = np.log(3.0), np.log(8.0)
_ISOLATED_SLOTS = 3
_FADE_OVER_GAP = 0.99
_LEVELS = {"yesterday": (6,), "fading": (2,), "mean": (2, 6), "median": (1, 2, 3, 6, 18, 72), "week": (6,)}
"""Tens of minutes over which the members average deviations from a profile."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of the members. ``levels[profile, tens]`` (series, origins) is the mean deviation of the newest slots.

    Column ``o`` of an origin uses only the slots before ``o``. ``newest`` and ``median`` are the newest value and the
    median of the newest six. ``weekly`` (series,) is True with two weeks of history.
    """

    grid: Grid
    values: Matrix
    profiles: dict[str, Matrix]
    levels: dict[tuple[str, int], Matrix]
    newest: Matrix
    median: Matrix
    weekly: np.ndarray


def build(logs: Matrix, grid: Grid) -> Inputs:
    """Profiles and levels of ``logs`` (series, slots), NaN if a slot is missing."""
    season = grid.season
    low, high = isolated(logs, grid)
    values = np.where(low, np.nan, logs).astype(logs.dtype)
    typical = np.where(high, np.nan, values).astype(logs.dtype)
    days = [_ahead(typical, season, back) for back in range(1, DAYS + 1)]
    smooth = _smoothed(typical)
    smooth_days = [_ahead(smooth, season, back) for back in range(1, DAYS + 1)]
    profiles = {
        "yesterday": _first_known(days),
        "fading": _weighted(smooth_days, [_FADE_PER_DAY**back for back in range(DAYS)]),
        "mean": _weighted(smooth_days, [1.0] * DAYS),
        "median": _median(days),
    }
    weekly = _span(values) >= WEEKLY_FROM_DAYS * season
    profiles["week"] = (
        _weighted([_ahead(typical, season, 7), _ahead(typical, season, 14)], [1.0, 1.0])
        if weekly.any()
        else np.full_like(profiles["mean"], np.nan)
    )
    levels = {}
    for name, tens_of_profile in _LEVELS.items():
        off = _carried(values - profiles[name][:, : values.shape[1]])
        for tens in tens_of_profile:
            levels[name, tens] = _origins(_trailing(off, grid.slots(tens)), 0.0)
    filled = _fill_forward(values)[0]
    six = [_back(filled, back) for back in range(6)]
    return Inputs(grid, values, profiles, levels, _origins(filled, np.nan), _origins(_median(six), np.nan), weekly)


def isolated(logs: Matrix, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """True if a slot is below a third, or above eight times, of both its day profile and the last hour.

    A scrape that missed part of a slot, or counted one twice, has this effect. After three such slots in a row the
    change is accepted: none of the following is isolated.
    """
    season, slots = grid.season, logs.shape[1]
    profile = _weighted([_ahead(logs, season, back) for back in range(1, DAYS + 1)], [1.0] * DAYS)[:, :slots]
    before = _back(_trailing(_fill_forward(logs)[0], grid.slots(6)), 1)
    with np.errstate(invalid="ignore"):
        low = logs < np.minimum(profile, before) - _GLITCH
        high = logs > np.maximum(profile, before) + _SPIKE
    return low & ~_lasting(low), high & ~_lasting(high)


def _lasting(outliers: np.ndarray) -> np.ndarray:
    lasting = outliers.copy()
    for back in range(1, _ISOLATED_SLOTS + 1):
        lasting[:, back:] &= outliers[:, :-back]
        lasting[:, :back] = False
    return lasting


def _span(values: Matrix) -> np.ndarray:
    """Slots from the first known one to the newest."""
    known = ~np.isnan(values)
    slots: np.ndarray = np.where(known.any(axis=1), values.shape[1] - known.argmax(axis=1), 0)
    return slots


def _ahead(values: Matrix, season: int, back: int) -> Matrix:
    """The value ``back`` days before each slot, one day further than the newest slot."""
    rows, slots = values.shape
    result = np.full((rows, slots + season), np.nan, values.dtype)
    result[:, back * season :] = values[:, : max(0, slots + season - back * season)]
    return result


def _back(values: Matrix, slots: int) -> Matrix:
    if not slots:
        return values
    result = np.full_like(values, np.nan)
    result[:, slots:] = values[:, :-slots]
    return result


def _first_known(days: Sequence[Matrix]) -> Matrix:
    result = days[0]
    for day in days[1:]:
        result = np.where(np.isnan(result), day, result)
    return result


def _weighted(days: Sequence[Matrix], weights: Sequence[float]) -> Matrix:
    total, weight = np.zeros_like(days[0]), np.zeros_like(days[0])
    for day, factor in zip(days, weights, strict=True):
        known = ~np.isnan(day)
        total += np.where(known, day, 0) * day.dtype.type(factor)
        weight += known * day.dtype.type(factor)
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Matrix = total / np.where(weight > 0, weight, np.nan)
    return result


def _smoothed(values: Matrix) -> Matrix:
    later = np.full_like(values, np.nan)
    later[:, :-1] = values[:, 1:]
    return _weighted([_back(values, 1), values, later], _KERNEL)


def _median(columns: Sequence[Matrix]) -> Matrix:
    """Median of the known values, cell by cell, by a sorting network: faster than a median over an axis of seven."""
    count = sum((~np.isnan(column)).astype(np.int8) for column in columns)
    rows = [np.where(np.isnan(column), np.inf, column) for column in columns]
    for turn in range(len(rows)):
        for low in range(turn % 2, len(rows) - 1, 2):
            rows[low], rows[low + 1] = np.minimum(rows[low], rows[low + 1]), np.maximum(rows[low], rows[low + 1])
    result = np.full_like(columns[0], np.nan)
    for known in range(1, len(rows) + 1):
        middle = (rows[(known - 1) // 2] + rows[known // 2]) / 2
        result = np.where(count == known, middle, result)
    typed: Matrix = result.astype(columns[0].dtype)
    return typed


def _fill_forward(values: Matrix) -> tuple[Matrix, np.ndarray]:
    """Fills missing slots with the newest value before them; also returns its age in slots."""
    indices = np.arange(values.shape[1], dtype=np.int32)
    newest = np.maximum.accumulate(np.where(np.isnan(values), 0, indices), axis=1)
    return np.take_along_axis(values, newest, axis=1), indices - newest


def _carried(off: Matrix) -> Matrix:
    """Deviations without gaps: the last value fades over a gap; 0 before the first."""
    filled, age = _fill_forward(off)
    result: Matrix = np.nan_to_num(filled) * (_FADE_OVER_GAP**age).astype(off.dtype)
    return result


def _trailing(values: Matrix, slots: int) -> Matrix:
    """Mean of each slot and those before it, NaN as 0 before the first value."""
    if slots == 1:
        return values
    sums = np.cumsum(np.nan_to_num(values), axis=1, dtype=np.float64)
    totals = sums.copy()
    totals[:, slots:] -= sums[:, :-slots]
    first = values.shape[1] - _span(values)
    counts = np.clip(np.arange(1, values.shape[1] + 1) - first[:, None], 1, slots)
    mean: Matrix = totals / counts
    return mean.astype(values.dtype, copy=False)


def _origins(values: Matrix, first: float) -> Matrix:
    return np.concatenate([np.full((values.shape[0], 1), first, values.dtype), values], axis=1)
