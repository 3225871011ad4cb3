"""Confidence intervals of figures of a window: a block bootstrap over time, weighted medians."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats

_RESAMPLES = 200
_BOUNDS = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured figure with its 90 % confidence interval, from a block bootstrap over time."""

    value: float
    low: float
    high: float


def _blocks(steps: int) -> np.ndarray:
    """Resampled steps, shape (resamples, steps): blocks of adjacent steps, which are correlated."""
    random = np.random.default_rng(steps)
    length = max(1, round(steps ** (1 / 3)))
    starts = random.integers(0, max(steps - length + 1, 1), size=(_RESAMPLES, -(-steps // length)))
    steps_of_resamples = (starts[:, :, None] + np.arange(length)).reshape(_RESAMPLES, -1)[:, :steps]
    return np.asarray(steps_of_resamples % steps)


def ratios(above: Floats, below: Floats) -> Floats:
    """Ratio of two sums over time, for each resample of the steps with both values."""
    known = below > 0
    if not known.any():
        return np.empty(0)
    chosen = _blocks(int(known.sum()))
    result: Floats = above[known][chosen].sum(axis=1) / below[known][chosen].sum(axis=1)
    return result


def middles(running: Floats, covered: Floats) -> Floats:
    """The batch median for each resample of the steps; ``running`` is NaN in cells that do not show the batch."""
    known = ~np.isnan(running).all(axis=0)
    if not known.any():
        return np.empty(0)
    values, weights = running[:, known], np.where(np.isnan(running), 0.0, covered)[:, known]
    chosen = _blocks(values.shape[1])
    result: Floats = np.array([middle(values[:, block].ravel(), weights[:, block].ravel()) for block in chosen])
    return result


def middle(values: Floats, weights: Floats) -> float:
    """Weighted median of values; those of weight 0 are left out."""
    positive = weights > 0
    values, weights = values[positive], weights[positive]
    order = np.argsort(values)
    heavy = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(heavy, heavy[-1] / 2.0)])


def estimate(value: float, resamples: Floats) -> Estimate:
    """Returns a figure with the interval of its resamples, extended to contain it; itself without resamples."""
    if not resamples.size:
        return Estimate(value, value, value)
    low, high = np.quantile(resamples, _BOUNDS)
    return Estimate(value, min(value, float(low)), max(value, float(high)))
