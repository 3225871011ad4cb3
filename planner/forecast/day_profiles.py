"""What a time of day looks like, for many series at once: four day profiles and how far the newest slots lie off.

All in log space. Arrays are (series, slots); a profile reaches one day past the newest slot and, at each
slot, is made of the days before it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.forecast.grid import Grid, Matrix

DAYS = 7
"""Days that enter a profile."""
WEEKLY_FROM_DAYS = 14
"""With less history there is no weekly profile: one week repeats its accidents."""
_FADE_PER_DAY = 0.6
_KERNEL = (0.25, 0.5, 0.25)
_GLITCH, _SPIKE = np.log(3.0), np.log(8.0)
_ISOLATED_SLOTS = 3
_FADE_OVER_GAP = 0.99
_LEVELS = {"yesterday": (6,), "fading": (2,), "mean": (2, 6), "median": (1, 2, 3, 6, 18, 72), "week": (6,)}
"""Tens of minutes over which deviations from a profile are averaged, as members ask for them."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What members read. ``levels[profile, tens]`` (series, origins) is the mean deviation of the newest slots.

    Column ``o`` of an origin knows the slots before ``o`` and nothing else; ``newest`` and ``median`` are
    the newest value and the median of the newest six. ``weekly`` (series,) is True with two weeks of history.
    """

    grid: Grid
    values: Matrix
    profiles: dict[str, Matrix]
    levels: dict[tuple[str, int], Matrix]
    newest: Matrix
    median: Matrix
    weekly: np.ndarray


def build(logs: Matrix, grid: Grid) -> Inputs:
    """Profiles and levels of ``logs`` (series, slots), NaN where a slot is missing."""
    season = grid.season
    low, high = isolated(logs, grid)
    values = np.where(low, np.nan, logs).astype(logs.dtype)
    usual = np.where(high, np.nan, values).astype(logs.dtype)
    days = [_ahead(usual, season, back) for back in range(1, DAYS + 1)]
    smooth = _smoothed(usual)
    smooth_days = [_ahead(smooth, season, back) for back in range(1, DAYS + 1)]
    profiles = {
        "yesterday": _first_known(days),
        "fading": _weighted(smooth_days, [_FADE_PER_DAY**back for back in range(DAYS)]),
        "mean": _weighted(smooth_days, [1.0] * DAYS),
        "median": _median(days),
    }
    weekly = _span(values) >= WEEKLY_FROM_DAYS * season
    profiles["week"] = (
        _weighted([_ahead(usual, season, 7), _ahead(usual, season, 14)], [1.0, 1.0])
        if weekly.any()
        else np.full_like(profiles["mean"], np.nan)
    )
    levels = {}
    for name, tens_of_profile in _LEVELS.items():
        off = _carried(values - profiles[name][:, : values.shape[1]])
        for tens in tens_of_profile:
            levels[name, tens] = _origins(_trailing(off, grid.slots(tens)), 0.0)
    filled = _held(values)[0]
    six = [_back(filled, back) for back in range(6)]
    return Inputs(grid, values, profiles, levels, _origins(filled, np.nan), _origins(_median(six), np.nan), weekly)


def isolated(logs: Matrix, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """True where a slot fell below a third, or rose above eight times, of both its day profile and the last hour.

    A scrape that missed part of a slot, or counted one twice, looks like this. After three such slots in
    a row the change is believed: none of the following is isolated.
    """
    season, slots = grid.season, logs.shape[1]
    profile = _weighted([_ahead(logs, season, back) for back in range(1, DAYS + 1)], [1.0] * DAYS)[:, :slots]
    before = _back(_trailing(_held(logs)[0], grid.slots(6)), 1)
    with np.errstate(invalid="ignore"):
        low = logs < np.minimum(profile, before) - _GLITCH
        high = logs > np.maximum(profile, before) + _SPIKE
    return low & ~_lasting(low), high & ~_lasting(high)


def _lasting(found: np.ndarray) -> np.ndarray:
    lasting = found.copy()
    for back in range(1, _ISOLATED_SLOTS + 1):
        lasting[:, back:] &= found[:, :-back]
        lasting[:, :back] = False
    return lasting


def _span(values: Matrix) -> np.ndarray:
    """Slots from the first known one to the newest."""
    known = ~np.isnan(values)
    found: np.ndarray = np.where(known.any(axis=1), values.shape[1] - known.argmax(axis=1), 0)
    return found


def _ahead(values: Matrix, season: int, back: int) -> Matrix:
    """The value ``back`` days before each slot, one day further than the newest slot."""
    rows, slots = values.shape
    found = np.full((rows, slots + season), np.nan, values.dtype)
    found[:, back * season :] = values[:, : max(0, slots + season - back * season)]
    return found


def _back(values: Matrix, slots: int) -> Matrix:
    if not slots:
        return values
    found = np.full_like(values, np.nan)
    found[:, slots:] = values[:, :-slots]
    return found


def _first_known(days: Sequence[Matrix]) -> Matrix:
    found = days[0]
    for day in days[1:]:
        found = np.where(np.isnan(found), day, found)
    return found


def _weighted(days: Sequence[Matrix], weights: Sequence[float]) -> Matrix:
    total, weight = np.zeros_like(days[0]), np.zeros_like(days[0])
    for day, factor in zip(days, weights, strict=True):
        known = ~np.isnan(day)
        total += np.where(known, day, 0) * day.dtype.type(factor)
        weight += known * day.dtype.type(factor)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Matrix = total / np.where(weight > 0, weight, np.nan)
    return found


def _smoothed(values: Matrix) -> Matrix:
    later = np.full_like(values, np.nan)
    later[:, :-1] = values[:, 1:]
    return _weighted([_back(values, 1), values, later], _KERNEL)


def _median(columns: Sequence[Matrix]) -> Matrix:
    """The median of the known ones, cell by cell, by a sorting network: no axis of seven is ever walked."""
    count = sum((~np.isnan(column)).astype(np.int8) for column in columns)
    rows = [np.where(np.isnan(column), np.inf, column) for column in columns]
    for turn in range(len(rows)):
        for low in range(turn % 2, len(rows) - 1, 2):
            rows[low], rows[low + 1] = np.minimum(rows[low], rows[low + 1]), np.maximum(rows[low], rows[low + 1])
    found = np.full_like(columns[0], np.nan)
    for known in range(1, len(rows) + 1):
        middle = (rows[(known - 1) // 2] + rows[known // 2]) / 2
        found = np.where(count == known, middle, found)
    typed: Matrix = found.astype(columns[0].dtype)
    return typed


def _held(values: Matrix) -> tuple[Matrix, np.ndarray]:
    """Missing slots take the newest value before them; and how many slots ago that was."""
    places = np.arange(values.shape[1], dtype=np.int32)
    newest = np.maximum.accumulate(np.where(np.isnan(values), 0, places), axis=1)
    return np.take_along_axis(values, newest, axis=1), places - newest


def _carried(off: Matrix) -> Matrix:
    """Deviations without holes: held over a gap and fading with it, 0 before the first."""
    held, age = _held(off)
    found: Matrix = np.nan_to_num(held) * (_FADE_OVER_GAP**age).astype(off.dtype)
    return found


def _trailing(values: Matrix, slots: int) -> Matrix:
    """Mean of each slot and those before it, NaN as 0 before the first value."""
    if slots == 1:
        return values
    sums = np.cumsum(np.nan_to_num(values), axis=1, dtype=np.float64)
    found = sums.copy()
    found[:, slots:] -= sums[:, :-slots]
    first = values.shape[1] - _span(values)
    counts = np.clip(np.arange(1, values.shape[1] + 1) - first[:, None], 1, slots)
    mean: Matrix = found / counts
    return mean.astype(values.dtype, copy=False)


def _origins(values: Matrix, first: float) -> Matrix:
    return np.concatenate([np.full((values.shape[0], 1), first, values.dtype), values], axis=1)
