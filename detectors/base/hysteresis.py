"""Hysteresis of deviations: 6 of the last 8 readings start one, 2 or fewer end it.

A single deviating reading is noise. A single normal reading does not end a deviation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats

HITS, ENOUGH, CALM = 8, 6, 2
SHARED_RATIO, SHARED_LEAST = 0.25, 4  # a quarter of the fleet at once (at least 4) is the load, not an anomaly
_ONES = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)


def fresh(shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """Initial state: ``hits`` holds the last eight readings as bits; ``since`` is unix seconds, NaN if normal."""
    return {"hits": np.zeros(shape, dtype=np.uint8), "since": np.full(shape, np.nan)}


def advance(
    hits: NDArray[Any], since: Floats, anomalous: NDArray[np.bool_], known: NDArray[np.bool_], at: float, seconds: float
) -> tuple[NDArray[np.uint8], Floats]:
    """Adds one reading; ``anomalous`` counts only if ``known``. A missing reading changes nothing.

    A new deviation is dated back to the first of the eight readings.
    """
    bits = ((hits.astype(np.uint16) << 1) | anomalous).astype(np.uint8)
    moved = np.where(known, bits, hits).astype(np.uint8)
    count, deviates = _ONES[moved], np.isfinite(since)
    begun = np.where(~deviates & (count >= ENOUGH), at - (HITS - 1) * seconds, since)
    return moved, np.where(deviates & (count <= CALM), np.nan, begun)


def own(deviates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """True for deviations that are specific to an entity, shape (entities, ...).

    A deviation that many entities show at once has one external cause: traffic, a rollout or an unlearned season. The
    service's own signals report that once.
    """
    count = deviates.sum(axis=0)
    shared = (count >= SHARED_LEAST) & (count > SHARED_RATIO * deviates.shape[0])
    mine: NDArray[np.bool_] = deviates & ~shared
    return mine
