"""What a histogram of few or many observations proves about a percentile. Pure."""

from __future__ import annotations

from math import ceil

import numpy as np

from outrider.model import Floats

_ROUNDING = 1e-9  # 1 / (1 - 0.99) is a little more than 100 in binary


def fewest_observations(quantile: float) -> int:
    """Fewest observations from which a quantile is read: 100 for a P99, 10 for a P90.

    The number of n independent observations above the quantile q is binomial with mean n (1 - q) (David and Nagaraja,
    Order Statistics, 3rd ed. 2003, section 7.1). From n = 1 / (1 - q) on, at least one is expected above it. With
    fewer, the largest single observation decides.
    """
    return ceil(1.0 / (1.0 - quantile) - _ROUNDING)


def bucket_interval(increments: Floats, bounds: tuple[float, ...], quantile: float) -> tuple[Floats, Floats]:
    """The bounds of the bucket that contains a quantile: it is above the first and at most the second.

    ``increments`` has shape (..., len(bounds) + 1), the last entry being +Inf. NaN if nothing was counted.
    Interpolation inside a bucket assumes evenly spread values; the bounds assume nothing.
    """
    cumulated = np.cumsum(np.nan_to_num(increments, nan=0.0), axis=-1)
    total = cumulated[..., -1]
    index = np.minimum(np.sum(cumulated < (quantile * total)[..., None], axis=-1), len(bounds))
    lows, highs = np.array([0.0, *bounds]), np.array([*bounds, np.inf])
    counted = total > 0
    return np.where(counted, lows[index], np.nan), np.where(counted, highs[index], np.nan)
