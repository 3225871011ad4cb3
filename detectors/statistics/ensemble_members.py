"""Ensemble members: opinions about one row of residuals, as tail probabilities, averaged.

Five members are means over the metrics, one per kind of residual: a machine fault moves many metrics a little, which
the largest single deviation does not show. Two evaluate combinations of all kinds except the shift, which lags and
would count an incident twice: an isolation forest, and the distance from the plane of the principal components. Each
opinion becomes minus log10 of the share of reference rows at or above it, extended by an exponential tail, at most 8.
The mean is the score. The reference is a reservoir of past rows without labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.statistics.forest import Forest
from detectors.statistics.reservoir import SEED
from detectors.statistics.residuals import KINDS, PROMPT_KINDS
from outrider.model import Floats

NAMES = (*KINDS, "forest", "plane")
TREES, SUBSAMPLE = 100, 256  # sizes from Liu, Ting, Zhou (2008)
PLANE_SHARE = 0.9  # share of the variance kept by the principal components
TAIL_FROM = 0.98
_LEAST_DECAY = 1e-4  # of opinions in scales; less is rounding
SUREST = 8.0  # minus log10 of a probability; no reference is larger


@dataclass(frozen=True, slots=True)
class Tail:
    """Rarity of a value: minus log10 of the share of the reference at or above it."""

    ranked: Floats
    from_: float
    decay: float  # of the exponential tail, per unit of the value

    @classmethod
    def of(cls, reference: Floats) -> Tail:
        """Builds the tail from unordered values."""
        ranked = np.sort(reference)
        start = float(np.quantile(ranked, TAIL_FROM))
        beyond = ranked[ranked > start] - start
        mean = float(np.median(beyond) / np.log(2.0)) if beyond.size else 0.0
        return cls(ranked, start, max(mean, _LEAST_DECAY))

    def surprise(self, values: Floats) -> Floats:
        """Minus log10 of the tail probability, 0 to 8, shape of ``values``."""
        share = 1.0 - np.searchsorted(self.ranked, values) / self.ranked.size
        inside = -np.log10(np.maximum(share, 10.0**-SUREST))
        outside = -np.log10(1.0 - TAIL_FROM) + (values - self.from_) / (self.decay * np.log(10.0))
        result: Floats = np.minimum(np.where(values > self.from_, outside, inside), SUREST)
        return result


class EnsembleMembers:
    """Members fitted to rows of residuals; a function of those rows alone."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        """``rows`` of shape (reference, 5 x metrics) without NaN."""
        # scikit-learn takes seconds to import; only a learning process needs it
        from sklearn.ensemble import IsolationForest  # noqa: PLC0415

        forest = IsolationForest(n_estimators=TREES, max_samples=min(SUBSAMPLE, rows.shape[0]), random_state=SEED)
        together = _prompt(rows)
        self._forest = Forest(forest.fit(together))
        self._middle = together.mean(axis=0, dtype=np.float64)
        _, sizes, axes = np.linalg.svd(together - self._middle, full_matrices=False)
        kept = np.cumsum(sizes**2) / max(float(np.sum(sizes**2)), 1e-12)
        self._axes = axes[: int(np.searchsorted(kept, PLANE_SHARE)) + 1]
        self._tails = [Tail.of(opinion) for opinion in self.opinions(rows).T]

    def opinions(self, rows: NDArray[np.float32]) -> Floats:
        """The opinion of each member in its own unit, shape (rows, members)."""
        breadth = np.abs(rows.reshape(rows.shape[0], len(KINDS), -1)).mean(axis=2)
        together = _prompt(rows)
        away = together.astype(np.float64) - self._middle  # in single precision the remainder is noise
        inside = away @ self._axes.T
        plane = np.sqrt(np.maximum((away**2).sum(axis=1) - (inside**2).sum(axis=1), 0.0))
        result: Floats = np.column_stack((breadth, self._forest.score(together), plane)).astype(np.float64)
        return result

    def surprises(self, rows: NDArray[np.float32]) -> Floats:
        """Minus log10 of each member's tail probability, shape (rows, members)."""
        opinions = self.opinions(rows)
        return np.column_stack([tail.surprise(opinions[:, place]) for place, tail in enumerate(self._tails)])


def _prompt(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The columns of the residuals that follow without lag."""
    return rows[:, : rows.shape[1] // len(KINDS) * len(PROMPT_KINDS)]
