"""Trends of many rows at once: Theil-Sen slopes over given pairs, Kendall's share of them, shares of rises.

A slope is the median of the slopes of pairs (Theil 1950, Sen 1968): up to a third of the readings may be wrong. The
caller chooses the pairs: all of them for a dozen points, pairs whole days apart for daily patterns (the seasonal
Kendall test of Hirsch, Slack and Smith, 1982). Successive readings are correlated, so shares of pairs are compared
with limits rather than turned into probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats

Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]
LOW, HIGH = 0.1, 0.9  # quantiles of the pair slopes that bound the slope


@dataclass(frozen=True, slots=True)
class Trend:
    """Slopes per second with their 10th and 90th percentile, and shares of pairs; all of shape (rows,).

    ``rising`` and ``falling`` are shares of the known pairs; without known pairs, slopes are NaN and shares 0.
    """

    slope: Floats
    low: Floats
    high: Floats
    rising: Floats
    falling: Floats
    pairs: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Number of known, rising and falling steps between readings; all of shape (rows,)."""

    known: NDArray[np.intp]
    up: NDArray[np.intp]
    down: NDArray[np.intp]


def all_pairs(count: int) -> Pairs:
    """Every pair of ``count`` points, the earlier one first."""
    first, second = np.triu_indices(count, 1)
    return first, second


def pairs_apart(count: int, lag: int) -> Pairs:
    """The pairs of ``count`` points that are a multiple of ``lag`` apart."""
    first = [np.arange(count - apart) for apart in range(lag, count, lag)]
    second = [np.arange(apart, count) for apart in range(lag, count, lag)]
    if not first:
        return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.intp)
    return np.concatenate(first), np.concatenate(second)


def theil_sen(values: Floats | NDArray[np.float32], times: Floats, pairs: Pairs) -> Trend:
    """The trend of each row of ``values`` (rows, points) at ``times`` (points,) in seconds; NaN is ignored."""
    first, second = pairs
    if not first.size or not values.shape[0]:
        nothing = np.full(values.shape[0], np.nan)
        count = np.zeros(values.shape[0], dtype=np.intp)
        return Trend(nothing, nothing, nothing, np.zeros(count.size), np.zeros(count.size), count)
    change = values[:, second].astype(np.float64) - values[:, first]
    known = np.isfinite(change).sum(axis=1)
    slopes = np.sort(change / (times[second] - times[first]), axis=1)  # NaN last
    least = np.maximum(known, 1)
    with np.errstate(invalid="ignore"):
        rising, falling = (change > 0).sum(axis=1) / least, (change < 0).sum(axis=1) / least
    middle, low, high = (share_of(slopes, known, share) for share in (0.5, LOW, HIGH))
    return Trend(middle, low, high, rising, falling, known)


def share_of(ordered: Floats | NDArray[np.float32], known: NDArray[np.intp], share: float) -> Floats:
    """A quantile of each row (rows, points) whose first ``known`` values are sorted; NaN without any."""
    place = share * np.maximum(known - 1, 0)
    low, high = np.floor(place).astype(np.intp), np.ceil(place).astype(np.intp)
    rows = np.arange(known.size)
    result: Floats = ordered[rows, low] + (place - low) * (ordered[rows, high] - ordered[rows, low])
    return np.where(known > 0, result, np.nan)


def steps(values: Floats, least: Floats | float = 0.0) -> StepCounts:
    """Steps of each row of (rows, points); a step up to ``least``, a number or (rows, 1), does not count."""
    change = np.diff(values, axis=1)
    known = ~np.isnan(change)
    moved = np.where(known, change, 0.0)
    return StepCounts(known.sum(axis=1), (known & (moved > least)).sum(axis=1), (known & (moved < -least)).sum(axis=1))


def medians(values: NDArray[np.float32] | Floats) -> Floats:
    """Medians of the last axis without NaN; NaN if none. Faster than numpy's on short rows."""
    ordered = np.sort(values, axis=-1)
    known = (~np.isnan(ordered)).sum(axis=-1)
    low, high = np.maximum(known - 1, 0) // 2, np.minimum(known // 2, ordered.shape[-1] - 1)
    pair = [np.take_along_axis(ordered, place[..., None], axis=-1)[..., 0].astype(np.float64) for place in (low, high)]
    return np.where(known > 0, (pair[0] + pair[1]) / 2.0, np.nan)


def means(values: NDArray[np.float32] | Floats) -> Floats:
    """Means of the last axis without NaN; NaN if none."""
    return counted_means(values)[0]


def counted_means(values: NDArray[np.float32] | Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Means of the last axis without NaN, and the number of values of each."""
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1, dtype=np.float64)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0), count
