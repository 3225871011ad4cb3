"""The robust z of single metrics: how far a reading lies from what is usual at this time, in scales of its own.

Usual is the level of this time of day (``baseline.py``); the scale is that of five days, 1.2533 x the mean absolute
deviation, which is sigma for a normal one. A scale of the hour alone would call a quiet hour's flicker a fault. A
reading teaches at most four scales, so that an outlier counts little, as it would in a median, and nothing has to be
kept to rank. Scales have floors of 2 % of the level and 5 % of the metric's own spread over a week: the unit does not
matter, and a constant metric's first flicker is not the largest deviation of all. What is measured here is the first
residual of the ensemble, whose voters take its mean over metrics, and what ``robustz.py`` judges metric by metric.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics.baseline import SIGMA_OF_MEAN_DEVIATION, Baseline
from outrider.model import Floats

CLIP = 20.0  # scales; beyond, all is the same oddity
STEADY_TAU_SECONDS = 5 * 86400.0
SPREAD_TAU_SECONDS = 7 * 86400.0
FLOOR_OF_SPREAD, FLOOR_OF_LEVEL = 0.05, 0.02
FREE_READINGS = 50  # the first ones are not clipped when they teach: there is no scale to clip by
_TEACH_CLIP = 4.0
TINY = 1e-12


class Deviations:
    """The arithmetic over (entities, metrics); the memory is a dict of arrays whose first axis is entities."""

    def __init__(self, baseline: Baseline, floors: Floats) -> None:
        """``baseline`` says what is usual; ``floors`` (metrics,) are least scales in the metrics' own units."""
        self.baseline, self.floors = baseline, np.maximum(floors, TINY)

    def empty(self, count: int = 0) -> Arrays:
        """Memory of ``count`` entities that nothing is known about."""
        plane = (count, self.floors.size)
        zeros = {name: np.zeros(plane) for name in ("steady", "centre", "spread")}
        return self.baseline.empty(count) | zeros | {"floor": np.full(plane, TINY)}

    def measure(
        self, memory: Arrays, values: Floats, known: NDArray[np.bool_], at: float, seconds: float
    ) -> tuple[Floats, Floats]:
        """Deviations of one instant's readings in scales, -20 to 20, and these scales; learns them. Changes ``memory``.

        The scales are those from before the reading, in the metrics' units: its own outlier does not widen them. All of
        shape (entities, metrics). Where a reading is not ``known`` its value must be finite, and what is found means
        nothing. The reading itself is not learnt yet: ``baseline.learn`` comes after.
        """
        self._learn_spread(memory, values, known, seconds)
        usual = self.baseline.usual(memory, at)
        off = np.where(known & (memory["updates"] > 0), values - usual.level, 0.0)
        scale = self.scale(memory, usual.level)
        limit = np.where(memory["updates"] < FREE_READINGS, np.inf, _TEACH_CLIP * scale)
        slow = pace(memory, seconds, STEADY_TAU_SECONDS)
        memory["steady"] += np.where(known, slow * (np.minimum(np.abs(off), limit) - memory["steady"]), 0.0)
        return np.clip(off / scale, -CLIP, CLIP), scale

    def scale(self, memory: Arrays, level: Floats) -> Floats:
        """What deviations from a level are counted in, (entities, metrics)."""
        found = np.maximum(memory["steady"] * SIGMA_OF_MEAN_DEVIATION, FLOOR_OF_LEVEL * np.abs(level))
        return np.asarray(np.maximum(found, memory["floor"]))

    def _learn_spread(self, memory: Arrays, values: Floats, known: NDArray[np.bool_], seconds: float) -> None:
        slow = pace(memory, seconds, SPREAD_TAU_SECONDS)
        away = np.where(memory["updates"] > 0, np.abs(values - memory["centre"]), 0.0)
        memory["centre"] += np.where(known, slow * (values - memory["centre"]), 0.0)
        memory["spread"] += np.where(known, slow * (away - memory["spread"]), 0.0)
        memory["floor"] = np.maximum(FLOOR_OF_SPREAD * memory["spread"], self.floors)


def pace(memory: Arrays, seconds: float, tau_seconds: float) -> Floats:
    """The share of a new reading: the plain mean at first, then exponential forgetting."""
    found: Floats = np.maximum(1.0 / (memory["updates"] + 1.0), 1.0 - np.exp(-seconds / tau_seconds))
    return found
