from __future__ import annotations

import numpy as np
import pytest

from detectors.statistics.theil_sen import all_pairs, means, medians, pairs_apart, steps, theil_sen

TIMES = 60.0 * np.arange(20)


def test_the_slope_of_a_line_is_exact():
    trend = theil_sen(np.stack((3.0 + 0.5 * TIMES, -0.25 * TIMES)), TIMES, all_pairs(20))
    assert trend.slope == pytest.approx([0.5, -0.25])
    assert trend.rising.tolist() == [1.0, 0.0]
    assert trend.falling.tolist() == [0.0, 1.0]
    assert trend.pairs.tolist() == [190, 190]


def test_a_fifth_of_outliers_moves_the_slope_little():
    values = 0.5 * TIMES[None] + np.random.default_rng(1).normal(0, 1.0, (1, 20))
    values[0, [3, 8, 11, 17]] = (1e6, -1e6, 1e6, 1e6)
    trend = theil_sen(values, TIMES, all_pairs(20))
    assert trend.slope[0] == pytest.approx(0.5, rel=0.05)
    assert trend.low[0] < trend.slope[0] < trend.high[0]


def test_pairs_a_day_apart_ignore_the_daily_rhythm():
    times = 1800.0 * np.arange(144)
    rhythm = 10.0 * np.sin(2 * np.pi * times / 86400.0)
    first, second = pairs_apart(144, 48)
    assert set(second - first) == {48, 96}
    flat = theil_sen(rhythm[None], times, (first, second))
    assert flat.slope[0] == pytest.approx(0.0, abs=1e-9)
    rising = theil_sen((rhythm + 1e-5 * times)[None], times, (first, second))
    assert rising.slope[0] == pytest.approx(1e-5)
    assert rising.rising[0] == 1.0


def test_missing_readings_are_left_out():
    values = np.stack((0.5 * TIMES, np.full(20, np.nan), np.full(20, np.nan)))
    values[0, 4:9] = np.nan
    values[2, 3] = 1.0
    trend = theil_sen(values, TIMES, all_pairs(20))
    assert trend.slope[0] == pytest.approx(0.5)
    assert np.isnan(trend.slope[1:]).all()
    assert trend.pairs.tolist() == [105, 0, 0]
    assert theil_sen(values[:0], TIMES, all_pairs(20)).slope.shape == (0,)
    assert np.isnan(theil_sen(values, TIMES, pairs_apart(20, 30)).slope).all()


def test_small_steps_are_ignored():
    values = np.array([[0.0, 1.0, 1.05, np.nan, 3.0, 2.0]])
    taken = steps(values, 0.1)
    assert (taken.known.tolist(), taken.up.tolist(), taken.down.tolist()) == ([3], [1], [1])


def test_medians_and_means_equal_those_of_numpy():
    values = np.random.default_rng(2).normal(size=(5, 4, 9))
    values[np.random.default_rng(3).random(values.shape) < 0.3] = np.nan
    np.testing.assert_allclose(medians(values), np.nanmedian(values, axis=2))
    np.testing.assert_allclose(means(values), np.nanmean(values, axis=2))
    assert np.isnan(medians(np.full((1, 3), np.nan))).all()
    assert np.isnan(means(np.full((1, 3), np.nan))).all()
