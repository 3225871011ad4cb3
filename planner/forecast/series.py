"""One signal on an even grid, the input of every forecaster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

import numpy as np

from outrider.model import Floats

DAY_SECONDS = 86400.0
OFFSET_SHARE = 0.01
"""Share of the mean added before logarithms, so that a slot without traffic has one."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values at ``start + i x step`` seconds; a missing slot is NaN. The next slot is the origin."""

    start: float
    step: float
    values: Floats

    @staticmethod
    def of(times: Floats, values: Floats, step: timedelta, now: datetime) -> Series:
        """Puts (times, values) on a grid that ends before ``now``.

        Later values are ignored. Infinite and negative values count as missing. If two values fall into one slot, the
        last one counts. Without any value the series is empty.
        """
        seconds = step.total_seconds()
        until = now.timestamp()
        valid = np.isfinite(values) & (values >= 0) & np.isfinite(times) & (times < until)
        if not valid.any():
            return Series(until, seconds, np.empty(0))
        start = float(np.floor(times[valid].min() / seconds) * seconds)
        grid = np.full(max(1, ceil((until - start) / seconds - 1e-9)), np.nan)
        grid[((times[valid] - start) / seconds + 1e-9).astype(int)] = values[valid]
        return Series(start, seconds, grid)

    @property
    def times(self) -> Floats:
        """Unix seconds of every slot."""
        seconds_of_slots: Floats = self.start + self.step * np.arange(self.values.size, dtype=np.float64)
        return seconds_of_slots

    @property
    def origin(self) -> float:
        """Unix seconds of the first unknown slot."""
        return self.start + self.step * self.values.size

    @property
    def season(self) -> int:
        """Slots of one day."""
        return max(1, round(DAY_SECONDS / self.step))

    @property
    def days(self) -> float:
        """Days from the start to the origin."""
        return float(self.values.size * self.step / DAY_SECONDS)

    @property
    def present(self) -> np.ndarray:
        """True if a slot has a value."""
        return ~np.isnan(self.values)

    def until(self, slots: int) -> Series:
        """The series as known ``slots`` slots after its start."""
        return Series(self.start, self.step, self.values[:slots])

    def newest(self, days: int) -> Series:
        """The newest ``days`` days of the series."""
        dropped = max(0, self.values.size - days * self.season)
        return Series(self.start + dropped * self.step, self.step, self.values[dropped:])

    def future(self, steps: int) -> Floats:
        """Unix seconds of the next ``steps`` slots."""
        seconds_of_slots: Floats = self.origin + self.step * np.arange(steps, dtype=np.float64)
        return seconds_of_slots


def offset(values: Floats) -> float:
    """Amount added before logarithms, so that a slot without traffic has one: 1 % of the mean."""
    return max(OFFSET_SHARE * float(np.nanmean(values)) if np.isfinite(values).any() else 0.0, 1e-9)
