"""The score of a class of entities and its alarms: residuals, voters, a fading hold, a budget.

One frozen configuration for all data: everything that can be set stands as a constant in this file and in
``residuals.py``, ``voters.py`` and ``budget.py``. The voters are fitted again every week, and whenever twice
as many rows were seen, from a reservoir that spans two weeks; they are a function of that reservoir
and a fixed seed alone, so that a restart scores as before. Rows in alarm do not enter the reservoir.
The score fades by a 24th per reading: an incident that comes and goes is one incident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics import reservoir
from detectors.statistics.alarm_threshold import Budget
from detectors.statistics.baseline import RECENT, Span
from detectors.statistics.ensemble_members import EnsembleMembers
from detectors.statistics.residuals import Residuals
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
    """What is said of readings; all of shape (entities, times). A score without voters or reading is NaN.

    ``fresh`` are the scores of the readings themselves, ``scores`` what is held of those before where that is more.
    """

    scores: Floats
    limits: Floats
    alarms: NDArray[np.bool_]
    fresh: Floats


class Ensemble:
    """The arithmetic; ``memory`` is of entities, ``pool`` of the class, both are dicts of arrays."""

    def __init__(
        self, metrics: int, alarms_per_entity_day: float, floors: Floats | None = None, ripe_after: int = 0
    ) -> None:
        """For entities with the same ``metrics``, and their false-alarm budget.

        ``floors`` (metrics,) are least scales of metrics whose unit is known. An entity with fewer readings than
        ``ripe_after`` has no score and teaches the voters nothing.
        """
        self._residuals = Residuals(metrics, floors)
        self._ripe_after = ripe_after
        self._budget = Budget(alarms_per_entity_day, LEAST_OF_ONE_METRIC if metrics == 1 else LEAST)

    @property
    def width(self) -> int:
        """Residuals of an entity."""
        return self._residuals.width

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Spans in which no time of day is expected or learnt."""
        self._residuals.set_holidays(holidays)

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

    def learn_season(self, memory: Arrays, values: Floats, times: Floats, seconds: float) -> None:
        """Learn the time of day alone from history (entities, times, metrics) that is coarser than readings are."""
        for place in range(values.shape[1]):
            self._residuals.learn_season(memory, values[:, place], float(times[place]), seconds)

    def begin_anew(self, memory: Arrays) -> None:
        """Forget all but the time of day: scales and steps of another spacing are none of ours."""
        count = memory["held"].shape[0]
        memory.update({name: array for name, array in self.empty(count).items() if name in RECENT})

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
            found[memory["updates"].max(axis=1, initial=0) < self._ripe_after, place] = np.nan
        return found

    def judge(
        self,
        memory: Arrays,
        pool: Arrays,
        rows: NDArray[np.float32],
        times: Floats,
        seconds: float,
        excused: NDArray[np.bool_] | None = None,
    ) -> Said:
        """The second half of ``look``: what the voters say of residuals, and whether it is too much.

        Where ``excused`` (entities, times) is True the reading is known to be normal, whatever they say.
        """
        count, length = rows.shape[:2]
        self._refit(pool, float(times[0]) if length else 0.0)
        fresh = self._scores(pool, rows)
        if excused is not None:
            fresh = np.where(excused & ~np.isnan(fresh), 0.0, fresh)
        scores, limits = np.full((count, length), np.nan), np.full((count, length), np.inf)
        alarms = np.zeros((count, length), dtype=bool)
        for place in range(length):
            known = ~np.isnan(fresh[:, place])
            held = np.maximum(np.nan_to_num(fresh[:, place]), memory["held"] * _FADE)
            memory["held"] = np.where(known, held, memory["held"])
            scores[:, place] = np.where(known, held, np.nan)
            alarms[:, place] = self._budget.judge(memory, scores[:, place], float(times[place]), seconds)
            limits[:, place] = memory["limit"]
        reservoir.keep(pool, rows[~alarms], count, seconds)
        return Said(scores, limits, alarms, fresh)

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
def _voters(content: bytes, width: int) -> EnsembleMembers:
    """A function of its arguments alone."""
    return EnsembleMembers(np.frombuffer(content, dtype=np.float32).reshape(-1, width))
