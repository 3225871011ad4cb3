"""Rolling-origin folds: what each candidate would have said at past instants, and how wrong it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.model import Floats
from planner.forecast.intervals import ORIGIN_EVERY_SECONDS
from planner.forecast.registry import CANDIDATES, Predictor
from planner.forecast.series import Series

_FOLD_DAYS = ((7.0, 3), (4.0, 2), (2.0, 1))
_FIRST_ORIGIN_SLOTS = 6


@dataclass(slots=True)
class Fits:
    """Fits already made, by candidate and slots of history. Hand one in again while a series only grows.

    A fit depends on nothing but the values before its end, so that reuse changes no result.
    """

    made: dict[tuple[str, int], Predictor] = field(default_factory=dict)
    made_count: int = 0

    def get(self, name: str, series: Series, slots: int, ahead: int) -> Predictor:
        """The candidate fitted on the first ``slots`` slots."""
        key = (name, slots)
        if key not in self.made:
            self.made[key] = CANDIDATES[name].fit(series.until(slots), ahead)
            self.made_count += 1
        return self.made[key]

    def forget_before(self, slots: int) -> None:
        """Drop fits that end before ``slots``."""
        self.made = {key: fit for key, fit in self.made.items() if key[1] >= slots}


@dataclass(frozen=True, slots=True)
class Folds:
    """Predictions at past origins. ``truth`` and each of ``predicted`` have shape (origins, steps).

    NaN where nothing is known: a missing slot, a slot after the present, or an origin at which the
    candidate had too little history.
    """

    origins: tuple[int, ...]
    truth: Floats
    predicted: dict[str, Floats]

    def wape(self, name: str, steps: int, among: Sequence[str]) -> float | None:
        """WAPE of the first ``steps`` leads over the cells that all of ``among`` predicted; None without any."""
        every = np.stack([self.predicted[other][:, :steps] for other in among])
        truth = self.truth[:, :steps]
        scored = ~np.isnan(truth) & ~np.isnan(every).any(axis=0)
        total = float(truth[scored].sum())
        if total <= 0:
            return None
        return float(np.abs(self.predicted[name][:, :steps] - truth)[scored].sum()) / total


def fold_days(days: float) -> int:
    """How many of the newest days are kept for folds: 3 of a week, 1 of two days, none of less."""
    return next((count for least, count in _FOLD_DAYS if days >= least), 0)


def run_folds(series: Series, names: Sequence[str], steps: int, fits: Fits) -> Folds:
    """Ask every candidate at every second hour of the fold days.

    A candidate is refitted at the start of each fold day, not at each origin: the fits stay few, and
    each judgement is on a fit up to a day old, which flatters nobody.
    """
    slots, season = series.values.size, series.season
    every = max(1, round(ORIGIN_EVERY_SECONDS / series.step))
    span = fold_days(series.days) * season or slots - _FIRST_ORIGIN_SLOTS
    origins = tuple(range(slots - every, max(slots - span, _FIRST_ORIGIN_SLOTS) - 1, -every))[::-1]
    truth = np.full((len(origins), steps), np.nan)
    for row, origin in enumerate(origins):
        known = series.values[origin : origin + steps]
        truth[row, : known.size] = known
    predicted = {
        name: np.stack([_ask(series, name, origin, steps, fits) for origin in origins])
        if origins
        else np.empty((0, steps))
        for name in names
    }
    return Folds(origins, truth, predicted)


def _ask(series: Series, name: str, origin: int, steps: int, fits: Fits) -> Floats:
    slots, season = series.values.size, series.season
    cut = slots - -(-(slots - origin) // season) * season
    fit_at = cut if name == "prophet" else origin
    if fit_at * series.step < CANDIDATES[name].minimum_days * season * series.step:
        return np.full(steps, np.nan)
    fit: Callable[[], Predictor] = lambda: fits.get(name, series, fit_at, season + steps)  # noqa: E731
    return fit().predict(series.until(origin), steps)
