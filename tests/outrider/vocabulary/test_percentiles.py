"""A percentile needs enough observations, and a histogram proves only its bucket."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.vocabulary.percentiles import bucket_interval, fewest_observations

BOUNDS = (1.0, 2.5, 5.0)


@pytest.mark.parametrize(("quantile", "fewest"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100), (0.999, 1000)])
def test_one_observation_is_expected_above_the_quantile(quantile: float, fewest: int) -> None:
    assert fewest_observations(quantile) == fewest


@pytest.mark.parametrize(
    ("counts", "interval"),
    [
        ([100, 0, 0, 0], (0.0, 1.0)),
        ([98, 2, 0, 0], (1.0, 2.5)),
        ([99, 0, 1, 0], (0.0, 1.0)),
        ([0, 0, 0, 3], (5.0, np.inf)),
    ],
)
def test_the_interval_is_the_bucket_of_the_quantile(counts: list[int], interval: tuple[float, float]) -> None:
    low, high = bucket_interval(np.array([counts], dtype=float), BOUNDS, 0.99)
    assert (low[0], high[0]) == interval


def test_nothing_counted_has_no_interval() -> None:
    low, high = bucket_interval(np.zeros((1, 4)), BOUNDS, 0.99)
    assert np.isnan(low[0])
    assert np.isnan(high[0])


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_true_quantile_is_never_outside_the_interval(values: list[float], quantile: float) -> None:
    counts = np.histogram(values, bins=[-np.inf, *np.nextafter(BOUNDS, np.inf), np.inf])[0].astype(float)
    (low,), (high,) = bucket_interval(counts[None, :], BOUNDS, quantile)
    assert low < np.quantile(values, quantile, method="inverted_cdf") <= high
