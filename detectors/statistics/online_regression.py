"""What a measured value should be, given what drives it: a line that many entities learn together, online.

Every entity keeps sums of its readings; entities of one class put theirs together, so that a new one is judged by
what its peers have taught. The line is fitted by Bayesian linear regression on values relative to their means, so
that units fall out and a prior can say what is plausible before anything is known. Slopes are held between none at
all and in proportion, 0 and 1: whatever drives the value does not lower it, and is not all there is to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from outrider.model import Floats, Window

FIRST_NOISE = 0.05  # of the mean: what is assumed until the first fit has left its own
TARGET = "y"


@dataclass(frozen=True, slots=True)
class Relation:
    """What drives a value, and what is assumed of it before anything is known.

    ``drivers`` are one letter each, which name the sums. ``prior_mean`` and ``prior_deviation`` are of the slopes,
    relative: 1 is in proportion. ``least_noise`` is of the mean, ``least_share`` the least that is ever expected
    of it. From fewer than ``min_samples`` readings of a class nothing is expected.
    """

    drivers: str
    prior_mean: tuple[float, ...]
    prior_deviation: tuple[float, ...]
    least_noise: float
    least_share: float
    min_samples: float

    @property
    def sums(self) -> tuple[str, ...]:
        """The names of what is summed: ``n``, each letter, and each product of two."""
        letters = (*self.drivers, TARGET)
        return ("n", *letters, *("".join(pair) for pair in combinations_with_replacement(letters, 2)))

    @property
    def defaults(self) -> dict[str, float]:
        """What is remembered of an entity that nothing was learnt of."""
        return {f"sum_{name}": 0.0 for name in self.sums}

    def learn(
        self,
        memory: Arrays,
        drivers: Sequence[Floats],
        target: Floats,
        where: NDArray[np.bool_],
        forget: Floats | float,
    ) -> None:
        """Take up the cells ``where``, all (entities, times), after multiplying what is known by ``forget``.

        A cell of which anything is not known teaches nothing.
        """
        columns = dict(zip((*self.drivers, TARGET), (*drivers, target), strict=True))
        use = where & np.logical_and.reduce([np.isfinite(column) for column in columns.values()])
        some = use.any(axis=0)  # mostly one column is new, and nothing else is worth multiplying
        use, columns = use[:, some], {name: np.where(use, one, 0.0)[:, some] for name, one in columns.items()}
        for name in self.sums:
            values = use.astype(np.float64) if name == "n" else columns[name[0]]
            total = np.einsum("ij,ij->i", values, columns[name[1]]) if len(name) > 1 else values.sum(axis=1)
            memory[f"sum_{name}"] = memory[f"sum_{name}"] * forget + total

    def fit(self, memory: Arrays, group: NDArray[np.intp]) -> Line:
        """The line of each entity from the sums of its group; entities of group -1 have their own."""
        groups = int(group.max(initial=-1)) + 1
        alone = group < 0
        place = np.where(alone, groups + np.cumsum(alone) - 1, group)
        size = groups + int(alone.sum())
        sums = {name: np.bincount(place, weights=memory[f"sum_{name}"], minlength=size) for name in self.sums}
        n, letters = np.asarray(sums["n"], dtype=np.float64), (*self.drivers, TARGET)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {name: sums[name] / n for name in letters}
        # What is zero on average drives nothing, and has no relative size.
        over = {name: np.where(mean > 0, mean, np.inf) for name, mean in means.items()}
        apart = np.zeros((size, len(letters), len(letters)))
        for row, one in enumerate(letters):
            for column, other in enumerate(letters[row:], start=row):
                there = n * ((over[one] < np.inf) & (over[other] < np.inf))
                apart[:, row, column] = apart[:, column, row] = sums[one + other] / (over[one] * over[other]) - there
        slopes, covariance, noise = self._posterior(apart, n)
        drivers, mean = np.stack([means[name] for name in self.drivers], axis=-1), means[TARGET]
        found = (n, drivers, mean, slopes, covariance, noise)
        return Line(self, *(np.asarray(one[place]) for one in found))

    def _posterior(self, apart: Floats, n: Floats) -> tuple[Floats, Floats, Floats]:
        """Slopes (groups, drivers), their covariance, and the scatter about the line as a share of the mean.

        ``apart`` are sums of products of relative distances from the mean, (groups, letters, letters).
        """
        count = len(self.drivers)
        keep = np.array(self.prior_deviation) ** -2.0
        within, across, own = apart[:, :count, :count], apart[:, :count, count], apart[:, count, count]
        noise: Floats = np.full(n.size, FIRST_NOISE)
        for _ in range(2):  # the second time with the noise that the first one left
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
    """The likeliest slopes (groups, drivers) between 0 and 1; ``slopes`` are the likeliest without bounds.

    The slope furthest beyond a bound is held there and the others are fitted anew with it, until all are inside:
    cutting it off alone would leave the others as they were beside a slope that is not there.
    """
    found, held = slopes.copy(), np.zeros(slopes.shape, dtype=np.bool_)
    rows = np.flatnonzero(((found < 0.0) | (found > 1.0)).any(axis=1))
    while rows.size:
        beyond = np.where(held[rows], 0.0, np.abs(found[rows] - np.clip(found[rows], 0.0, 1.0)))
        furthest = np.argmax(beyond, axis=1)
        held[rows, furthest] = True
        found[rows, furthest] = np.clip(found[rows, furthest], 0.0, 1.0)
        still = held[rows]
        equations = np.where(still[:, :, None], np.eye(found.shape[1]), precision[rows])
        wanted = np.where(still, found[rows], pull[rows])
        found[rows] = np.linalg.solve(equations, wanted[:, :, None])[:, :, 0]
        found[rows] = np.where(still, np.clip(found[rows], 0.0, 1.0), found[rows])  # what rounding adds
        outside = ~held[rows] & ((found[rows] < 0.0) | (found[rows] > 1.0))
        rows = rows[outside.any(axis=1)]
    return found


@dataclass(frozen=True, slots=True)
class Line:
    """A fitted relation by entity. ``samples``, ``mean`` and ``noise`` (of the mean) are of shape (entities,).

    ``drivers`` are their means and ``slopes`` relative to them, both (entities, drivers); ``covariance`` is that of
    the slopes.
    """

    relation: Relation
    samples: Floats
    drivers: Floats
    mean: Floats
    slopes: Floats
    covariance: Floats
    noise: Floats

    @property
    def known(self) -> NDArray[np.bool_]:
        """Where enough was learnt to expect anything, (entities,)."""
        return np.asarray(self.samples >= self.relation.min_samples)

    def expected(self, drivers: Sequence[Floats]) -> tuple[Floats, Floats]:
        """What the value should be and the standard error as a share of it, (entities, times); NaN unknown."""
        more: list[Floats] = []
        for place, driver in enumerate(drivers):
            mean = self.drivers[:, place, None]
            with np.errstate(invalid="ignore", divide="ignore"):
                more.append(np.where(mean > 0, driver / mean - 1.0, 0.0))
        share = 1.0 + sum(self.slopes[:, place, None] * one for place, one in enumerate(more))
        spread = (self.noise**2 / np.maximum(self.samples, 1.0))[:, None] + np.zeros_like(more[0])
        for row, one in enumerate(more):
            for column, other in enumerate(more[row:], start=row):
                times = 1.0 if row == column else 2.0
                spread += times * self.covariance[:, row, column, None] * one * other
        share = np.maximum(share, self.relation.least_share)
        known = self.known[:, None]
        error = np.sqrt(np.maximum(spread, 0.0)) / share
        return np.where(known, self.mean[:, None] * share, np.nan), np.where(known, error, np.nan)


def trailing(window: Window, values: Floats, seconds: float) -> Floats:
    """Sums over the trailing ``seconds`` that end at each column, NaN counting as nothing."""
    sums = np.concatenate((np.zeros((values.shape[0], 1)), np.cumsum(np.nan_to_num(values), axis=1)), axis=1)
    ends = np.arange(window.times.size)
    begins = np.minimum(np.searchsorted(window.times, window.times - seconds + 1e-6, side="right"), ends)
    found: Floats = sums[:, ends + 1] - sums[:, begins]
    return found
