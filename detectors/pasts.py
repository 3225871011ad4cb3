"""What statistical detectors have in common: they need a past, keep to a budget, and say how far they are."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from detectors.memory import Arrays
from outrider.model import AlarmRate, DetectorState

LEARNT = "learnt"
LONGEST_STEP_SECONDS = 600.0  # a value after a gap speaks for no more than this
ALARMS_PER_ENTITY_DAY = 0.25


@runtime_checkable
class NeedsPast(Protocol):
    """A detector that alerts only when it has learnt enough of its class of entities."""

    def learnt(self, state: DetectorState) -> timedelta:
        """How much past of the class was learnt, gaps left out."""
        ...

    def alarm_rate(self, state: DetectorState) -> AlarmRate:
        """Alarms per entity-day against the budget."""
        ...

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replace the default budget; before the first cycle."""
        ...


def fresh() -> Arrays:
    """Nothing learnt of the class."""
    return {LEARNT: np.zeros(1)}


def lived(pool: Arrays, known: NDArray[np.bool_], seconds: float) -> None:
    """Some entity had a value at an instant that stands for ``seconds``. Changes ``pool``."""
    if known.any():
        pool[LEARNT] = pool[LEARNT] + min(seconds, LONGEST_STEP_SECONDS)


def learnt(state: DetectorState) -> timedelta:
    """As ``NeedsPast.learnt``, read from the state."""
    held = state.arrays.get(LEARNT)
    seconds = float(held[0]) if held is not None and held.size == 1 else 0.0
    return timedelta(seconds=seconds if np.isfinite(seconds) else 0.0)


def scalars(state: DetectorState, defaults: Arrays) -> Arrays:
    """Arrays of the class as they were remembered, their defaults where they do not fit."""
    found = {}
    for name, default in defaults.items():
        held = state.arrays.get(name)
        fits = held is not None and held.shape == default.shape and not bool(np.isnan(held).any())
        found[name] = held.copy() if fits and held is not None else default.copy()
    return found
