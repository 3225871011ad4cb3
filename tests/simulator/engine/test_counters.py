from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.counters import HISTOGRAMS, EngineCounters

FAMILIES = [("e2e",), ("http", "http_fine"), ("queue", "queue_fine"), ("itl", "step")]


def expected(name: str, replica: int, seen: list[tuple[int, float, float]]) -> list[float]:
    """Counts by bucket, value by value: the first bucket whose bound is not below the value."""
    bounds = HISTOGRAMS[name]
    counts = [0.0] * (len(bounds) + 1)
    for where, value, weight in seen:
        if where == replica:
            counts[sum(bound < value for bound in bounds)] += weight
    return counts


@given(
    names=st.sampled_from(FAMILIES),
    seen=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 200), st.floats(0, 9)), min_size=1, max_size=30),
)
@settings(max_examples=60, deadline=None)
def test_histograms_of_the_same_values_count_in_their_own_buckets(
    names: tuple[str, ...], seen: list[tuple[int, float, float]]
) -> None:
    counters = EngineCounters(3)
    where, values, weights = (np.array(column) for column in zip(*seen, strict=True))
    counters.observe(names, where, values, weights)
    for name in names:
        for replica in range(3):
            assert counters.buckets[name][replica] == pytest.approx(expected(name, replica, seen))
            total = sum(value * weight for at, value, weight in seen if at == replica)
            assert counters.sums[name][replica] == pytest.approx(total)


def test_each_histogram_may_have_its_own_weights() -> None:
    counters = EngineCounters(2)
    counters.observe(("itl", "step"), np.array([0, 1]), np.array([0.02, 0.02]), np.array([30.0, 8.0]), np.ones(2))
    assert counters.buckets["itl"].sum(axis=1).tolist() == [30.0, 8.0]
    assert counters.buckets["step"].sum(axis=1).tolist() == [1.0, 1.0]
    assert counters.sums["itl"][0] == pytest.approx(0.6)


def test_values_on_a_bound_belong_to_its_bucket_and_none_is_lost() -> None:
    counters = EngineCounters(1)
    for name, bounds in HISTOGRAMS.items():
        values = np.array([*bounds, bounds[-1] * 2])
        counters.observe(name, np.zeros(values.size, dtype=np.int64), values)
        assert counters.buckets[name][0].tolist() == [1.0] * (len(bounds) + 1), name


def test_many_observations_are_summed_early() -> None:
    counters = EngineCounters(1)
    for _ in range(1000):
        counters.observe("ttft", np.zeros(1, dtype=np.int64), np.array([0.05]))
        counters.add("preemptions", np.zeros(1, dtype=np.int64), np.ones(1))
    assert counters.buckets["ttft"].sum() == 1000.0
    assert counters.plain["preemptions"][0] == 1000.0


def test_reset_clears_one_replica_and_scale_multiplies_all() -> None:
    counters = EngineCounters(2)
    counters.observe(("http", "http_fine"), np.array([0, 1]), np.array([0.3, 0.3]))
    counters.add("http_5xx", np.array([0, 1]), np.ones(2))
    counters.reset(0)
    counters.scale(3.0)
    assert counters.buckets["http"].sum(axis=1).tolist() == [0.0, 3.0]
    assert counters.sums["http_fine"].tolist() == [0.0, pytest.approx(0.9)]
    assert counters.plain["http_5xx"].tolist() == [0.0, 3.0]
