"""Alarm threshold of a score, from a false-alarm budget and without labels.

Past scores are stored as block maxima: blocks of two hours, or of 24 readings if these take longer, 120 blocks in all.
The threshold is the quantile of these peaks that the budget allows blocks to exceed, times ``HEADROOM``: an unlabeled
reference contains about as many true faults, and the budget is for false alarms. An entity's own peaks decide once
there are many; until then those of its class do. A block that continues an alarm is left out, so that an incident does
not raise its own threshold. After twelve such blocks it is the new normal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics.theil_sen import share_of
from outrider.model import Floats

BLOCK_SECONDS = 2 * 3600.0
BLOCK_READINGS = 24  # minimum; a maximum of two hourly readings is not a peak
KEPT_BLOCKS = 120  # ten days of two-hour blocks
POOL_WEIGHT_BLOCKS = 24.0  # number of own peaks with the same weight as the class
FEWEST_BLOCKS = 6  # of all entities, before a threshold exists
LEFT_OUT_BLOCKS = 12  # of one alarm; a day of two-hour blocks
HEADROOM = 2.25
_DAY = 86400.0
_HAIR = 1e-5  # tolerance: peaks are stored in single precision


class AlarmThreshold:
    """The arithmetic over entities; state is a dict of arrays whose first axis is entities."""

    def __init__(self, alarms_per_entity_day: float, least: float = 0.0) -> None:
        """For one class of entities; a score of ``least`` or lower never alarms."""
        self._least = least
        self._per_second = HEADROOM * alarms_per_entity_day / _DAY

    def empty(self, count: int = 0) -> Arrays:
        """State of ``count`` entities without history."""
        return {
            "peaks": np.full((count, KEPT_BLOCKS), np.nan, dtype=np.float32),
            "peak": np.full(count, np.nan, dtype=np.float32),
            "block": np.full(count, -np.inf),
            "limit": np.full(count, np.inf),
            "lasting_blocks": np.zeros(count),
        }

    def judge(self, memory: Arrays, scores: Floats, at: float, seconds: float = 0.0) -> NDArray[np.bool_]:
        """True for scores above their threshold; NaN is not. Readings are ``seconds`` apart. Changes ``memory``."""
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
        has_peak = closed & ~np.isnan(peak)
        kept = has_peak & ~continues
        memory["peaks"][kept] = np.roll(memory["peaks"][kept], -1, axis=1)
        memory["peaks"][kept, -1] = peak[kept]
        memory["lasting_blocks"] = np.where(
            has_peak, np.where(above, memory["lasting_blocks"] + 1.0, 0.0), memory["lasting_blocks"]
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
