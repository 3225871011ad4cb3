"""Keeps the alarms of a class of entities close to their budget, while they are counted.

The limit of a detector is multiplied by a factor that rises with each alarm and falls with each entity-day
without one (stochastic approximation after Robbins and Monro, 1951: it rests where alarms come as often as
the budget says). The step is a share of a day's budget, so that one alarm moves a small fleet no further than
a large one. The factor is bounded: a quiet fleet does not make a detector cry at noise, nor a bad week deaf.
Alarms are counted without labels: a true fault counts, too, and budgets are chosen with that in mind.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from outrider.model import AlarmRate

LOWEST, HIGHEST = 0.8, 3.0  # of the detector's own limit
GAIN = 0.5  # a day with twice its budget raises the limit by this much (in e-folds) at most
FORGET_SECONDS = 7 * 86400.0
LEAST_ENTITY_DAYS = 1.0  # before there is any rate to tell
_DAY = 86400.0
_COUNTS = ("alarms", "entity_days")


class AlarmCount:
    """How often the entities of a class began to deviate. ``memory`` holds a flag an entity, ``pool`` the counts."""

    def __init__(self, alarms_per_entity_day: float) -> None:
        """``alarms_per_entity_day`` is the budget, above 0."""
        self.budget = alarms_per_entity_day

    @staticmethod
    def of_entities(count: int) -> Arrays:
        """Nobody alarms."""
        return {"alarmed": np.zeros(count, dtype=np.bool_)}

    @classmethod
    def of_class(cls) -> Arrays:
        """Nothing counted."""
        return {name: np.zeros(1) for name in _COUNTS}

    def count(
        self, memory: Arrays, pool: Arrays, alarmed: NDArray[np.bool_], judged: NDArray[np.bool_], seconds: float
    ) -> float:
        """Take in one instant of ``seconds``; both arrays are of shape (entities,). Returns how many began.

        An entity that is not judged neither alarms nor lets time pass. Changes memory and pool.
        """
        begun = float((alarmed & judged & ~memory["alarmed"]).sum())
        memory["alarmed"] = np.where(judged, alarmed, memory["alarmed"])
        kept = np.exp(-seconds / FORGET_SECONDS)
        pool["alarms"] = pool["alarms"] * kept + begun
        pool["entity_days"] = pool["entity_days"] * kept + float(judged.sum()) * seconds / _DAY
        return begun

    def factor(self, _pool: Arrays) -> float:
        """What the detector's own limit is multiplied by; a limit that follows the budget by itself is left alone."""
        return 1.0

    def rate(self, pool: Arrays) -> AlarmRate:
        """Budget and what was counted."""
        days = float(pool["entity_days"][0])
        realised = float(pool["alarms"][0]) / days if days >= LEAST_ENTITY_DAYS else None
        return AlarmRate(self.budget, realised, self.factor(pool), days)


class Calibrator(AlarmCount):
    """Counts, and moves the limit by what it counts."""

    @classmethod
    def of_class(cls) -> Arrays:
        """Nothing counted, the limit as the detector has it."""
        return {"shift": np.zeros(1), **super().of_class()}

    def count(
        self, memory: Arrays, pool: Arrays, alarmed: NDArray[np.bool_], judged: NDArray[np.bool_], seconds: float
    ) -> float:
        """The same, and a step of the limit."""
        begun = super().count(memory, pool, alarmed, judged, seconds)
        count = float(judged.sum())
        step = GAIN * (begun - self.budget * count * seconds / _DAY) / (self.budget * count + 1.0)
        pool["shift"] = np.clip(pool["shift"] + step, np.log(LOWEST), np.log(HIGHEST))
        return begun

    def factor(self, pool: Arrays) -> float:
        """What the detector's own limit is multiplied by."""
        return float(np.exp(pool["shift"][0]))
