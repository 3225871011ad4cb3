from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.statistics.peer_groups import FEWEST, SIGMA_OF_MAD, apart
from outrider.model import Floats


def one_by_one(values: Floats, group: np.ndarray, floor: Floats) -> Floats:
    expected = np.full_like(values, np.nan)
    for number in set(group.tolist()) - {-1}:
        for column in range(values.shape[1]):
            rows = np.flatnonzero((group == number) & np.isfinite(values[:, column]))
            if rows.size >= FEWEST:
                part = values[rows, column]
                away = part - np.median(part)
                expected[rows, column] = away / np.maximum(SIGMA_OF_MAD * np.median(np.abs(away)), floor[rows, column])
    return expected


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), entities=st.integers(1, 40), groups=st.integers(1, 6), missing=st.floats(0.0, 0.8))
def test_grouped_medians_equal_medians_of_each_group(seed: int, entities: int, groups: int, missing: float) -> None:
    random = np.random.default_rng(seed)
    values = np.round(random.normal(size=(entities, 3)), 1)
    values[random.random(values.shape) < missing] = np.nan
    group = random.integers(-1, groups, entities)
    floor = random.uniform(0.01, 0.2, values.shape)
    assert np.array_equal(apart(values, group, floor), one_by_one(values, group, floor), equal_nan=True)
