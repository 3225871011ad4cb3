"""The score of a class of entities and its alarms: residuals, voters, a fading hold, a budget.

One frozen configuration for all data: everything that can be set stands as a constant in this file and in
``residuals.py``, ``voters.py`` and ``budget.py``. The voters are fitted again every week, and whenever twice
as many rows were seen, from a reservoir that spans two weeks; they are a function of that reservoir
and a fixed seed alone, so that a restart scores as before. Rows in alarm do not enter the reservoir.
The score fades by a 24th per reading: an incident that comes and goes is one incident.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from detectors import reservoir
from detectors.budget import Budget
from detectors.memory import Arrays
from detectors.residuals import Residuals
from detectors.voters import Voters
from outrider.model import Floats

FEWEST_ROWS = 128
REFIT_SECONDS = 7 * 86400.0
REFIT_GROWTH = 2.0
HOLD_READINGS = 24.0
LEAST = 1.0  # minus log10: what one reading in ten shows is no alarm, however quiet the past was
LEAST_OF_ONE_METRIC = 2.0  # minus log10: voters on one metric agree anyway, so one reading in a hundred is no news
_FADE = float(np.exp(-1.0 / HOLD_READINGS))


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of readings; all of shape (entities, times). A score without voters or reading is NaN."""

    scores: Floats
    limits: Floats
    alarms: NDArray[np.bool_]


class Ensemble:
    """The arithmetic; ``memory`` is of entities, ``pool`` of the class, both are dicts of arrays."""

    def __init__(self, metrics: int, alarms_per_entity_day: float) -> None:
        """For entities with the same ``metrics``, and their false-alarm budget."""
        self._residuals = Residuals(metrics)
        self._budget = Budget(alarms_per_entity_day, LEAST_OF_ONE_METRIC if metrics == 1 else LEAST)

    def empty(self, count: int = 0) -> Arrays:
        """Memory of ``count`` entities that nothing is known about."""
        return self._residuals.empty(count) | self._budget.empty(count) | {"held": np.zeros(count)}

    def empty_pool(self) -> Arrays:
        """Nothing learnt of the class."""
        return reservoir.empty(self._residuals.width) | {
            "fitted": np.zeros((0, self._residuals.width), dtype=np.float32),
            "seen_when_fitted": np.zeros(1),
            "fitted_at": np.array([-np.inf]),
        }

    def look(self, memory: Arrays, pool: Arrays, values: Floats, times: Floats, seconds: float) -> Said:
        """Scores and alarm points of new readings; changes ``memory`` and ``pool``.

        ``values`` (entities, times, metrics) are in order of time and ``seconds`` apart. The voters are those
        fitted before the first of these readings.
        """
        return self.judge(memory, pool, self.rows(memory, values, times, seconds), times, seconds)

    def rows(self, memory: Arrays, values: Floats, times: Floats, seconds: float) -> NDArray[np.float32]:
        """The first half of ``look``: residuals, (entities, times, residuals)."""
        count, length = values.shape[:2]
        found = np.empty((count, length, self._residuals.width), dtype=np.float32)
        for place in range(length):
            found[:, place] = self._residuals.step(memory, values[:, place], float(times[place]), seconds)
        return found

    def judge(self, memory: Arrays, pool: Arrays, rows: NDArray[np.float32], times: Floats, seconds: float) -> Said:
        """The second half of ``look``: what the voters say of residuals, and whether it is too much."""
        count, length = rows.shape[:2]
        self._refit(pool, float(times[0]) if length else 0.0)
        fresh = self._scores(pool, rows)
        scores, limits = np.full((count, length), np.nan), np.full((count, length), np.inf)
        alarms = np.zeros((count, length), dtype=bool)
        for place in range(length):
            known = ~np.isnan(fresh[:, place])
            held = np.maximum(np.nan_to_num(fresh[:, place]), memory["held"] * _FADE)
            memory["held"] = np.where(known, held, memory["held"])
            scores[:, place] = np.where(known, held, np.nan)
            alarms[:, place] = self._budget.judge(memory, scores[:, place], float(times[place]))
            limits[:, place] = memory["limit"]
        reservoir.keep(pool, rows[~alarms], count, seconds)
        return Said(scores, limits, alarms)

    def _scores(self, pool: Arrays, rows: NDArray[np.float32]) -> Floats:
        found = np.full(rows.shape[:2], np.nan)
        known = ~np.isnan(rows[:, :, 0])
        if pool["fitted"].shape[0] >= FEWEST_ROWS and known.any():
            voters = _voters(pool["fitted"].tobytes(), self._residuals.width)
            found[known] = voters.surprises(rows[known]).mean(axis=1)
        return found

    def _refit(self, pool: Arrays, now: float) -> None:
        enough = pool["reservoir"].shape[0] >= FEWEST_ROWS
        due = np.floor(now / REFIT_SECONDS) > np.floor(pool["fitted_at"][0] / REFIT_SECONDS)
        if enough and (due or pool["seen"][0] >= REFIT_GROWTH * max(1.0, pool["seen_when_fitted"][0])):
            pool["fitted"] = pool["reservoir"].copy()
            pool["fitted_at"] = np.array([now])
            pool["seen_when_fitted"] = pool["seen"].copy()


@lru_cache(maxsize=8)
def _voters(content: bytes, width: int) -> Voters:
    """A function of its arguments alone."""
    return Voters(np.frombuffer(content, dtype=np.float32).reshape(-1, width))
