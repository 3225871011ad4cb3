"""Prediction intervals of many series at once: weighted quantiles of the log errors at past origins."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np

from planner.forecast.grid import Matrix, Slots

HALF_LIFE_DAYS = 6.0
_UNKNOWN_SPREAD = log(1.5)
_PRIOR_ERRORS = 6.0
_ALIKE, _ALIKE_DAYS = 2.0, 0.08
_RAISED_NEAR, _RAISED_FAR = 0.2, 0.8
_CORRELATED_FROM_DAYS = 1 / 6
_SCALE_EXPONENT = 0.5
_PRIOR_TYPICAL_ERRORS = 3.0
_SCALE_HALF_LIFE_HOURS = 6.0
MEDIAN = 0.5
_TRACKED = (0.05, MEDIAN, 0.95)
_TRACKED_DAYS, _TRACKED_EVERY_DAYS = 4.0, 0.5
_TRACKED_ORIGIN = 2
_TRACKING_STEP = 1.5
_TRACKED_FROM_ERRORS = 12
_BLURRED = 0.2
"""An error this near to the bound counts in part, so that a minute difference never decides."""
_MOST_TRACKED = log(2.0)


def offsets(
    errors: Matrix,
    ages_days: Matrix,
    scales: Matrix,
    wanted: Sequence[float],
    lead_days: Matrix,
    blocks: Matrix | None = None,
) -> Matrix:
    """Distance of each quantile from the forecast, in logs: (series, quantiles, leads).

    ``errors`` (series, origins, leads) is NaN if the truth is unknown. ``scales`` is the relative error level of each
    origin; the last one is the present, whose errors are unknown. An error counts half after six days, and three times
    at the present time of day. Few errors are combined with a prior of two thirds to one and a half. ``blocks``
    (series, leads) is the number of independent errors, measured if not given.
    """
    now = scales[:, -1]
    ranked = errors / scales
    counts = _weights(ages_days).astype(errors.dtype)[None, :, None]
    weights = np.where(np.isnan(ranked), 0.0, counts)
    order = np.argsort(ranked, axis=1)
    ranked = np.take_along_axis(ranked, order, axis=1)
    weights = np.take_along_axis(weights, order, axis=1)
    sums = np.cumsum(weights, axis=1)
    total = sums[:, -1]
    middles = sums - weights / 2
    span = np.where(np.isnan(errors).all(axis=2), 0.0, ages_days).max(axis=1, initial=0.0)[:, None]
    if blocks is None:
        blocks = _independent(errors / scales, ages_days, lead_days, span)
    levels = [_raised_level(quantile, lead_days, blocks) for quantile in wanted]
    result = np.stack([_at(ranked, middles, total * level) * now for level in levels], axis=1)
    prior = (_PRIOR_ERRORS / (_PRIOR_ERRORS + (~np.isnan(errors)).sum(axis=1)))[:, None, :] ** 2
    spread = np.array([_UNKNOWN_SPREAD * (quantile - 0.5) / 0.45 for quantile in wanted])[None, :, None]
    return _smooth_leads(np.nan_to_num(result) * (1 - prior) + spread * prior)


def adapted(
    result: Matrix, errors: Matrix, ages_days: Matrix, scales: Matrix, wanted: Sequence[float], lead_days: Matrix
) -> Matrix:
    """Offsets whose distance from the median offset follows the coverage of the past days, at each lead by itself.

    Every twelve hours of the past days the interval known then is compared with the errors that followed. Each side
    widens by the share of errors outside it, and narrows if there are fewer than a twentieth: the quantile tracking of
    A. N. Angelopoulos, E. J. Candes and R. J. Tibshirani, "Conformal PID control for time series prediction", NeurIPS
    2023, a form of adaptive conformal inference (I. Gibbs and E. J. Candes, NeurIPS 2021).
    """
    if MEDIAN not in wanted:
        return result
    every = slice(None, None, -_TRACKED_ORIGIN)  # from the newest on, for a quarter of the time
    ranked, ages_days = (errors / scales)[:, every][:, ::-1], ages_days[every][::-1]
    lower, upper = _factors(ranked, ages_days, lead_days)
    middle = list(wanted).index(MEDIAN)
    apart = result - result[:, middle : middle + 1]
    factors = np.where(np.array(wanted)[None, :, None] < 0.5, lower[:, None], upper[:, None])
    moved: Matrix = (result[:, middle : middle + 1] + apart * factors).astype(result.dtype)
    return moved


def _factors(ranked: Matrix, ages_days: Matrix, lead_days: Matrix) -> tuple[Matrix, Matrix]:
    """Factors of both sides, (series, leads) each, 1 without known errors. ``ranked`` are errors over their scales."""
    span = np.where(np.isnan(ranked).all(axis=2), 0.0, ages_days).max(axis=1, initial=0.0)[:, None]
    blocks = _independent(ranked, ages_days, lead_days, span)
    logs = np.zeros((2, ranked.shape[0], lead_days.size))
    starts = [int(np.argmin(np.abs(ages_days - age))) for age in np.arange(_TRACKED_DAYS, 0.0, -_TRACKED_EVERY_DAYS)]
    starts = sorted(set(starts))
    for begin, end in zip(starts, [*starts[1:], ranked.shape[1]], strict=True):
        if begin == 0:
            continue
        past = ages_days[:begin] - ages_days[begin]
        known = np.where(past[:, None] >= lead_days - 1e-9, ranked[:, :begin], np.nan)
        enough = (~np.isnan(known)).sum(axis=1) >= _TRACKED_FROM_ERRORS
        bounds = offsets(known, past, np.ones_like(known), _TRACKED, lead_days, blocks)
        for side, sign in enumerate((-1.0, 1.0)):
            reach = sign * (bounds[:, 2 * side] - bounds[:, 1]) * np.exp(logs[side])
            beyond = sign * (ranked[:, begin:end] - bounds[:, [1]]) - reach[:, None]
            seen = ~np.isnan(beyond) & enough[:, None]
            outside = np.clip(0.5 + beyond / (_BLURRED * np.abs(reach[:, None]) + 1e-9), 0.0, 1.0)
            share = np.where(seen, outside, 0.0).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
            logs[side] += np.where(seen.any(axis=1), _TRACKING_STEP * (share - _TRACKED[0]), 0.0)
        np.clip(logs, -_MOST_TRACKED, _MOST_TRACKED, out=logs)
    factors = np.exp(logs)
    return factors[0], factors[1]


def center_on_median(result: Matrix, wanted: Sequence[float]) -> Matrix:
    """Shifts offsets so that the forecast itself stays the median.

    The median error of a few days is mostly the drift of those days: adding it made forecasts of a day 4 % worse over
    27 traces.
    """
    sides = np.sign(np.array(wanted) - 0.5)[None, :, None]
    centred: Matrix = np.maximum(result * sides, 0.0) * sides
    return centred


def _weights(ages_days: Matrix) -> Matrix:
    apart = np.abs((ages_days + 0.5) % 1.0 - 0.5)
    similarity = 1.0 + _ALIKE * np.exp(-0.5 * (apart / _ALIKE_DAYS) ** 2)
    result: Matrix = 0.5 ** (ages_days / HALF_LIFE_DAYS) * similarity
    return result


def _independent(errors: Matrix, ages_days: Matrix, lead_days: Matrix, span_days: Matrix) -> Matrix:
    """Number of independent errors of each lead: (series, leads).

    Errors within one lead may be nearly one observation: then there are span / lead of them. How alike they are follows
    from the variance of their means over one lead, which is that of one error if all are equal, and an n-th of it if
    they are independent.
    """
    known = ~np.isnan(errors)
    count = known.sum(axis=1)
    centred = np.nan_to_num(errors - np.nansum(errors, axis=1, keepdims=True) / np.maximum(count, 1)[:, None])
    variance = np.maximum((centred**2).sum(axis=1) / np.maximum(count, 1), 1e-18)
    fewest = np.maximum(span_days / np.maximum(lead_days, 1e-6), 1.0)
    apart = float(np.median(np.abs(np.diff(ages_days)))) if ages_days.size > 1 else 1.0
    lengths = [max(1, round(float(lead) / apart)) for lead in lead_days]
    before = ((0, 0), (max(lengths), 0), (0, 0))
    sums = np.pad(np.cumsum(centred, axis=1, dtype=np.float64), before)
    counts = np.pad(np.cumsum(known, axis=1), before)
    result = np.empty(fewest.shape)
    for column, length in enumerate(lengths):
        within = counts[:, length:, column] - counts[:, :-length, column]
        totals = sums[:, length:, column] - sums[:, :-length, column]
        full = within >= length / 2
        means = np.where(full, totals / np.maximum(within, 1), 0.0)
        alike = (means**2).sum(axis=1) / np.maximum(full.sum(axis=1), 1) / variance[:, column]
        alike = np.where(full.any(axis=1), np.clip(alike, 1.0 / length, 1.0), 1.0)
        result[:, column] = fewest[:, column] / alike
    return result


def _raised_level(quantile: float, lead_days: Matrix, blocks: Matrix) -> Matrix:
    """The level to look up: farther out the fewer independent errors (``blocks``) there are.

    A quantile learned from n has the standard error sqrt(q (1 - q) / n). A part of it is added, more at leads past four
    hours: without it intervals cover 82 % there instead of 90 %.
    """
    if quantile == 0.5:
        return np.full(blocks.shape, 0.5)
    share = np.where(lead_days > _CORRELATED_FROM_DAYS, _RAISED_FAR, _RAISED_NEAR)
    error = share * np.sqrt(quantile * (1 - quantile) / blocks)
    result: Matrix = np.clip(quantile + np.sign(quantile - 0.5) * error, 0.002, 0.998)
    return result


def error_scales(errors: Matrix, leads: Slots, stride: int, ten_minutes: int) -> Matrix:
    """Recent errors relative to typical ones at each origin: (series, origins, leads), around 1.

    The square root of a mean over six hours, drawn to 1 by three typical errors. It uses only errors known at an
    origin.
    """
    size = np.abs(errors)
    known = ~np.isnan(size)
    typical = np.nansum(size, axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    typical = np.maximum(typical, 1e-6)
    half = _SCALE_HALF_LIFE_HOURS * 6 * ten_minutes / stride
    grown = (2.0 ** (np.arange(errors.shape[1]) / half))[:, None].astype(errors.dtype)
    sums = np.cumsum(np.where(known, size / typical, 0) * grown, axis=1)
    counts = np.cumsum(known * grown, axis=1)
    result = np.ones_like(errors)
    for column, lead in enumerate(leads):
        late = -(-int(lead) // stride)
        if late < errors.shape[1]:
            fade = grown[late:, 0]
            until = errors.shape[1] - late
            above = sums[:, :until, column] / fade + _PRIOR_TYPICAL_ERRORS
            result[:, late:, column] = (
                above / (counts[:, :until, column] / fade + _PRIOR_TYPICAL_ERRORS)
            ) ** _SCALE_EXPONENT
    return result


def peak_errors(logs: Matrix, predicted: Matrix, origins: Slots, leads: Slots) -> Matrix:
    """Log of the true maximum up to each lead over that of the forecast: (series, origins, leads).

    NaN if the stretch is not over, or a tenth of it is missing.
    """
    slots, longest = logs.shape[1], int(leads[-1])
    padded = np.concatenate([logs, np.full((len(logs), longest), np.nan, logs.dtype)], axis=1)
    missing = np.cumsum(np.isnan(padded), axis=1)
    padded = np.where(np.isnan(padded), -np.inf, padded)
    highest = np.full((len(logs), origins.size), -np.inf, logs.dtype)
    path = np.maximum.accumulate(predicted, axis=2)
    result = np.full_like(predicted, np.nan)
    begin = 0
    for column, lead in enumerate(leads):
        for ahead in range(begin, int(lead)):
            np.maximum(highest, padded[:, origins + ahead], out=highest)
        begin = int(lead)
        before = np.where(origins > 0, missing[:, np.maximum(origins - 1, 0)], 0)
        gaps = missing[:, np.minimum(origins + lead - 1, padded.shape[1] - 1)] - before
        whole = (origins + lead <= slots) & (gaps <= 0.1 * lead)
        result[:, :, column] = np.where(whole & np.isfinite(highest), highest - path[:, :, column], np.nan)
    return result


def _at(ranked: Matrix, middles: Matrix, wanted: Matrix) -> Matrix:
    """The value at the cumulated weight ``wanted`` (series, leads), interpolated between the two nearest."""
    rows = ranked.shape[1]
    above = np.clip((middles < wanted[:, None]).sum(axis=1), 0, rows - 1)[:, None]
    below = np.maximum(above - 1, 0)
    high, low = (np.take_along_axis(ranked, index, axis=1)[:, 0] for index in (above, below))
    to, start = (np.take_along_axis(middles, index, axis=1)[:, 0] for index in (above, below))
    high = np.where(np.isnan(high), low, high)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.clip(np.where(to > start, (wanted - start) / (to - start), 1.0), 0.0, 1.0)
    result: Matrix = low + (high - low) * share
    return result


def _smooth_leads(result: Matrix) -> Matrix:
    padded = np.concatenate([result[..., :1], result, result[..., -1:]], axis=-1)
    smooth: Matrix = (padded[..., :-2] + 2 * padded[..., 1:-1] + padded[..., 2:]) / 4
    return smooth
