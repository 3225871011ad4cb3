"""Where a score becomes an alarm: the limit that a false-alarm budget buys, found without labels.

Past scores are kept as their highest in blocks of two hours, or of 24 readings where these take longer, 120 blocks
long. The limit is the quantile of these peaks that as many blocks exceed as the budget allows, ``HEADROOM`` times:
a reference without labels holds true faults, too, about as many, and the budget is for false alarms. An entity's
own peaks decide once it has many; while they are few, those of all entities of its class do. A block that
continues an alarm is left out, so that an incident does not raise its own limit; after twelve it is the new usual.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics.theil_sen import share_of
from outrider.model import Floats

BLOCK_SECONDS = 2 * 3600.0
BLOCK_READINGS = 24  # at least: a peak of two hourly readings is no peak
KEPT_BLOCKS = 120  # ten days of two hours
POOL_WEIGHT_BLOCKS = 24.0  # so many peaks of its own weigh as much as those of the class
FEWEST_BLOCKS = 6  # of all entities, before there is any limit
LEFT_OUT_BLOCKS = 12  # of one alarm: a day of two hours
HEADROOM = 2.25
_DAY = 86400.0
_HAIR = 1e-5  # peaks are kept in single precision


class Budget:
    """The arithmetic over entities; the memory is a dict of arrays whose first axis is entities."""

    def __init__(self, alarms_per_entity_day: float, least: float = 0.0) -> None:
        """Of one class of entities; what is not above ``least`` is no alarm whatever the limit."""
        self._least = least
        self._per_second = HEADROOM * alarms_per_entity_day / _DAY

    def empty(self, count: int = 0) -> Arrays:
        """Memory of ``count`` entities without a past."""
        return {
            "peaks": np.full((count, KEPT_BLOCKS), np.nan, dtype=np.float32),
            "peak": np.full(count, np.nan, dtype=np.float32),
            "block": np.full(count, -np.inf),
            "limit": np.full(count, np.inf),
            "lasting_blocks": np.zeros(count),
        }

    def judge(self, memory: Arrays, scores: Floats, at: float, seconds: float = 0.0) -> NDArray[np.bool_]:
        """Whether each score exceeds its limit; NaN does not. Readings are ``seconds`` apart. Changes ``memory``."""
        length = max(BLOCK_SECONDS, BLOCK_READINGS * seconds)
        block = np.floor(at / length) * length
        closed = memory["block"] < block
        if closed.any():
            self._close(memory, closed)
            memory["block"] = np.where(closed, block, memory["block"])
            self._set_limits(memory, 1.0 - min(self._per_second * length, 0.5))
        memory["peak"] = np.fmax(memory["peak"], scores.astype(np.float32))
        above: NDArray[np.bool_] = (scores > memory["limit"] + _HAIR) & (scores > self._least)
        return above

    def _close(self, memory: Arrays, closed: NDArray[np.bool_]) -> None:
        peak = memory["peak"]
        above = peak > memory["limit"] + _HAIR
        continues = above & (memory["lasting_blocks"] > 0) & (memory["lasting_blocks"] < LEFT_OUT_BLOCKS)
        told = closed & ~np.isnan(peak)
        kept = told & ~continues
        memory["peaks"][kept] = np.roll(memory["peaks"][kept], -1, axis=1)
        memory["peaks"][kept, -1] = peak[kept]
        memory["lasting_blocks"] = np.where(
            told, np.where(above, memory["lasting_blocks"] + 1.0, 0.0), memory["lasting_blocks"]
        )
        memory["peak"] = np.where(closed, np.float32(np.nan), peak)

    def _set_limits(self, memory: Arrays, quantile: float) -> None:
        peaks = memory["peaks"]
        everyone = peaks[~np.isnan(peaks)]
        if everyone.size < FEWEST_BLOCKS:
            return
        pooled = float(np.quantile(everyone, quantile))
        count = (~np.isnan(peaks)).sum(axis=1)
        weight = count / (count + POOL_WEIGHT_BLOCKS)
        own = np.where(count > 0, share_of(np.sort(peaks, axis=1), count, quantile), pooled)
        memory["limit"] = weight * own + (1.0 - weight) * pooled
