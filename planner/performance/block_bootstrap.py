"""Figures of a window with their confidence intervals: a block bootstrap over time, medians with weights."""

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
    """Resampled steps, shape (resamples, steps): pieces of neighbouring steps, because neighbours are alike."""
    random = np.random.default_rng(steps)
    length = max(1, round(steps ** (1 / 3)))
    starts = random.integers(0, max(steps - length + 1, 1), size=(_RESAMPLES, -(-steps // length)))
    found = (starts[:, :, None] + np.arange(length)).reshape(_RESAMPLES, -1)[:, :steps]
    return np.asarray(found % steps)


def ratios(above: Floats, below: Floats) -> Floats:
    """The ratio of two sums over time, for each resample of the steps that know both."""
    known = below > 0
    if not known.any():
        return np.empty(0)
    chosen = _blocks(int(known.sum()))
    found: Floats = above[known][chosen].sum(axis=1) / below[known][chosen].sum(axis=1)
    return found


def middles(running: Floats, covered: Floats) -> Floats:
    """The median that stands for the batch, for each resample of the steps; ``running`` is NaN where not at rest."""
    known = ~np.isnan(running).all(axis=0)
    if not known.any():
        return np.empty(0)
    values, weights = running[:, known], np.where(np.isnan(running), 0.0, covered)[:, known]
    chosen = _blocks(values.shape[1])
    found: Floats = np.array([middle(values[:, each].ravel(), weights[:, each].ravel()) for each in chosen])
    return found


def middle(values: Floats, weights: Floats) -> float:
    """The median of values of these weights; those of weight 0 are left out."""
    kept = weights > 0
    values, weights = values[kept], weights[kept]
    order = np.argsort(values)
    heavy = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(heavy, heavy[-1] / 2.0)])


def estimate(value: float, resamples: Floats) -> Estimate:
    """A figure with the interval of its resamples, which holds it; itself where there are none."""
    if not resamples.size:
        return Estimate(value, value, value)
    low, high = np.quantile(resamples, _BOUNDS)
    return Estimate(value, min(value, float(low)), max(value, float(high)))
