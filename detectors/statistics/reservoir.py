"""Reservoir sample of the last two weeks of rows, small enough for repeated model fits.

The draw uses a seed and the number of rows seen, so that it is reproducible.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from outrider.model import Floats

SEED = 20_261_121
ROWS = 4096
MEMORY_SECONDS = 14 * 86400.0


def empty(width: int) -> Arrays:
    """State without rows; ``width`` values per row."""
    return {"reservoir": np.zeros((0, width), dtype=np.float32), "seen": np.zeros(1)}


def keep(pool: Arrays, rows: Floats | NDArray[np.float32], entities: int, seconds: float) -> None:
    """Adds rows of ``entities``, each ``seconds`` long, to ``pool``; skips rows that start with NaN."""
    rows = rows[~np.isnan(rows[:, 0])].astype(np.float32)
    if rows.shape[0] == 0:
        return
    held = pool["reservoir"]
    room = ROWS - held.shape[0]
    if room > 0:
        held = np.concatenate((held, rows[:room]))
    seen = float(pool["seen"][0]) + float(rows[: max(0, room)].shape[0])
    rows = rows[max(0, room) :]
    if rows.shape[0]:
        draw = np.random.default_rng([SEED, int(seen)])
        in_memory = max(ROWS, min(seen, entities * MEMORY_SECONDS / max(seconds, 1.0)))
        chosen = np.flatnonzero(draw.random(rows.shape[0]) < ROWS / in_memory)
        held[draw.integers(0, ROWS, chosen.size)] = rows[chosen]
        seen += float(rows.shape[0])
    pool["reservoir"], pool["seen"] = held, np.array([seen])
