"""Five residuals per metric, each in its own scale: deviation, lasting, unrest, activity, shift.

*Deviation*: the reading minus the expected value at this time of day, in scales of five days (``deviation``).
*Lasting*: the deviation averaged over the last ten readings, which raises small persistent deviations. *Unrest*: the
step from the last reading relative to the usual step, over ten readings. *Activity*: twice the logarithm of unrest
over twenty readings, in either direction, so that a frozen metric counts too. *Shift*: the mean of the last twelve
readings against that of 144, in the spread of a week, regardless of the time of day.

All are clipped at 20, so that one metric never outweighs the others. A residual is computed before its reading is
learned. Misleading in the first two days, while the time of day is unknown, and for weekly patterns.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics.baseline import Baseline, Span
from detectors.statistics.deviation import (
    CLIP,
    FLOOR_OF_LEVEL,
    FREE_READINGS,
    STEADY_TAU_SECONDS,
    TINY,
    Deviations,
    pace,
)
from outrider.model import Floats

PROMPT_KINDS = ("deviation", "lasting", "unrest", "activity")
KINDS = (*PROMPT_KINDS, "shift")
LASTING_READINGS = 10
ACTIVITY_READINGS = 20
SHIFT_READINGS, SHIFT_FROM_READINGS = 12, 144
STEP_FLOOR_OF_SPREAD, STEP_FLOOR_OF_LEVEL = 0.02, 0.005
_STILL = 0.02  # share of the usual step; bounds the activity of a frozen metric


class Residuals:
    """The arithmetic over (entities, metrics); state is a dict of arrays whose first axis is entities."""

    def __init__(self, metrics: int, floors: Floats | None = None) -> None:
        """``metrics`` is the last axis of every reading; units may be unknown.

        ``floors`` (metrics,) are minimum scales in the metrics' own units, if known.
        """
        self.metrics = metrics
        self._baseline = Baseline.of_unknown_units(metrics)
        self._deviations = Deviations(self._baseline, np.full(metrics, TINY) if floors is None else floors)

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Sets the spans in which no time of day is expected or learned."""
        self._baseline.set_holidays(holidays)

    def set_zone(self, zone: tzinfo) -> None:
        """Sets the time zone of times of day."""
        self._baseline.set_zone(zone)

    @property
    def width(self) -> int:
        """Number of residuals per entity."""
        return len(KINDS) * self.metrics

    def empty(self, count: int = 0) -> Arrays:
        """State of ``count`` unknown entities."""
        plane = (count, self.metrics)
        zeros = ("usual_step", "lasting", "lately", "before_that")
        ones = ("unrest", "activity")
        return (
            self._deviations.empty(count)
            | {name: np.zeros(plane) for name in zeros}
            | {name: np.ones(plane) for name in ones}
            | {"before": np.full(plane, np.nan)}
        )

    def learn_season(self, memory: Arrays, values: Floats, at: float, seconds: float) -> None:
        """Learns the time of day only, from history that is coarser than readings. Changes ``memory``."""
        self._baseline.learn(memory, values, at, seconds)

    def step(self, memory: Arrays, values: Floats, at: float, seconds: float) -> NDArray[np.float32]:
        """Returns the residuals of one reading (entities, 5 x metrics), then learns it. Changes ``memory``.

        A missing reading has residuals 0 and teaches nothing. All residuals of an entity without any reading are NaN.
        """
        known = np.isfinite(values)
        clean = np.where(known, values, 0.0)
        deviation, _ = self._deviations.measure(memory, clean, known, at, seconds)
        share = 2.0 / (LASTING_READINGS + 1.0)
        memory["lasting"] += np.where(known, share * (deviation - memory["lasting"]), 0.0)
        shift = self._shift(memory, clean, known)
        self._learn_steps(memory, clean, known, seconds)
        activity = 2.0 * np.log((memory["activity"] + _STILL) / (1.0 + _STILL))
        self._baseline.learn(memory, np.where(known, values, np.nan), at, seconds)
        parts = (deviation, memory["lasting"], memory["unrest"], np.clip(activity, -CLIP, CLIP), shift)
        rows = np.concatenate([np.where(known, part, 0.0) for part in parts], axis=1).astype(np.float32)
        rows[~known.any(axis=1)] = np.nan
        return rows

    def _shift(self, memory: Arrays, values: Floats, known: NDArray[np.bool_]) -> Floats:
        """Mean of the newest readings against that of half a day, in the spread of a week, at most 20."""
        first = 1.0 / (memory["updates"] + 1.0)
        for name, readings in (("lately", SHIFT_READINGS), ("before_that", SHIFT_FROM_READINGS)):
            share = np.maximum(first, 2.0 / (readings + 1.0))
            memory[name] += np.where(known, share * (values - memory[name]), 0.0)
        scale = np.maximum(memory["spread"], FLOOR_OF_LEVEL * np.abs(memory["centre"]))
        scale = np.maximum(scale, self._deviations.floors)
        result: Floats = np.minimum(np.abs(memory["lately"] - memory["before_that"]) / scale, CLIP)
        return result

    def _learn_steps(self, memory: Arrays, values: Floats, known: NDArray[np.bool_], seconds: float) -> None:
        has_step = known & ~np.isnan(memory["before"])
        change = np.where(has_step, np.abs(values - memory["before"]), 0.0)
        floor = np.maximum(STEP_FLOOR_OF_SPREAD * memory["spread"], STEP_FLOOR_OF_LEVEL * np.abs(memory["centre"]))
        scale = np.maximum(np.maximum(memory["usual_step"], floor), self._deviations.floors)
        steps = np.minimum(change / scale, CLIP)
        for name, readings in (("unrest", LASTING_READINGS), ("activity", ACTIVITY_READINGS)):
            memory[name] += np.where(has_step, 2.0 / (readings + 1.0) * (steps - memory[name]), 0.0)
        limit = np.where(memory["updates"] < FREE_READINGS, np.inf, CLIP * scale)
        slow = pace(memory, seconds, STEADY_TAU_SECONDS)
        memory["usual_step"] += np.where(has_step, slow * (np.minimum(change, limit) - memory["usual_step"]), 0.0)
        memory["before"] = np.where(known, values, memory["before"])
