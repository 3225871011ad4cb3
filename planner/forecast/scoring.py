"""Accuracy of forecasts at past origins: pinball loss, error of peaks, WAPE and coverage of intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.model import BacktestScore, Floats
from outrider.vocabulary.indicators import wape
from planner.forecast import conformal
from planner.forecast.ensemble import QUANTILES, Folds, Outlook
from planner.forecast.grid import Matrix, Slots
from planner.forecast.series import DAY_SECONDS, offset
from planner.performance.headroom import buffer_from_errors

_JUDGED_DAYS = (30 / 1440, 2 / 24, 1.0)
_LOW, _HIGH = 0.05, 0.95
_LEAST_CELLS = 24
_LEAST_ORIGINS = 8
_NO_ERROR = 1e-4
_LEARNING_DAYS, _JUDGED_FROM_DAYS = 2.0, 3.0


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of a forecast relative to the observed values: pinball loss and error of the peaks.

    ``peak`` is None if no origin is known completely: then the pinball loss alone decides.
    """

    pinball: float
    peak: float | None

    @property
    def total(self) -> float:
        """Selection criterion: half for intervals, half for peaks, which capacity is bought for."""
        return self.pinball if self.peak is None else (self.pinball + self.peak) / 2


@dataclass(frozen=True, slots=True)
class SeriesScore:
    """WAPE at the longest judged horizon, of the mix and of the better naive forecast; None if nothing is known."""

    mix: float | None
    naive: float | None
    coverage90: float | None
    origins: int
    errors: Errors | None

    def score(self) -> BacktestScore:
        """Converts to the score of the domain model."""
        pinball, peak = (self.errors.pinball, self.errors.peak) if self.errors is not None else (None, None)
        return BacktestScore(self.mix, self.naive, self.coverage90, self.origins, pinball, peak)


def judge(outlook: Outlook, days: float) -> SeriesScore:
    """``judge_rows`` of an outlook of one series."""
    return judge_rows(outlook, [days])[0]


def judge_rows(outlook: Outlook, days: Sequence[float]) -> list[SeriesScore]:
    """Judges every series of an outlook with folds, each with its ``days`` of history.

    If more than three days are known, origins with less than two days of history are not judged.
    """
    folds = _folds(outlook)
    season = DAY_SECONDS / outlook.step_seconds
    spans = np.array(days)[:, None]
    learned = np.where(spans > _JUDGED_FROM_DAYS, folds.ages <= (spans - _LEARNING_DAYS) * season, folds.ages >= 0)
    truth = np.where(learned[:, :, None], folds.truth, np.nan)
    judged = errors(truth, folds.predicted, folds.ages, outlook)
    scores = []
    for row, known in enumerate(truth):
        rivals = [wape(known, rival[row]) for rival in (folds.last_value, folds.seasonal_naive)]
        naive = min((rival for rival in rivals if rival is not None), default=None)
        origins = int((~np.isnan(known)).any(axis=1).sum())
        coverage = _coverage(folds, outlook, row)
        scores.append(SeriesScore(wape(known, folds.predicted[row]), naive, coverage, origins, judged[row]))
    return scores


def ages(outlook: Outlook) -> Slots:
    """Slots from each past origin of an outlook to the present, falling."""
    return _folds(outlook).ages


def predictions(outlook: Outlook) -> Matrix:
    """Forecasts of the first series of an outlook at its past origins: (origins, anchors)."""
    result: Matrix = _folds(outlook).predicted[0]
    return result


def compare(outlook: Outlook, forecasts: Sequence[Matrix], unknown: np.ndarray) -> list[Errors] | None:
    """Errors of several forecasts (origins, anchors) of one series at the past origins of its outlook.

    Cells that are ``unknown`` (origins, anchors) to one forecast are judged for none. None if too little is left.
    """
    folds = _folds(outlook)
    judged = ~unknown.all(axis=1)
    truth: Floats = np.where(unknown, np.nan, folds.truth[0])[judged]
    results = errors(
        np.stack([truth] * len(forecasts)),
        np.stack([forecast[judged] for forecast in forecasts]),
        folds.ages[judged],
        outlook,
    )
    complete = [forecast for forecast in results if forecast is not None]
    return complete if len(complete) == len(forecasts) else None


def errors(truth: Matrix, predicted: Matrix, ages: Slots, outlook: Outlook) -> list[Errors | None]:
    """Errors of forecasts at past origins: both arrays (series, origins, anchors); NaN truth is not judged.

    The pinball loss is the mean of 30 min, 2 h and 24 h over all quantiles: twice the loss over the sum of the observed
    values, so that for the median alone it is WAPE. Intervals are learned as for forecasts, from the other half of the
    origins: none is judged by its own error. The peak's error is relative to the peaks: a mean over those of the three
    horizons of which an origin is known completely. None for a series with too few known origins to halve them.
    """
    known = (~np.isnan(truth).all(axis=2)).sum(axis=1) >= _LEAST_ORIGINS
    if not known.any():
        return [None] * len(truth)
    observed: Floats = truth.astype(np.float64)
    expected: Floats = predicted.astype(np.float64)
    season = round(DAY_SECONDS / outlook.step_seconds)
    quantiles = _cross_learned(observed, expected, ages / season, outlook.anchors / season)
    leads = [outlook.anchors <= max(1.0, days * season) for days in _JUDGED_DAYS]
    losses = np.mean([pinball(observed[..., near], quantiles[..., near]) for near in leads], axis=0)
    peak_losses = np.stack([_peak_errors(observed[..., near], expected[..., near]) for near in leads])
    counts = (~np.isnan(peak_losses)).sum(axis=0)
    peaks = np.where(counts > 0, np.nansum(peak_losses, axis=0) / np.maximum(counts, 1), np.nan)
    return [
        Errors(float(loss), None if np.isnan(peak) else float(peak)) if judged else None
        for loss, peak, judged in zip(losses, peaks, known, strict=True)
    ]


def pinball(truth: Floats, quantiles: Floats) -> Floats:
    """Twice the mean pinball loss of ``QUANTILES`` over the mean of the truth, by series; 0 without any truth.

    ``truth`` is (series, origins, leads), NaN if unknown, ``quantiles`` (quantiles, series, origins, leads).
    """
    over = truth - quantiles
    pairs = zip(QUANTILES, over, strict=True)
    losses = np.stack([np.nansum(np.maximum(q * error, (q - 1.0) * error), axis=(1, 2)) for q, error in pairs])
    result: Floats = 2.0 * losses.sum(axis=0) / len(QUANTILES) / np.maximum(np.nansum(truth, axis=(1, 2)), 1e-12)
    return result


def _cross_learned(truth: Floats, predicted: Floats, ages_days: Floats, lead_days: Floats) -> Floats:
    """Quantiles (quantiles, series, origins, leads) of each half of the origins, learned from the other half."""
    floor = np.array([offset(row) for row in truth])[:, None, None]
    logs = np.log(predicted + floor)
    errors = np.log(truth + floor) - logs
    half = truth.shape[1] // 2
    result = np.empty((len(QUANTILES), *truth.shape))
    for learned, judged in ((slice(None, half), slice(half, None)), (slice(half, None), slice(None, half))):
        known = errors[:, learned]
        distances = np.abs(ages_days[learned] - ages_days[half])
        spread = conformal.center_on_median(
            conformal.offsets(known, distances, np.ones_like(known), QUANTILES, lead_days), QUANTILES
        )
        moved = logs[None, :, judged] + spread.transpose(1, 0, 2)[:, :, None]
        result[:, :, judged] = np.maximum(np.exp(moved) - floor, 0.0)
    return result


def buffers(outlook: Outlook, row: int = 0) -> dict[float, float]:
    """Buffers by seconds ahead, from the peak errors at past origins (``buffer_from_errors``).

    Leads with too few known errors are left out. So is a series without errors, such as a constant one: it gives no
    evidence of the error to come.
    """
    folds, buffer_by_lead = _folds(outlook), {}
    truth = np.maximum.accumulate(folds.truth[row].astype(np.float64), axis=1)
    predicted = np.maximum.accumulate(folds.predicted[row].astype(np.float64), axis=1)
    for column, lead in enumerate(outlook.anchors):
        observed, expected = truth[:, column], predicted[:, column]
        known = np.isfinite(observed) & (expected > 0)
        errors = (observed - expected)[known] / expected[known]
        buffer = buffer_from_errors(errors) if np.abs(errors).max(initial=0.0) > _NO_ERROR else None
        if buffer is not None:
            buffer_by_lead[float(lead) * outlook.step_seconds] = buffer
    return buffer_by_lead


def _peak_errors(truth: Floats, predicted: Floats) -> Floats:
    """Error of the highest value over the highest values, by series, of completely known origins; NaN without one."""
    whole = ~np.isnan(truth).any(axis=2)
    peaks = np.where(whole, truth.max(axis=2), 0.0)
    errors = np.where(whole, np.abs(predicted.max(axis=2) - peaks), 0.0)
    result: Floats = errors.sum(axis=1) / np.maximum(peaks.sum(axis=1), 1e-12)
    return np.where(np.any(whole, axis=1), result, np.nan)


def _coverage(folds: Folds, outlook: Outlook, row: int) -> float | None:
    """Share of the newer half of the folds inside a 90 % interval learned from the older half."""
    truth, predicted = folds.truth[[row]], folds.predicted[[row]]
    floor = offset(truth.astype(np.float64))
    errors = np.log(truth + floor) - np.log(predicted + floor)
    half = errors.shape[1] // 2
    older, newer = errors[:, :half], errors[:, half:]
    scored = ~np.isnan(newer)
    if min(int((~np.isnan(older)).sum()), int(scored.sum())) < _LEAST_CELLS:
        return None
    season = round(DAY_SECONDS / outlook.step_seconds)
    ages = (folds.ages[:half] - folds.ages[half]) / season
    bounds = conformal.offsets(older, ages, np.ones_like(older), (_LOW, _HIGH), outlook.anchors / season)
    inside = (newer >= bounds[:, :1] - 1e-9) & (newer <= bounds[:, 1:] + 1e-9)
    return float(inside[scored].mean())


def _folds(outlook: Outlook) -> Folds:
    if outlook.folds is None:
        raise ValueError("an outlook without folds cannot be judged")
    return outlook.folds
