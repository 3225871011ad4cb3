"""Conversion of histograms between bucket ladders, and quantiles by interpolation."""

from __future__ import annotations

from functools import cache

import numpy as np

from outrider.model import Floats


@cache
def _weights(source: tuple[float, ...], target: tuple[float, ...]) -> Floats:
    """Returns weights (source, target) that convert counts at source bounds to counts at target bounds.

    Linear between neighbors, so that a quantile by linear interpolation is the same on both ladders. The weights are
    fixed and not negative, so monotonic counts stay monotonic.
    """
    bounds = np.array(source)
    result = np.zeros((bounds.size, len(target)))
    for column, bound in enumerate(target):
        above = int(np.searchsorted(bounds, bound, side="left"))
        if above == bounds.size:  # no information beyond the last bound
            result[-1, column] = 1.0
            continue
        low = bounds[above - 1] if above else 0.0
        share = 1.0 if bounds[above] <= low else (bound - low) / (bounds[above] - low)
        result[above, column] = max(share, 0.0)
        if above:
            result[above - 1, column] = 1.0 - share
    return result


def through(counts: Floats, source: tuple[float, ...], target: tuple[float, ...]) -> Floats:
    """Returns cumulated counts at the target's bounds and +Inf.

    ``counts`` are per bucket, shape (rows, source + 1); the last bucket is +Inf. The result has shape
    (rows, target + 1) and non-decreasing whole numbers.
    """
    cumulated = np.cumsum(counts, axis=1)
    if source == target:
        return cumulated
    inside = np.floor(cumulated[:, :-1] @ _weights(source, target) + 1e-6)
    return np.concatenate([inside, cumulated[:, -1:]], axis=1)


def quantiles(counts: Floats, bounds: tuple[float, ...], wanted: tuple[float, ...]) -> Floats:
    """Returns quantiles of each row by linear interpolation, shape (rows, wanted); NaN without observations.

    ``counts`` are per bucket, shape (rows, bounds + 1). Values beyond the last bound count as that bound.
    """
    cumulated = np.cumsum(counts, axis=1)
    edges = np.array([0.0, *bounds, bounds[-1]])
    rows = np.arange(counts.shape[0])
    result = np.full((counts.shape[0], len(wanted)), np.nan)
    total = cumulated[:, -1]
    for column, quantile in enumerate(wanted):
        rank = quantile * total
        bucket = np.minimum((cumulated < rank[:, None]).sum(axis=1), len(bounds))
        here = counts[rows, bucket]
        before = cumulated[rows, bucket] - here
        share = np.clip((rank - before) / np.where(here > 0, here, 1.0), 0.0, 1.0)
        value = edges[bucket] + share * (edges[bucket + 1] - edges[bucket])
        result[:, column] = np.where(total > 0, value, np.nan)
    return result
