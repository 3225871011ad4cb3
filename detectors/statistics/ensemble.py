"""Anomaly scores and alarms of a class of entities: residuals, ensemble members, decaying hold, alarm threshold.

One frozen configuration for all data: every setting is a constant in this file or in ``residuals``,
``ensemble_members`` and ``alarm_threshold``. The members are refitted every week, and whenever twice as many rows were
seen, from a reservoir that spans two weeks. They depend on that reservoir and a fixed seed only, so a restart scores
as before. Rows in alarm do not enter the reservoir. The score decays by a 24th per reading, so that an intermittent
incident counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics import reservoir
from detectors.statistics.alarm_threshold import AlarmThreshold
from detectors.statistics.baseline import RECENT, Span
from detectors.statistics.ensemble_members import EnsembleMembers
from detectors.statistics.residuals import Residuals
from outrider.model import Floats

FEWEST_ROWS = 128
REFIT_SECONDS = 7 * 86400.0
REFIT_GROWTH = 2.0
HOLD_READINGS = 24.0
LEAST = 1.0  # minus log10; one reading in ten is never an alarm
LEAST_OF_ONE_METRIC = 2.0  # minus log10; members on one metric agree anyway, so one reading in 100 is never an alarm
_FADE = float(np.exp(-1.0 / HOLD_READINGS))


@dataclass(frozen=True, slots=True)
class EnsembleScore:
    """Result for a set of readings; all of shape (entities, times). NaN without members or reading.

    ``fresh`` are the scores of the readings themselves. ``scores`` include the decaying earlier score if that is
    higher.
    """

    scores: Floats
    limits: Floats
    alarms: NDArray[np.bool_]
    fresh: Floats


class Ensemble:
    """The arithmetic; ``memory`` is per entity, ``pool`` per class, both dicts of arrays."""

    def __init__(
        self, metrics: int, alarms_per_entity_day: float, floors: Floats | None = None, ripe_after: int = 0
    ) -> None:
        """For entities with the same ``metrics``, and their false-alarm budget.

        ``floors`` (metrics,) are minimum scales of metrics with a known unit. An entity with fewer readings than
        ``ripe_after`` has no score and teaches the members nothing.
        """
        self._residuals = Residuals(metrics, floors)
        self._ripe_after = ripe_after
        self._budget = AlarmThreshold(alarms_per_entity_day, LEAST_OF_ONE_METRIC if metrics == 1 else LEAST)

    @property
    def width(self) -> int:
        """Number of residuals per entity."""
        return self._residuals.width

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Sets the spans in which no time of day is expected or learned."""
        self._residuals.set_holidays(holidays)

    def set_zone(self, zone: tzinfo) -> None:
        """Sets the time zone of times of day."""
        self._residuals.set_zone(zone)

    def empty(self, count: int = 0) -> Arrays:
        """State of ``count`` unknown entities."""
        return self._residuals.empty(count) | self._budget.empty(count) | {"held": np.zeros(count)}

    def empty_pool(self) -> Arrays:
        """State of a class without learned history."""
        return reservoir.empty(self._residuals.width) | {
            "fitted": np.zeros((0, self._residuals.width), dtype=np.float32),
            "seen_when_fitted": np.zeros(1),
            "fitted_at": np.array([-np.inf]),
        }

    def learn_season(self, memory: Arrays, values: Floats, times: Floats, seconds: float) -> None:
        """Learns the time of day only, from history (entities, times, metrics) coarser than readings."""
        for place in range(values.shape[1]):
            self._residuals.learn_season(memory, values[:, place], float(times[place]), seconds)

    def begin_anew(self, memory: Arrays) -> None:
        """Drops all but the time of day: scales and steps of another spacing do not apply."""
        count = memory["held"].shape[0]
        memory.update({name: array for name, array in self.empty(count).items() if name in RECENT})

    def evaluate(self, memory: Arrays, pool: Arrays, values: Floats, times: Floats, seconds: float) -> EnsembleScore:
        """Scores and alarms of new readings; changes ``memory`` and ``pool``.

        ``values`` (entities, times, metrics) are in time order and ``seconds`` apart. The members are those fitted
        before the first of these readings.
        """
        return self.judge(memory, pool, self.rows(memory, values, times, seconds), times, seconds)

    def rows(self, memory: Arrays, values: Floats, times: Floats, seconds: float) -> NDArray[np.float32]:
        """First half of ``Ensemble.evaluate``: residuals, (entities, times, residuals)."""
        count, length = values.shape[:2]
        result = np.empty((count, length, self._residuals.width), dtype=np.float32)
        for place in range(length):
            result[:, place] = self._residuals.step(memory, values[:, place], float(times[place]), seconds)
            result[memory["updates"].max(axis=1, initial=0) < self._ripe_after, place] = np.nan
        return result

    def judge(
        self,
        memory: Arrays,
        pool: Arrays,
        rows: NDArray[np.float32],
        times: Floats,
        seconds: float,
        excused: NDArray[np.bool_] | None = None,
    ) -> EnsembleScore:
        """Second half of ``Ensemble.evaluate``: scores of residuals and the alarm decision.

        ``excused`` (entities, times) marks readings that are known to be normal.
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
        return EnsembleScore(scores, limits, alarms, fresh)

    def _scores(self, pool: Arrays, rows: NDArray[np.float32]) -> Floats:
        result = np.full(rows.shape[:2], np.nan)
        known = ~np.isnan(rows[:, :, 0])
        if pool["fitted"].shape[0] >= FEWEST_ROWS and known.any():
            voters = _voters(pool["fitted"].tobytes(), self._residuals.width)
            result[known] = voters.surprises(rows[known]).mean(axis=1)
        return result

    def _refit(self, pool: Arrays, now: float) -> None:
        enough = pool["reservoir"].shape[0] >= FEWEST_ROWS
        due = np.floor(now / REFIT_SECONDS) > np.floor(pool["fitted_at"][0] / REFIT_SECONDS)
        if enough and (due or pool["seen"][0] >= REFIT_GROWTH * max(1.0, pool["seen_when_fitted"][0])):
            pool["fitted"] = pool["reservoir"].copy()
            pool["fitted_at"] = np.array([now])
            pool["seen_when_fitted"] = pool["seen"].copy()


@lru_cache(maxsize=8)
def _voters(content: bytes, width: int) -> EnsembleMembers:
    """The members, a function of the arguments alone."""
    return EnsembleMembers(np.frombuffer(content, dtype=np.float32).reshape(-1, width))
