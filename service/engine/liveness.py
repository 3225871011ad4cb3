"""Liveness of the loop: cycles complete, and bring values."""

from __future__ import annotations

from datetime import datetime, timedelta

from outrider.errors import StoreError
from outrider.ports import StateReader

MISSED_CYCLES = 3  # a cycle may be late; after so many intervals the loop is stuck


class Liveness:
    """Answers whether the loop runs: the newest cycle is recent, and brought values."""

    def __init__(self, state: StateReader, interval: timedelta) -> None:
        """``interval`` is the time between cycles."""
        self._state, self._interval = state, interval

    def is_alive(self, now: datetime) -> bool:
        """True while cycles complete with values of at least one target. False if the store cannot be read."""
        try:
            newest = self._state.cycles(limit=1)
        except StoreError:
            return False
        if not newest or abs(now - newest[0].at) > MISSED_CYCLES * self._interval:
            return False
        cycle = newest[0]
        return cycle.signals_written > 0 and (cycle.targets == 0 or cycle.targets_up > 0)
