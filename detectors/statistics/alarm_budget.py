"""Keeps the alarms of a class of entities near their budget, from counts of past alarms.

The threshold of a detector is multiplied by a factor that rises with each alarm and falls with each entity-day without
one. This is stochastic approximation (Robbins and Monro, 1951): it settles when alarms match the budget. The step is a
share of a day's budget, so that one alarm moves a small fleet no more than a large one. The factor is bounded: a quiet
fleet does not cause alarms on noise, and a bad week does not mute the detector. Alarms are counted without labels,
true faults included; choose budgets accordingly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from outrider.model import AlarmRate

LOWEST, HIGHEST = 0.8, 3.0  # bounds of the factor
GAIN = 0.5  # maximum rise (in e-folds) of the threshold on a day with twice its budget
FORGET_SECONDS = 7 * 86400.0
LEAST_ENTITY_DAYS = 1.0  # minimum exposure for a rate
_DAY = 86400.0
_COUNTS = ("alarms", "entity_days")


class AlarmCount:
    """Counts how often entities of a class start to deviate. ``memory`` is per entity, ``pool`` per class."""

    def __init__(self, alarms_per_entity_day: float) -> None:
        """``alarms_per_entity_day`` is the budget, above 0."""
        self.budget = alarms_per_entity_day

    @staticmethod
    def of_entities(count: int) -> Arrays:
        """State in which no entity is in alarm."""
        return {"alarmed": np.zeros(count, dtype=np.bool_)}

    @classmethod
    def of_class(cls) -> Arrays:
        """State without counts."""
        return {name: np.zeros(1) for name in _COUNTS}

    def count(
        self, memory: Arrays, pool: Arrays, alarmed: NDArray[np.bool_], judged: NDArray[np.bool_], seconds: float
    ) -> float:
        """Adds one reading of ``seconds``; arrays are (entities,). Returns the number of new alarms.

        An entity that is not judged adds neither alarms nor exposure. Changes ``memory`` and ``pool``.
        """
        begun = float((alarmed & judged & ~memory["alarmed"]).sum())
        memory["alarmed"] = np.where(judged, alarmed, memory["alarmed"])
        kept = np.exp(-seconds / FORGET_SECONDS)
        pool["alarms"] = pool["alarms"] * kept + begun
        pool["entity_days"] = pool["entity_days"] * kept + float(judged.sum()) * seconds / _DAY
        return begun

    def factor(self, _pool: Arrays) -> float:
        """Multiplier of the threshold; 1 here, since the threshold follows the budget by itself."""
        return 1.0

    def rate(self, pool: Arrays) -> AlarmRate:
        """The budget and the observed rate."""
        days = float(pool["entity_days"][0])
        realised = float(pool["alarms"][0]) / days if days >= LEAST_ENTITY_DAYS else None
        return AlarmRate(self.budget, realised, self.factor(pool), days)


class Calibrator(AlarmCount):
    """Counts alarms and adjusts the threshold."""

    @classmethod
    def of_class(cls) -> Arrays:
        """State without counts and with a factor of 1."""
        return {"shift": np.zeros(1), **super().of_class()}

    def count(
        self, memory: Arrays, pool: Arrays, alarmed: NDArray[np.bool_], judged: NDArray[np.bool_], seconds: float
    ) -> float:
        """As ``AlarmCount.count``, and moves the threshold by one step."""
        begun = super().count(memory, pool, alarmed, judged, seconds)
        count = float(judged.sum())
        step = GAIN * (begun - self.budget * count * seconds / _DAY) / (self.budget * count + 1.0)
        pool["shift"] = np.clip(pool["shift"] + step, np.log(LOWEST), np.log(HIGHEST))
        return begun

    def factor(self, pool: Arrays) -> float:
        """Multiplier of the detector's own threshold."""
        return float(np.exp(pool["shift"][0]))
