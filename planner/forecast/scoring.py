"""How good forecasts were at past origins: pinball loss, error of peaks, WAPE, and what intervals covered."""

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
    """What a forecast cost: its pinball loss and the error of its peaks, both relative to what came.

    ``peak`` is None where no origin is known whole: then the pinball loss alone decides.
    """

    pinball: float
    peak: float | None

    @property
    def total(self) -> float:
        """What candidates are chosen by: half for intervals, half for peaks, which capacity is bought for."""
        return self.pinball if self.peak is None else (self.pinball + self.peak) / 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """WAPE at the longest judged horizon, of the mix and of the better naive forecast; None where nothing is known."""

    mix: float | None
    naive: float | None
    coverage90: float | None
    origins: int
    errors: Errors | None

    def score(self) -> BacktestScore:
        """In the words of the model."""
        pinball, peak = (self.errors.pinball, self.errors.peak) if self.errors is not None else (None, None)
        return BacktestScore(self.mix, self.naive, self.coverage90, self.origins, pinball, peak)


def judge(outlook: Outlook, days: float) -> Verdict:
    """``judge_rows`` of an outlook of one series."""
    return judge_rows(outlook, [days])[0]


def judge_rows(outlook: Outlook, days: Sequence[float]) -> list[Verdict]:
    """Judge every series of an outlook that kept its folds, each with so many ``days`` of history.

    Where more than three days are known, origins that knew less than two are not judged.
    """
    folds = _kept(outlook)
    season = DAY_SECONDS / outlook.step_seconds
    spans = np.array(days)[:, None]
    learned = np.where(spans > _JUDGED_FROM_DAYS, folds.ages <= (spans - _LEARNING_DAYS) * season, folds.ages >= 0)
    truth = np.where(learned[:, :, None], folds.truth, np.nan)
    judged = errors(truth, folds.said, folds.ages, outlook)
    found = []
    for row, known in enumerate(truth):
        rivals = [wape(known, rival[row]) for rival in (folds.last_value, folds.seasonal_naive)]
        naive = min((rival for rival in rivals if rival is not None), default=None)
        origins = int((~np.isnan(known)).any(axis=1).sum())
        coverage = _coverage(folds, outlook, row)
        found.append(Verdict(wape(known, folds.said[row]), naive, coverage, origins, judged[row]))
    return found


def ages(outlook: Outlook) -> Slots:
    """Slots from each past origin of an outlook to the present, falling."""
    return _kept(outlook).ages


def said(outlook: Outlook) -> Matrix:
    """What the first series of an outlook was said to do at its past origins: (origins, anchors)."""
    found: Matrix = _kept(outlook).said[0]
    return found


def compare(outlook: Outlook, told: Sequence[Matrix], unknown: np.ndarray) -> list[Errors] | None:
    """Errors of several forecasts (origins, anchors) of one series at the past origins of its outlook.

    Those that are ``unknown`` (origins, anchors), because somebody had nothing to say, are judged for nobody.
    None where too little is left.
    """
    folds = _kept(outlook)
    some = ~unknown.all(axis=1)
    truth: Floats = np.where(unknown, np.nan, folds.truth[0])[some]
    found = errors(np.stack([truth] * len(told)), np.stack([each[some] for each in told]), folds.ages[some], outlook)
    known = [each for each in found if each is not None]
    return known if len(known) == len(told) else None


def errors(truth: Matrix, said: Matrix, ages: Slots, outlook: Outlook) -> list[Errors | None]:
    """What was said at past origins against what came: both (series, origins, anchors), NaN truth is not judged.

    The pinball loss is the mean of 30 min, 2 h and 24 h over all quantiles, twice the loss over the sum of what
    came, so that of the median alone it would be WAPE. Intervals are learned as those of forecasts are, from the
    other half of the origins: none is judged by its own error. The peak's error is relative to the peaks, a mean over
    those of the three horizons of which an origin is known whole. None
    for a series of which too few origins are known to halve them.
    """
    known = (~np.isnan(truth).all(axis=2)).sum(axis=1) >= _LEAST_ORIGINS
    if not known.any():
        return [None] * len(truth)
    came: Floats = truth.astype(np.float64)
    expected: Floats = said.astype(np.float64)
    season = round(DAY_SECONDS / outlook.step_seconds)
    quantiles = _crossed(came, expected, ages / season, outlook.anchors / season)
    leads = [outlook.anchors <= max(1.0, days * season) for days in _JUDGED_DAYS]
    losses = np.mean([pinball(came[..., near], quantiles[..., near]) for near in leads], axis=0)
    missed = np.stack([_peak_errors(came[..., near], expected[..., near]) for near in leads])
    some = (~np.isnan(missed)).sum(axis=0)
    peaks = np.where(some > 0, np.nansum(missed, axis=0) / np.maximum(some, 1), np.nan)
    return [
        Errors(float(loss), None if np.isnan(peak) else float(peak)) if judged else None
        for loss, peak, judged in zip(losses, peaks, known, strict=True)
    ]


def pinball(truth: Floats, quantiles: Floats) -> Floats:
    """By series: twice the mean pinball loss of ``QUANTILES`` over the mean of the truth; 0 without any truth.

    ``truth`` is (series, origins, leads), NaN where unknown, ``quantiles`` (quantiles, series, origins, leads).
    """
    over = truth - quantiles
    pairs = zip(QUANTILES, over, strict=True)
    lost = np.stack([np.nansum(np.maximum(q * each, (q - 1.0) * each), axis=(1, 2)) for q, each in pairs])
    found: Floats = 2.0 * lost.sum(axis=0) / len(QUANTILES) / np.maximum(np.nansum(truth, axis=(1, 2)), 1e-12)
    return found


def _crossed(truth: Floats, said: Floats, ages_days: Floats, lead_days: Floats) -> Floats:
    """Quantiles (quantiles, series, origins, leads) of each half of the origins, learned from the other half."""
    floor = np.array([offset(each) for each in truth])[:, None, None]
    logs = np.log(said + floor)
    missed = np.log(truth + floor) - logs
    half = truth.shape[1] // 2
    found = np.empty((len(QUANTILES), *truth.shape))
    for learned, judged in ((slice(None, half), slice(half, None)), (slice(half, None), slice(None, half))):
        known = missed[:, learned]
        apart = np.abs(ages_days[learned] - ages_days[half])
        spread = conformal.around(conformal.offsets(known, apart, np.ones_like(known), QUANTILES, lead_days), QUANTILES)
        moved = logs[None, :, judged] + spread.transpose(1, 0, 2)[:, :, None]
        found[:, :, judged] = np.maximum(np.exp(moved) - floor, 0.0)
    return found


def buffers(outlook: Outlook, row: int = 0) -> dict[float, float]:
    """Buffers by seconds ahead, from the peak errors at past origins (``buffer_from_errors``).

    Leads with too few known errors are left out. So is a series without errors, such as a constant one: it gives no
    evidence of the error to come.
    """
    folds, found = _kept(outlook), {}
    truth = np.maximum.accumulate(folds.truth[row].astype(np.float64), axis=1)
    said = np.maximum.accumulate(folds.said[row].astype(np.float64), axis=1)
    for column, lead in enumerate(outlook.anchors):
        came, expected = truth[:, column], said[:, column]
        known = np.isfinite(came) & (expected > 0)
        errors = (came - expected)[known] / expected[known]
        buffer = buffer_from_errors(errors) if np.abs(errors).max(initial=0.0) > _NO_ERROR else None
        if buffer is not None:
            found[float(lead) * outlook.step_seconds] = buffer
    return found


def _peak_errors(truth: Floats, said: Floats) -> Floats:
    """By series: the error of the highest value over the highest values, of origins known whole; NaN without one."""
    whole = ~np.isnan(truth).any(axis=2)
    peaks = np.where(whole, truth.max(axis=2), 0.0)
    missed = np.where(whole, np.abs(said.max(axis=2) - peaks), 0.0)
    found: Floats = missed.sum(axis=1) / np.maximum(peaks.sum(axis=1), 1e-12)
    return np.where(np.any(whole, axis=1), found, np.nan)


def _coverage(folds: Folds, outlook: Outlook, row: int) -> float | None:
    """The share of the newer half of the folds inside a 90 % interval learned from the older half."""
    truth, said = folds.truth[[row]], folds.said[[row]]
    floor = offset(truth.astype(np.float64))
    errors = np.log(truth + floor) - np.log(said + floor)
    half = errors.shape[1] // 2
    older, newer = errors[:, :half], errors[:, half:]
    scored = ~np.isnan(newer)
    if min(int((~np.isnan(older)).sum()), int(scored.sum())) < _LEAST_CELLS:
        return None
    season = round(DAY_SECONDS / outlook.step_seconds)
    ages = (folds.ages[:half] - folds.ages[half]) / season
    found = conformal.offsets(older, ages, np.ones_like(older), (_LOW, _HIGH), outlook.anchors / season)
    inside = (newer >= found[:, :1] - 1e-9) & (newer <= found[:, 1:] + 1e-9)
    return float(inside[scored].mean())


def _kept(outlook: Outlook) -> Folds:
    if outlook.folds is None:
        raise ValueError("an outlook without folds cannot be judged")
    return outlook.folds
