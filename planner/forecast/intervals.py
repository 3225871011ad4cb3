"""Conformal intervals: quantiles of the log-ratio errors seen so far, lead by lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil, log, sqrt

import numpy as np

from outrider.model import Floats

_BAND_SECONDS = (0.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 57600.0, 86400.0, float("inf"))
_LEAST_ERRORS = 12
_CORRELATED_FROM_SECONDS = 14400.0

ORIGIN_EVERY_SECONDS = 7200.0
"""How far the origins of folds lie apart."""
_UNKNOWN_SPREAD = log(1.5)
"""Half width (log ratio) of a 90 % interval while no error was seen yet: a prior, two thirds to one and a half."""

CEILING_OVER_MAXIMUM = 1.25
"""No quantile lies above 1.25 x the highest value known, no fold of a few days proves more."""


def quantiles(
    point: Floats,
    truth: Floats,
    predicted: Floats,
    *,
    shift: float,
    step_seconds: float,
    highest: float,
    wanted: Sequence[float],
) -> Mapping[float, Floats]:
    """Spread a point forecast by the errors its model made on folds.

    ``point`` has shape (steps,), ``truth`` and ``predicted`` (folds, steps) with NaN where unknown.
    Errors are pooled in bands of lead time; a band with fewer than 12 errors takes those of the band
    before. The result never crosses, is never negative and never above 1.25 x ``highest``; the median
    is the point forecast itself.
    """
    steps = point.size
    errors: Floats = np.log(truth + shift) - np.log(predicted + shift)
    leads: Floats = step_seconds * np.arange(1, steps + 1, dtype=np.float64)
    top = max(highest * CEILING_OVER_MAXIMUM, 0.0)
    centres, offsets = _bands(errors, leads, wanted)
    found: dict[float, Floats] = {}
    for column, quantile in enumerate(wanted):
        spread = np.interp(leads, centres, offsets[:, column])
        value = (point + shift) * np.exp(spread) - shift
        found[quantile] = np.clip(value, 0.0, top)
    return found


def coverage(
    truth: Floats, predicted: Floats, *, shift: float, step_seconds: float, low: float = 0.05, high: float = 0.95
) -> float | None:
    """How many cells of the newer half of the folds lay inside the interval learned from the older half.

    None where either half has fewer than 12 known cells.
    """
    errors: Floats = np.log(truth + shift) - np.log(predicted + shift)
    half = errors.shape[0] // 2
    older, newer = errors[:half], errors[half:]
    scored = ~np.isnan(newer)
    if min(int((~np.isnan(older)).sum()), int(scored.sum())) < _LEAST_ERRORS:
        return None
    leads: Floats = step_seconds * np.arange(1, errors.shape[1] + 1, dtype=np.float64)
    centres, offsets = _bands(older, leads, (low, high))
    bounds = [np.interp(leads, centres, offsets[:, column]) for column in (0, 1)]
    inside = (newer >= bounds[0] - 1e-12) & (newer <= bounds[1] + 1e-12)
    return float(inside[scored].mean())


def _bands(errors: Floats, leads: Floats, wanted: Sequence[float]) -> tuple[Floats, Floats]:
    centres, rows = [], []
    previous = np.array([_prior(quantile) for quantile in wanted])
    for low, high in pairwise(_BAND_SECONDS):
        inside = (leads > low) & (leads <= high)
        if not inside.any():
            continue
        seen = errors[:, inside]
        seen = seen[~np.isnan(seen)]
        if seen.size >= _LEAST_ERRORS:
            lead = float(leads[inside].mean())
            blocks = errors.shape[0] * ORIGIN_EVERY_SECONDS / lead if lead > _CORRELATED_FROM_SECONDS else None
            previous = np.array([_offset(seen, quantile, blocks) for quantile in wanted])
        centres.append(float(leads[inside].mean()))
        rows.append(previous)
    return np.array(centres), np.stack(rows)


def _offset(errors: Floats, quantile: float, blocks: float | None) -> float:
    """The conformal quantile: the ceil((n + 1) q)-th smallest error above the median, mirrored below.

    Errors within one lead time are nearly one observation. With only ``blocks`` independent ones, q is
    raised by half of its standard error, sqrt(q (1 - q) / blocks).
    """
    if quantile == 0.5:
        return 0.0
    if quantile < 0.5:
        return -_offset(-errors, 1.0 - quantile, blocks)
    if blocks is not None:
        quantile = min(1.0, quantile + 0.5 * sqrt(quantile * (1.0 - quantile) / max(blocks, 1.0)))
    rank = min(errors.size, ceil((errors.size + 1) * quantile))
    return max(0.0, float(np.partition(errors, rank - 1)[rank - 1]))


def _prior(quantile: float) -> float:
    return _UNKNOWN_SPREAD * (quantile - 0.5) / 0.45
