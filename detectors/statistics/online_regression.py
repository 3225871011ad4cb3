"""Expected value given its drivers: a line that many entities learn together, online.

Every entity keeps sums of its readings. Entities of one class pool them, so that a new entity is judged by its peers.
The fit is a Bayesian linear regression on values relative to their means: units cancel out, and a prior covers the
time before data. Slopes are bounded to 0 (no effect) and 1 (proportional): a driver neither lowers the value nor is
its only cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from outrider.model import Floats, Window

FIRST_NOISE = 0.05  # of the mean; assumed before the first fit
TARGET = "y"


@dataclass(frozen=True, slots=True)
class DriverModel:
    """The drivers of a value and the prior of their effect.

    ``drivers`` are one letter each, which name the sums. ``prior_mean`` and ``prior_deviation`` are relative slopes: 1
    is proportional. ``least_noise`` is a share of the mean; ``least_share`` is the minimum expected share of it. A
    class with fewer than ``min_samples`` readings has no expectation.
    """

    drivers: str
    prior_mean: tuple[float, ...]
    prior_deviation: tuple[float, ...]
    least_noise: float
    least_share: float
    min_samples: float

    @property
    def sums(self) -> tuple[str, ...]:
        """Names of the sums: ``n``, each letter, and each product of two."""
        letters = (*self.drivers, TARGET)
        return ("n", *letters, *("".join(pair) for pair in combinations_with_replacement(letters, 2)))

    @property
    def defaults(self) -> dict[str, float]:
        """State of an entity without readings."""
        return {f"sum_{name}": 0.0 for name in self.sums}

    def learn(
        self,
        memory: Arrays,
        drivers: Sequence[Floats],
        target: Floats,
        where: NDArray[np.bool_],
        forget: Floats | float,
    ) -> None:
        """Adds the cells ``where``, all (entities, times), after multiplying the sums by ``forget``.

        A cell with an unknown part teaches nothing.
        """
        columns = dict(zip((*self.drivers, TARGET), (*drivers, target), strict=True))
        use = where & np.logical_and.reduce([np.isfinite(column) for column in columns.values()])
        some = use.any(axis=0)  # usually only one column is new
        use, columns = use[:, some], {name: np.where(use, item, 0.0)[:, some] for name, item in columns.items()}
        for name in self.sums:
            values = use.astype(np.float64) if name == "n" else columns[name[0]]
            total = np.einsum("ij,ij->i", values, columns[name[1]]) if len(name) > 1 else values.sum(axis=1)
            memory[f"sum_{name}"] = memory[f"sum_{name}"] * forget + total

    def fit(self, memory: Arrays, group: NDArray[np.intp]) -> RegressionLine:
        """The line of each entity from the sums of its group; entities of group -1 use their own."""
        groups = int(group.max(initial=-1)) + 1
        alone = group < 0
        place = np.where(alone, groups + np.cumsum(alone) - 1, group)
        size = groups + int(alone.sum())
        sums = {name: np.bincount(place, weights=memory[f"sum_{name}"], minlength=size) for name in self.sums}
        n, letters = np.asarray(sums["n"], dtype=np.float64), (*self.drivers, TARGET)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {name: sums[name] / n for name in letters}
        # A driver with a mean of zero has no effect and no relative size.
        over = {name: np.where(mean > 0, mean, np.inf) for name, mean in means.items()}
        apart = np.zeros((size, len(letters), len(letters)))
        for row, letter in enumerate(letters):
            for column, other in enumerate(letters[row:], start=row):
                there = n * ((over[letter] < np.inf) & (over[other] < np.inf))
                apart[:, row, column] = apart[:, column, row] = (
                    sums[letter + other] / (over[letter] * over[other]) - there
                )
        slopes, covariance, noise = self._posterior(apart, n)
        drivers, mean = np.stack([means[name] for name in self.drivers], axis=-1), means[TARGET]
        result = (n, drivers, mean, slopes, covariance, noise)
        return RegressionLine(self, *(np.asarray(item[place]) for item in result))

    def _posterior(self, apart: Floats, n: Floats) -> tuple[Floats, Floats, Floats]:
        """Slopes (groups, drivers), their covariance, and the scatter about the line as a share of the mean.

        ``apart`` are sums of products of relative distances from the mean, (groups, letters, letters).
        """
        count = len(self.drivers)
        keep = np.array(self.prior_deviation) ** -2.0
        within, across, own = apart[:, :count, :count], apart[:, :count, count], apart[:, count, count]
        noise: Floats = np.full(n.size, FIRST_NOISE)
        for _ in range(2):  # the second pass uses the noise of the first
            exact = noise[:, None] ** -2.0
            precision = within * exact[:, :, None] + np.diag(keep)
            covariance: Floats = np.asarray(np.linalg.inv(precision), dtype=np.float64)
            pull = across * exact + keep * np.array(self.prior_mean)
            slopes = _bounded(precision, pull, np.einsum("gij,gj->gi", covariance, pull))
            explained = 2.0 * (slopes * across).sum(axis=1) - np.einsum("gi,gij,gj->g", slopes, within, slopes)
            left = np.sqrt(np.maximum(own - explained, 0.0) / np.maximum(n - count - 1.0, 1.0))
            noise = np.asarray(np.maximum(left, self.least_noise), dtype=np.float64)
        return slopes, covariance, noise


def _bounded(precision: Floats, pull: Floats, slopes: Floats) -> Floats:
    """Most likely slopes (groups, drivers) within 0 to 1; ``slopes`` are those without bounds.

    The slope furthest out of bounds is fixed at its bound and the others are refitted, until all are inside. Clipping
    alone would keep the others at values that fit another slope.
    """
    result, held = slopes.copy(), np.zeros(slopes.shape, dtype=np.bool_)
    rows = np.flatnonzero(((result < 0.0) | (result > 1.0)).any(axis=1))
    while rows.size:
        beyond = np.where(held[rows], 0.0, np.abs(result[rows] - np.clip(result[rows], 0.0, 1.0)))
        furthest = np.argmax(beyond, axis=1)
        held[rows, furthest] = True
        result[rows, furthest] = np.clip(result[rows, furthest], 0.0, 1.0)
        still = held[rows]
        equations = np.where(still[:, :, None], np.eye(result.shape[1]), precision[rows])
        wanted = np.where(still, result[rows], pull[rows])
        result[rows] = np.linalg.solve(equations, wanted[:, :, None])[:, :, 0]
        result[rows] = np.where(still, np.clip(result[rows], 0.0, 1.0), result[rows])  # rounding errors
        outside = ~held[rows] & ((result[rows] < 0.0) | (result[rows] > 1.0))
        rows = rows[outside.any(axis=1)]
    return result


@dataclass(frozen=True, slots=True)
class RegressionLine:
    """A fitted line per entity. ``samples``, ``mean`` and ``noise`` (share of the mean) are (entities,).

    ``drivers`` are their means and ``slopes`` relative to them, both (entities, drivers); ``covariance`` is that of
    the slopes.
    """

    relation: DriverModel
    samples: Floats
    drivers: Floats
    mean: Floats
    slopes: Floats
    covariance: Floats
    noise: Floats

    @property
    def known(self) -> NDArray[np.bool_]:
        """True for entities with enough data for an expectation, (entities,)."""
        return np.asarray(self.samples >= self.relation.min_samples)

    def expected(self, drivers: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Expected value and its standard error as a share of it, (entities, times); NaN unknown."""
        more: list[Floats] = []
        for place, driver in enumerate(drivers):
            mean = self.drivers[:, place, None]
            with np.errstate(invalid="ignore", divide="ignore"):
                more.append(np.where(mean > 0, driver / mean - 1.0, 0.0))
        share = 1.0 + sum(self.slopes[:, place, None] * entry for place, entry in enumerate(more))
        spread = (self.noise**2 / np.maximum(self.samples, 1.0))[:, None] + np.zeros_like(more[0])
        for row, item in enumerate(more):
            for column, other in enumerate(more[row:], start=row):
                times = 1.0 if row == column else 2.0
                spread += times * self.covariance[:, row, column, None] * item * other
        share = np.maximum(share, self.relation.least_share)
        known = self.known[:, None]
        error = np.sqrt(np.maximum(spread, 0.0)) / share
        return np.where(known, self.mean[:, None] * share, np.nan), np.where(known, error, np.nan)


def trailing(window: Window, values: Floats, seconds: float) -> Floats:
    """Sums over the trailing ``seconds`` up to each column; NaN counts as zero."""
    sums = np.concatenate((np.zeros((values.shape[0], 1)), np.cumsum(np.nan_to_num(values), axis=1)), axis=1)
    ends = np.arange(window.times.size)
    begins = np.minimum(np.searchsorted(window.times, window.times - seconds + 1e-6, side="right"), ends)
    result: Floats = sums[:, ends + 1] - sums[:, begins]
    return result
