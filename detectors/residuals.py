"""Four residuals of every metric, in scales of their own: off its season, off for a while, restless, and changed.

*Deviation*: the reading less what is usual at this time of day (``baseline.py``), in scales of five days:
a scale of the hour alone would call a quiet hour's flicker a fault. *Lasting*: the deviation averaged over
the last ten readings, which raises what is small but stays. *Unrest*: the step from the last reading against
the usual step, over ten readings. *Activity*: twice the logarithm of unrest over twenty readings, in either
direction, so that a metric that stands still counts, too. All are clipped at twenty, so that one metric alone
never outweighs the others. Scales have floors of 2 % of the level and 5 % of the metric's own spread over a
week: the unit does not matter, and a constant metric's first flicker is not the largest deviation of all.
A residual is formed before its reading is learnt.
Misleads in the first two days, while the time of day is unknown, and where the week matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.baseline import SIGMA_OF_MEAN_DEVIATION, Baseline, Span
from detectors.memory import Arrays
from outrider.model import Floats

KINDS = ("deviation", "lasting", "unrest", "activity")
CLIP = 20.0  # scales; beyond, all is the same oddity
LASTING_READINGS = 10
ACTIVITY_READINGS = 20
STEADY_TAU_SECONDS = 5 * 86400.0
SPREAD_TAU_SECONDS = 7 * 86400.0
FLOOR_OF_SPREAD, FLOOR_OF_LEVEL = 0.05, 0.02
STEP_FLOOR_OF_SPREAD, STEP_FLOOR_OF_LEVEL = 0.02, 0.005
FREE_READINGS = 50  # the first ones are not clipped when they teach: there is no scale to clip by
_TEACH_CLIP = 4.0
_TINY = 1e-12
_STILL = 0.02  # of the usual step: what stands still is not infinitely changed


class Residuals:
    """The arithmetic over (entities, metrics); the memory is a dict of arrays whose first axis is entities."""

    def __init__(self, metrics: int, floors: Floats | None = None) -> None:
        """``metrics`` is the last axis of every reading; their units need not be known.

        ``floors`` (metrics,) are least scales in the metrics' own units where these are known.
        """
        self.metrics = metrics
        self._baseline = Baseline.of_unknown_units(metrics)
        self._floors = np.full(metrics, _TINY) if floors is None else np.maximum(floors, _TINY)

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Spans in which no time of day is expected or learnt."""
        self._baseline.set_holidays(holidays)

    @property
    def width(self) -> int:
        """Residuals of an entity."""
        return len(KINDS) * self.metrics

    def empty(self, count: int = 0) -> Arrays:
        """Memory of ``count`` entities that nothing is known about."""
        plane = (count, self.metrics)
        zeros = ("steady", "centre", "spread", "usual_step", "lasting")
        ones = ("unrest", "activity")
        return (
            self._baseline.empty(count)
            | {name: np.zeros(plane) for name in zeros}
            | {name: np.ones(plane) for name in ones}
            | {"floor": np.full(plane, _TINY), "before": np.full(plane, np.nan)}
        )

    def learn_season(self, memory: Arrays, values: Floats, at: float, seconds: float) -> None:
        """Learn the time of day alone, from history that is coarser than readings. Changes ``memory``."""
        self._baseline.learn(memory, values, at, seconds)

    def step(self, memory: Arrays, values: Floats, at: float, seconds: float) -> NDArray[np.float32]:
        """Residuals of one instant, (entities, 4 x metrics), then learn it. Changes ``memory``.

        A reading that is missing has residuals 0 and teaches nothing; all residuals are NaN for an entity
        without any reading.
        """
        known = np.isfinite(values)
        clean = np.where(known, values, 0.0)
        self._learn_spread(memory, clean, known, seconds)
        deviation = self._deviation(memory, clean, known, at, seconds)
        share = 2.0 / (LASTING_READINGS + 1.0)
        memory["lasting"] += np.where(known, share * (deviation - memory["lasting"]), 0.0)
        self._learn_steps(memory, clean, known, seconds)
        activity = 2.0 * np.log((memory["activity"] + _STILL) / (1.0 + _STILL))
        self._baseline.learn(memory, np.where(known, values, np.nan), at, seconds)
        parts = (deviation, memory["lasting"], memory["unrest"], np.clip(activity, -CLIP, CLIP))
        rows = np.concatenate([np.where(known, part, 0.0) for part in parts], axis=1).astype(np.float32)
        rows[~known.any(axis=1)] = np.nan
        return rows

    def _deviation(self, memory: Arrays, values: Floats, known: NDArray[np.bool_], at: float, seconds: float) -> Floats:
        usual = self._baseline.usual(memory, at)
        off = np.where(known & (memory["updates"] > 0), values - usual.level, 0.0)
        scale = np.maximum(memory["steady"] * SIGMA_OF_MEAN_DEVIATION, FLOOR_OF_LEVEL * np.abs(usual.level))
        scale = np.maximum(scale, memory["floor"])
        limit = np.where(memory["updates"] < FREE_READINGS, np.inf, _TEACH_CLIP * scale)
        slow = _pace(memory, seconds, STEADY_TAU_SECONDS)
        memory["steady"] += np.where(known, slow * (np.minimum(np.abs(off), limit) - memory["steady"]), 0.0)
        found: Floats = np.clip(off / scale, -CLIP, CLIP)
        return found

    def _learn_spread(self, memory: Arrays, values: Floats, known: NDArray[np.bool_], seconds: float) -> None:
        slow = _pace(memory, seconds, SPREAD_TAU_SECONDS)
        away = np.where(memory["updates"] > 0, np.abs(values - memory["centre"]), 0.0)
        memory["centre"] += np.where(known, slow * (values - memory["centre"]), 0.0)
        memory["spread"] += np.where(known, slow * (away - memory["spread"]), 0.0)
        memory["floor"] = np.maximum(FLOOR_OF_SPREAD * memory["spread"], self._floors)

    def _learn_steps(self, memory: Arrays, values: Floats, known: NDArray[np.bool_], seconds: float) -> None:
        told = known & ~np.isnan(memory["before"])
        change = np.where(told, np.abs(values - memory["before"]), 0.0)
        floor = np.maximum(STEP_FLOOR_OF_SPREAD * memory["spread"], STEP_FLOOR_OF_LEVEL * np.abs(memory["centre"]))
        scale = np.maximum(np.maximum(memory["usual_step"], floor), self._floors)
        steps = np.minimum(change / scale, CLIP)
        for name, readings in (("unrest", LASTING_READINGS), ("activity", ACTIVITY_READINGS)):
            memory[name] += np.where(told, 2.0 / (readings + 1.0) * (steps - memory[name]), 0.0)
        limit = np.where(memory["updates"] < FREE_READINGS, np.inf, CLIP * scale)
        slow = _pace(memory, seconds, STEADY_TAU_SECONDS)
        memory["usual_step"] += np.where(told, slow * (np.minimum(change, limit) - memory["usual_step"]), 0.0)
        memory["before"] = np.where(known, values, memory["before"])


def _pace(memory: Arrays, seconds: float, tau_seconds: float) -> Floats:
    """The share of a new reading: the plain mean at first, then exponential forgetting."""
    found: Floats = np.maximum(1.0 / (memory["updates"] + 1.0), 1.0 - np.exp(-seconds / tau_seconds))
    return found
