"""How good forecasts were at past origins: WAPE and error of peaks, and what intervals covered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.measures import wape
from outrider.model import BacktestScore, Floats
from planner.capacity import buffer_of
from planner.forecast import conformal
from planner.forecast.fast import Folds, Outlook, Speaker
from planner.forecast.series import DAY_SECONDS, offset

_JUDGED_DAYS = (30 / 1440, 2 / 24, 1.0)
_LOW, _HIGH = 0.05, 0.95
_LEAST_CELLS = 24
_NO_ERROR = 1e-4
_LEARNING_DAYS, _JUDGED_FROM_DAYS = 2.0, 3.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """WAPE at the longest judged horizon, of the mix and of the better naive forecast; None where nothing is known."""

    mix: float | None
    naive: float | None
    coverage90: float | None
    origins: int

    def score(self) -> BacktestScore:
        """In the words of the model."""
        return BacktestScore(self.mix, self.naive, self.coverage90, self.origins)


def judge(outlook: Outlook, days: float, row: int = 0) -> Verdict:
    """Judge one series of an outlook that kept its folds, with ``days`` of history.

    Where more than three days are known, origins that knew less than two are not judged.
    """
    folds = _kept(outlook)
    season = DAY_SECONDS / outlook.step_seconds
    learned = folds.ages <= (days - _LEARNING_DAYS) * season if days > _JUDGED_FROM_DAYS else folds.ages >= 0
    truth = np.where(learned[:, None], folds.truth[row], np.nan)
    rivals = [wape(truth, rival[row]) for rival in (folds.last_value, folds.seasonal_naive)]
    known = [rival for rival in rivals if rival is not None]
    origins = int((~np.isnan(truth)).any(axis=1).sum())
    return Verdict(wape(truth, folds.said[row]), min(known) if known else None, _coverage(folds, outlook, row), origins)


def compare(alone: Outlook, joined: Outlook, speaker: Speaker, slots: int) -> tuple[float, float, float]:
    """Errors of the mix alone, with the speaker, and of the speaker, where the speaker knew what to say.

    An error is the mean over 30 min, 2 h and 24 h of WAPE and of the relative error of the peak, so that
    one who misses peaks does not win by calm nights.
    """
    folds, other = _kept(alone), _kept(joined)
    said: Floats = speaker.at(slots - folds.ages, alone.anchors).astype(np.float64)
    truth: Floats = np.where(np.isnan(said), np.nan, folds.truth[0])
    season = round(DAY_SECONDS / alone.step_seconds)
    leads = [alone.anchors <= max(1.0, days * season) for days in _JUDGED_DAYS]
    mix, with_it, own = (
        float(np.mean([_error(truth[:, near], each[:, near]) for near in leads]))
        for each in (folds.said[0], other.said[0], said)
    )
    return mix, with_it, own


def buffers(outlook: Outlook, row: int = 0) -> dict[float, float]:
    """By seconds ahead: what ``buffer_of`` says of the past origins' peaks, where enough of them are known.

    A series that never errs, as a constant one, proves nothing of the error to come: it has none.
    """
    folds, found = _kept(outlook), {}
    truth, said = folds.truth[row].astype(np.float64), folds.said[row].astype(np.float64)
    for column, lead in enumerate(outlook.anchors):
        came, expected = truth[:, : column + 1].max(axis=1), said[:, : column + 1].max(axis=1)
        known = np.isfinite(came) & (expected > 0)
        errors = (came - expected)[known] / expected[known]
        buffer = buffer_of(errors.tolist()) if np.abs(errors).max(initial=0.0) > _NO_ERROR else None
        if buffer is not None:
            found[float(lead) * outlook.step_seconds] = buffer
    return found


def _error(truth: Floats, said: Floats) -> float:
    found = wape(truth, said)
    whole = ~np.isnan(truth).any(axis=1)
    if found is None or not whole.any():
        return 0.0
    peaks = truth[whole].max(axis=1)
    return (found + float(np.abs(said[whole].max(axis=1) - peaks).sum() / max(peaks.sum(), 1e-12))) / 2


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
