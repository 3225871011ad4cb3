"""Counts in time blocks: sums over the last hour or three days without storing every cycle.

One ring of blocks per entity, as an array (entities, blocks). A span of n blocks is the current block and the n - 1
before it, so it covers between n - 1 and n blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from outrider.model import Floats


@dataclass(frozen=True, slots=True)
class RollingCounts:
    """Blocks of length ``block`` over ``span``; arrays are stored as ``<name>_<counted>``."""

    name: str
    block: timedelta
    span: timedelta

    @property
    def slots(self) -> int:
        """Number of blocks."""
        return int(self.span / self.block)

    def fresh(self, count: int, counted: tuple[str, ...]) -> Arrays:
        """State without counts for ``count`` entities."""
        return {f"{self.name}_{one}": np.zeros((count, self.slots)) for one in counted}

    def add(self, memory: Arrays, counted: dict[str, Floats], at: float, last: float) -> None:
        """Adds counts at unix second ``at``; ``last`` is the time of the previous counts, -inf for never."""
        seconds = self.block.total_seconds()
        now = int(at // seconds)
        before = now - self.slots if not np.isfinite(last) else int(last // seconds)
        over = np.arange(max(before, now - self.slots) + 1, now + 1) % self.slots
        for name, values in counted.items():
            held = memory[f"{self.name}_{name}"]
            held[:, over] = 0.0
            held[:, now % self.slots] += values

    def sums(self, memory: Arrays, counted: str, at: float, span: timedelta) -> Floats:
        """Counts within ``span`` before ``at``, shape (entities,)."""
        places: NDArray[np.intp] = (
            int(at // self.block.total_seconds()) - np.arange(int(span / self.block))
        ) % self.slots
        result: Floats = memory[f"{self.name}_{counted}"][:, places].sum(axis=1)
        return result
