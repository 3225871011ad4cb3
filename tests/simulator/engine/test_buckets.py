"""Buckets from the table equal those of a binary search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.buckets import Buckets
from simulator.engine.counters import HISTOGRAMS

positive = st.floats(min_value=1e-9, max_value=1e9)


@given(st.sets(positive | st.just(0.0), min_size=1, max_size=40), st.lists(st.floats(allow_nan=False), max_size=40))
def test_any_bounds_and_values(bounds, values):
    ladder = np.array(sorted(bounds))
    # On every bound, and the floats next to it, is where a bucket can be missed by one.
    near = np.concatenate([ladder, np.nextafter(ladder, np.inf), np.nextafter(ladder, -np.inf), values])
    assert Buckets(ladder).of(near).tolist() == np.searchsorted(ladder, near, side="left").tolist()


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_the_ladders_of_engines(name):
    ladder = np.array(HISTOGRAMS[name])
    values = np.concatenate([ladder, np.exp(np.linspace(-12, 12, 5000)), [0.0, np.inf]])
    assert Buckets(ladder).of(values).tolist() == np.searchsorted(ladder, values, side="left").tolist()


def test_bounds_too_near_for_a_table_are_searched():
    ladder = np.array([1.0, 1.0 + 1e-12, 2.0])
    assert Buckets(ladder).of(np.array([1.0, 1.0 + 5e-13, 1.5, 3.0])).tolist() == [0, 1, 2, 3]
