"""Game days: a drill on a schedule, at a moment inside its window that nobody knows beforehand.

Nothing is ordered, and nothing is written down, before that moment.
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

LEAST_LEFT = timedelta(minutes=2)
AT_MOST_LATE = timedelta(minutes=1)  # later than that it would not end inside its window any more
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_log = log.get("gamedays")


def opened(day: GameDaySettings, now: datetime) -> datetime:
    """When the window of a game day opened last."""
    local = now.astimezone(ZoneInfo(day.timezone))
    opens = local.replace(hour=day.hour, minute=day.minute, second=0, microsecond=0)
    opens -= timedelta(days=(local.weekday() - _DAYS.index(day.day)) % 7)
    return (opens if opens <= local else opens - timedelta(days=7)).astimezone(UTC)


def drawn(day: GameDaySettings, opens: datetime) -> tuple[datetime, dict[str, Any]]:
    """The moment to begin in the window that opens then, and what to break: one of the day's faults.

    The same day and instant draw the same. The fault ends before the window closes.
    """
    random = np.random.default_rng([day.seed, int(opens.timestamp())])
    lasts = min(day.lasts, day.window - LEAST_LEFT)
    spare = (day.window - lasts - AT_MOST_LATE).total_seconds()
    order = {
        "fault": day.faults[int(random.integers(len(day.faults)))],
        "cluster": day.cluster,
        "seconds": lasts.total_seconds(),
    }
    moment = opens + timedelta(seconds=float(np.floor(random.random() * spare)))
    return moment, {**order, "seed": int(random.integers(2**31))}


class GameDays:
    """Begins each game day's drill at its moment. Whoever moves the clock calls ``look`` again and again."""

    def __init__(self, state: StateStore, control_url: str | None, days: Sequence[GameDaySettings]) -> None:
        """``control_url`` is the root of the fleet's server."""
        self._state, self._days = state, days
        self._control = FaultControl(control_url or "")
        self._looked: datetime | None = None

    def look(self, now: datetime) -> None:
        """Begin what came due since the last look. What cannot begin is audited and told, and the others go on."""
        since, self._looked = self._looked or now, now
        for day in self._days:
            moment, order = drawn(day, opened(day, now))
            if since < moment <= now <= moment + AT_MOST_LATE:
                self._begin(day, order, now)

    def _begin(self, day: GameDaySettings, order: dict[str, Any], now: datetime) -> None:
        try:
            drill = running_platform.start(self._state, self._control, order, by="schedule", now=now, game_day=day.name)
        except OutriderError as error:
            _log.error("game_day_refused", game_day=day.name, error=error.message, hint=error.hint)
            return
        _log.info("game_day_began", game_day=day.name, drill=drill.id)
