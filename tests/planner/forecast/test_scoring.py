"""Criteria of the selection: pinball loss and the error of peaks."""

from __future__ import annotations

import numpy as np
import pytest

from planner.forecast import scoring
from planner.forecast.ensemble import QUANTILES, Folds, Outlook, forecast_many
from planner.forecast.grid import Grid

ANCHORS = Grid(600.0).anchors


def _outlook(truth, text):
    ages = np.arange(len(truth), 0, -1) * 3
    folds = Folds(ages, truth[None], text[None], text[None], text[None])
    return Outlook(600.0, {}, {}, (), np.ones((1, 1, 1)), ANCHORS, folds)


def _observed(origins, seed=1):
    return 20.0 * np.exp(0.1 * np.random.default_rng(seed).standard_normal((origins, ANCHORS.size)))


def _errors(truth, text):
    outlook = _outlook(truth, text)
    return scoring.errors(truth[None], text[None], outlook.folds.ages, outlook)[0]


def test_the_pinball_loss_by_hand():
    truth = np.array([[[10.0, np.nan]]])
    quantiles = np.full((len(QUANTILES), 1, 1, 2), 8.0)
    above = scoring.pinball(truth, quantiles)[0]
    assert above == pytest.approx(2 * np.mean(QUANTILES) * 2.0 / 10.0)
    quantiles[:] = 12.0
    assert scoring.pinball(truth, quantiles)[0] == pytest.approx(2 * (1 - np.mean(QUANTILES)) * 2.0 / 10.0)


def test_a_perfect_forecast_has_no_loss_and_a_worse_one_has_more():
    truth = _observed(200)
    losses = []
    for spread in (0.0, 0.05, 0.2):
        noise = np.exp(spread * np.random.default_rng(2).standard_normal(truth.shape))
        losses.append(_errors(truth, truth * noise))
    assert losses[0].peak == pytest.approx(0.0)
    assert losses[0].pinball < 0.01
    assert losses[0].total < losses[1].total < losses[2].total


def test_peaks_are_judged_at_completely_known_origins_only():
    truth = _observed(200)
    truth[:, 0] = np.nan  # the nearest lead belongs to every peak
    result = _errors(truth, np.where(np.isnan(truth), 20.0, truth) * 1.3)
    assert result.peak is None
    assert result.total == result.pinball > 0.05
    known = _observed(200)
    known[:, -1] = np.nan  # only a whole day is unknown: the nearer horizons count
    assert _errors(known, np.nan_to_num(known, nan=20.0) * 1.3).peak == pytest.approx(0.3)


def test_missed_peaks_lose_even_if_the_rest_is_right():
    truth = _observed(200)
    high = truth.max(axis=1, keepdims=True)
    blind = np.where(truth == high, truth * 0.6, truth)
    calm = np.where(truth == truth.min(axis=1, keepdims=True), truth * 0.6, truth)
    assert _errors(truth, blind).peak > 3 * _errors(truth, calm).peak


def test_steady_errors_are_learned_by_intervals_and_wild_ones_are_not():
    # the same mean absolute error: one always a tenth too low, one anywhere
    truth = _observed(200)
    random = np.random.default_rng(3).choice([0.6, 1.0, 1.0, 1.6], truth.shape)
    assert _errors(truth, truth * 0.9).pinball < _errors(truth, truth * random).pinball


def test_no_origin_is_judged_by_its_own_error():
    truth = _observed(120)
    text = truth.copy()
    text[-60:] *= 0.5  # the newer half is half of the observed values: the older half cannot predict it
    assert _errors(truth, text).pinball > 0.3


def test_too_few_origins_give_no_result():
    truth = _observed(200)
    truth[7:] = np.nan
    assert _errors(truth, np.nan_to_num(truth, nan=1.0)) is None


def test_series_are_judged_alone_as_among_others(build):
    values = np.stack([build.wave(8.0, seed=1), build.wave(8.0, seed=2, noise=0.3)])
    together = forecast_many(values, step_seconds=600.0, steps=144, keep_folds=True)
    verdicts = scoring.judge_rows(together, [8.0, 8.0])
    for row, verdict in enumerate(verdicts):
        alone = scoring.judge(forecast_many(values[[row]], step_seconds=600.0, steps=144, keep_folds=True), 8.0)
        assert verdict.errors.pinball == pytest.approx(alone.errors.pinball, rel=0.02)
        assert verdict.errors.peak == pytest.approx(alone.errors.peak, rel=0.02)
        assert verdict.mix == pytest.approx(alone.mix, rel=0.02)
    assert verdicts[0].errors.total < verdicts[1].errors.total
    score = verdicts[0].score()
    assert (score.pinball, score.peak_error) == (verdicts[0].errors.pinball, verdicts[0].errors.peak)
