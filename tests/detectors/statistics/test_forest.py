from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import IsolationForest

from detectors.statistics.forest import FEW_ROWS, Forest, usual_path


@pytest.mark.parametrize(("rows", "width", "trained"), [(1, 6, 300), (60, 18, 900), (FEW_ROWS + 1, 4, 100)])
def test_scores_equal_those_of_scikit_learn(rows: int, width: int, trained: int) -> None:
    random = np.random.default_rng(rows)
    known = np.round(random.normal(size=(trained, width)), 1).astype(np.float32)  # equal values make trees uneven
    forest = IsolationForest(n_estimators=30, max_samples=min(256, trained), random_state=1).fit(known)
    queries = (2 * random.normal(size=(rows, width))).astype(np.float32)
    assert np.array_equal(Forest(forest).score(queries), -forest.score_samples(queries))


def test_paths_of_tiny_trees() -> None:
    assert usual_path(np.array([0.0, 1.0, 2.0])).tolist() == [0.0, 0.0, 1.0]
    assert usual_path(np.array([256.0]))[0] == pytest.approx(10.24, abs=0.01)
