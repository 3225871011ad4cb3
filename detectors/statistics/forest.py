"""Scores rows with all trees of an isolation forest at once.

scikit-learn walks tree by tree, at a tenth of a millisecond per tree regardless of the number of rows. A cycle has few
rows. The scores are bit-identical.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats

if TYPE_CHECKING:
    from sklearn.ensemble import IsolationForest

FEW_ROWS = 500  # above this the loop in C is faster


class Forest:
    """A fitted forest with its nodes in flat arrays; a leaf is its own child."""

    def __init__(self, forest: IsolationForest) -> None:
        """``forest`` must be fitted on all its features."""
        self._forest = forest
        trees = [estimator.tree_ for estimator in forest.estimators_]
        sizes = np.array([tree.node_count for tree in trees])
        self._roots = np.cumsum(sizes) - sizes
        own = np.arange(int(sizes.sum()))
        first = np.repeat(self._roots, sizes)
        left = np.concatenate([tree.children_left for tree in trees])
        right = np.concatenate([tree.children_right for tree in trees])
        leaf = left < 0
        self._left, self._right = np.where(leaf, own, left + first), np.where(leaf, own, right + first)
        self._feature = np.where(leaf, 0, np.concatenate([tree.feature for tree in trees]))
        self._threshold = np.concatenate([tree.threshold for tree in trees])
        self._deepest = max(tree.max_depth for tree in trees)
        rest = usual_path(np.concatenate([tree.n_node_samples for tree in trees]).astype(np.float64))
        self._length = self._depths() + 1.0 + rest - 1.0
        self._whole = len(trees) * float(usual_path(np.array([float(forest.max_samples_)]))[0])

    def score(self, rows: NDArray[np.float32]) -> Floats:
        """Anomaly score of each row, (rows,) within 0 to 1: minus scikit-learn's ``score_samples``."""
        if rows.shape[0] > FEW_ROWS:
            return np.asarray(-self._forest.score_samples(rows), dtype=np.float64)
        places = np.arange(rows.shape[0])
        node = np.repeat(self._roots[:, None], rows.shape[0], axis=1)  # (trees, rows)
        for _ in range(self._deepest):
            below = rows[places, self._feature[node]] <= self._threshold[node]
            node = np.where(below, self._left[node], self._right[node])
        depths = np.zeros(rows.shape[0])
        for lengths in self._length[node]:  # one by one, in the order of scikit-learn
            depths += lengths
        return np.asarray(2 ** (-depths / self._whole), dtype=np.float64)

    def _depths(self) -> Floats:
        """Steps from the root to each node."""
        result = np.zeros(self._left.size)
        level = self._roots
        for depth in range(1, self._deepest + 1):
            inner = level[self._left[level] != level]
            level = np.concatenate((self._left[inner], self._right[inner]))
            result[level] = depth
        return result


def usual_path(rows: Floats) -> Floats:
    """Mean path length of an unsuccessful search in a tree of ``rows`` (Liu, Ting, Zhou 2008)."""
    many = np.maximum(rows, 3.0)
    result = 2.0 * (np.log(many - 1.0) + np.euler_gamma) - 2.0 * (many - 1.0) / many
    return np.where(rows <= 1, 0.0, np.where(rows == 2, 1.0, result))
