"""Counts in blocks of time: the sum over the last hour or three days without keeping every cycle.

A ring of blocks an entity, as one array of shape (entities, blocks). A span of n blocks is the block at
hand and the n - 1 before it, so it covers between n - 1 and n of them.
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
    """Blocks of ``block`` that reach back over ``span``; arrays are kept under ``<name>_<counted>``."""

    name: str
    block: timedelta
    span: timedelta

    @property
    def slots(self) -> int:
        """Blocks kept."""
        return int(self.span / self.block)

    def fresh(self, count: int, counted: tuple[str, ...]) -> Arrays:
        """Nothing counted, for so many entities."""
        return {f"{self.name}_{one}": np.zeros((count, self.slots)) for one in counted}

    def add(self, memory: Arrays, counted: dict[str, Floats], at: float, last: float) -> None:
        """Count what came at unix second ``at``; ``last`` is when something was counted before, -inf for never."""
        seconds = self.block.total_seconds()
        now = int(at // seconds)
        before = now - self.slots if not np.isfinite(last) else int(last // seconds)
        over = np.arange(max(before, now - self.slots) + 1, now + 1) % self.slots
        for name, values in counted.items():
            held = memory[f"{self.name}_{name}"]
            held[:, over] = 0.0
            held[:, now % self.slots] += values

    def sums(self, memory: Arrays, counted: str, at: float, span: timedelta) -> Floats:
        """What was counted within ``span`` before ``at``, shape (entities,)."""
        places: NDArray[np.intp] = (
            int(at // self.block.total_seconds()) - np.arange(int(span / self.block))
        ) % self.slots
        found: Floats = memory[f"{self.name}_{counted}"][:, places].sum(axis=1)
        return found
