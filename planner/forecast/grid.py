"""A grid of slots shared by many series: slots of a day, and the leads that are judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.forecast.series import DAY_SECONDS

Matrix: TypeAlias = NDArray[np.floating]
Slots: TypeAlias = NDArray[np.int64]

_TEN_MINUTES = 600.0
_ANCHORS = (1, 2, 3, 4, 6, 9, 12, 18, 24, 36, 48, 72, 96, 120, 144)


@dataclass(frozen=True, slots=True)
class Grid:
    """Slots of ``step`` seconds. Windows and decays are given in units of ten minutes."""

    step: float

    @property
    def season(self) -> int:
        """Slots of one day."""
        return max(1, round(DAY_SECONDS / self.step))

    def slots(self, tens: float) -> int:
        """Slots in ``tens`` times ten minutes; at least one."""
        return max(1, round(tens * _TEN_MINUTES / self.step))

    @property
    def anchors(self) -> Slots:
        """The leads (in slots, rising, up to a day) at which members are judged; others are interpolated."""
        leads = np.unique([self.slots(tens) for tens in _ANCHORS])
        within_day: Slots = leads[leads <= self.season].astype(np.int64)
        return within_day
