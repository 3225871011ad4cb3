"""Game days: scheduled drills that begin at a random time inside their window.

Nothing is started or recorded before that time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from outrider import log
from outrider.errors import OutriderError
from outrider.ports import StateStore
from service.config.settings import GameDaySettings
from service.drills import running_platform
from service.drills.control import FaultControl

MIN_MARGIN = timedelta(minutes=2)
MAX_DELAY = timedelta(minutes=1)  # a later start would not end inside the window
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_log = log.get("gamedays")


def last_opening(day: GameDaySettings, now: datetime) -> datetime:
    """Returns the time at which the window of a game day last opened."""
    local = now.astimezone(ZoneInfo(day.timezone))
    opens = local.replace(hour=day.hour, minute=day.minute, second=0, microsecond=0)
    opens -= timedelta(days=(local.weekday() - _DAYS.index(day.day)) % 7)
    return (opens if opens <= local else opens - timedelta(days=7)).astimezone(UTC)


def draw_order(day: GameDaySettings, opens: datetime) -> tuple[datetime, dict[str, Any]]:
    """Returns the start time in the window that opens then, and the drill order with one of the day's faults.

    Deterministic for a day and window. The fault ends before the window closes.
    """
    random = np.random.default_rng([day.seed, int(opens.timestamp())])
    lasts = min(day.lasts, day.window - MIN_MARGIN)
    spare = (day.window - lasts - MAX_DELAY).total_seconds()
    order = {
        "fault": day.faults[int(random.integers(len(day.faults)))],
        "cluster": day.cluster,
        "seconds": lasts.total_seconds(),
    }
    begins_at = opens + timedelta(seconds=float(np.floor(random.random() * spare)))
    return begins_at, {**order, "seed": int(random.integers(2**31))}


class GameDays:
    """The periodic task that starts the drill of each game day."""

    def __init__(self, state: StateStore, control_url: str | None, days: Sequence[GameDaySettings]) -> None:
        """``control_url`` is the root of the fleet's server."""
        self._state, self._days = state, days
        self._control = FaultControl(control_url or "")
        self._last_run: datetime | None = None

    def run_due(self, now: datetime) -> None:
        """Starts the drills that became due since the last run. A refused drill is audited and logged."""
        since, self._last_run = self._last_run or now, now
        for day in self._days:
            begins_at, order = draw_order(day, last_opening(day, now))
            if since < begins_at <= now <= begins_at + MAX_DELAY:
                self._begin(day, order, now)

    def _begin(self, day: GameDaySettings, order: dict[str, Any], now: datetime) -> None:
        try:
            drill = running_platform.start(self._state, self._control, order, by="schedule", now=now, game_day=day.name)
        except OutriderError as error:
            _log.error("game_day_refused", game_day=day.name, error=error.message, hint=error.hint)
            return
        _log.info("game_day_began", game_day=day.name, drill=drill.id)
