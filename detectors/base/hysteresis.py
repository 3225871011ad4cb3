"""When a deviation begins and ends: six odd readings of the last eight begin it, two or fewer end it.

One odd reading is noise; a deviation has to last, and one calm reading in between does not end it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats

HITS, ENOUGH, CALM = 8, 6, 2
SHARED_RATIO, SHARED_LEAST = 0.25, 4  # a quarter of the fleet at once, four at least, is the load and no oddity
_ONES = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)


def fresh(shape: tuple[int, ...]) -> dict[str, NDArray[Any]]:
    """``hits`` are the last eight readings as bits; ``since`` is unix seconds, NaN where all is calm."""
    return {"hits": np.zeros(shape, dtype=np.uint8), "since": np.full(shape, np.nan)}


def advance(
    hits: NDArray[Any], since: Floats, odd: NDArray[np.bool_], known: NDArray[np.bool_], at: float, seconds: float
) -> tuple[NDArray[np.uint8], Floats]:
    """Take in one reading, ``odd`` where it is ``known``; a reading that is missing changes nothing.

    A deviation that begins is dated back to the first of the eight readings.
    """
    bits = ((hits.astype(np.uint16) << 1) | odd).astype(np.uint8)
    moved = np.where(known, bits, hits).astype(np.uint8)
    count, deviates = _ONES[moved], np.isfinite(since)
    begun = np.where(~deviates & (count >= ENOUGH), at - (HITS - 1) * seconds, since)
    return moved, np.where(deviates & (count <= CALM), np.nan, begun)


def own(deviates: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which deviations are an entity's own, shape (entities, ...).

    What many entities show at once has one cause outside them: more traffic, a rollout, a season that is
    not known yet. The service's own signals tell that once; sixty accelerators telling it say nothing.
    """
    count = deviates.sum(axis=0)
    shared = (count >= SHARED_LEAST) & (count > SHARED_RATIO * deviates.shape[0])
    mine: NDArray[np.bool_] = deviates & ~shared
    return mine
