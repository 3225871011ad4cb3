"""Robust z-score of single metrics: distance of a reading from the expected level, in its own scale.

The expected level is that of the time of day (``baseline``). The scale is that of five days, 1.2533 x the mean
absolute deviation, which is sigma for a normal distribution. A scale of one hour would turn a quiet hour's flicker
into a fault. A reading teaches at most four scales, so that an outlier counts little, as in a median, without stored
readings. Scales have floors of 2 % of the level and 5 % of the metric's own spread over a week. Units therefore do not
matter, and the first flicker of a constant metric is not the largest deviation. The result is the first residual of
the ensemble, and the input of ``robust_z``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics.baseline import SIGMA_OF_MEAN_DEVIATION, Baseline
from outrider.model import Floats

CLIP = 20.0  # scales; larger deviations are all the same
STEADY_TAU_SECONDS = 5 * 86400.0
SPREAD_TAU_SECONDS = 7 * 86400.0
FLOOR_OF_SPREAD, FLOOR_OF_LEVEL = 0.05, 0.02
FREE_READINGS = 50  # the first readings are not clipped when learned, as there is no scale yet
_TEACH_CLIP = 4.0
TINY = 1e-12


class Deviations:
    """The arithmetic over (entities, metrics); state is a dict of arrays whose first axis is entities."""

    def __init__(self, baseline: Baseline, floors: Floats) -> None:
        """``baseline`` gives the expected level; ``floors`` (metrics,) are minimum scales in the metrics' units."""
        self.baseline, self.floors = baseline, np.maximum(floors, TINY)

    def empty(self, count: int = 0) -> Arrays:
        """State of ``count`` unknown entities."""
        plane = (count, self.floors.size)
        zeros = {name: np.zeros(plane) for name in ("steady", "centre", "spread")}
        return self.baseline.empty(count) | zeros | {"floor": np.full(plane, TINY)}

    def measure(
        self, memory: Arrays, values: Floats, known: NDArray[np.bool_], at: float, seconds: float
    ) -> tuple[Floats, Floats]:
        """Deviations of one reading in scales, -20 to 20, and these scales. Changes ``memory``.

        Scales are in the metrics' units and from before the reading, so that an outlier does not widen its own scale.
        All arrays are (entities, metrics). Values that are not ``known`` must be finite; their results are undefined.
        The reading itself is learned later, by ``baseline.learn``.
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
        """The scale of deviations from a level, (entities, metrics)."""
        result = np.maximum(memory["steady"] * SIGMA_OF_MEAN_DEVIATION, FLOOR_OF_LEVEL * np.abs(level))
        return np.asarray(np.maximum(result, memory["floor"]))

    def _learn_spread(self, memory: Arrays, values: Floats, known: NDArray[np.bool_], seconds: float) -> None:
        slow = pace(memory, seconds, SPREAD_TAU_SECONDS)
        away = np.where(memory["updates"] > 0, np.abs(values - memory["centre"]), 0.0)
        memory["centre"] += np.where(known, slow * (values - memory["centre"]), 0.0)
        memory["spread"] += np.where(known, slow * (away - memory["spread"]), 0.0)
        memory["floor"] = np.maximum(FLOOR_OF_SPREAD * memory["spread"], self.floors)


def pace(memory: Arrays, seconds: float, tau_seconds: float) -> Floats:
    """The weight of a new reading: a plain mean first, exponential forgetting later."""
    result: Floats = np.maximum(1.0 / (memory["updates"] + 1.0), 1.0 - np.exp(-seconds / tau_seconds))
    return result
