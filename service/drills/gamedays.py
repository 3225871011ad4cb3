"""Game days: a drill on a schedule, at a moment inside its window that nobody knows beforehand."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import numpy as np

from outrider.ports import Drill, StateStore
from service.drills import ordered
from service.drills.control import FaultControl
from service.settings import GameDaySettings

LEAST_LEFT = timedelta(minutes=2)


def order_of(day: GameDaySettings, opens: datetime) -> dict[str, Any]:
    """What to break in the window that opens then: one of the day's faults, beginning at a drawn moment.

    The same day and instant give the same order. The fault ends before the window closes.
    """
    random = np.random.default_rng([day.seed, int(opens.timestamp())])
    lasts = min(day.lasts, day.window - LEAST_LEFT)
    spare = (day.window - lasts).total_seconds()
    return {
        "fault": day.faults[int(random.integers(len(day.faults)))],
        "cluster": day.cluster,
        "seconds": lasts.total_seconds(),
        "after_seconds": float(np.floor(random.random() * spare)),
        "seed": int(random.integers(2**31)),
    }


def begin(state: StateStore, control: FaultControl, day: GameDaySettings, now: datetime) -> Drill:
    """Open a game day's window. Raises UsageError and UnavailableError as ``ordered.start`` does."""
    return ordered.start(state, control, order_of(day, now), by="schedule", game_day=day.name)
