"""Liveness of the loop: cycles are committed, and bring values. A step of the clock changes nothing."""

from __future__ import annotations

from datetime import timedelta

from outrider.clock import Clock
from outrider.model import CycleRecord

MISSED_CYCLES = 3  # a cycle may be late; after so many intervals the loop is stuck


class Liveness:
    """Answers whether the loop runs: the newest committed cycle is recent, and brought values."""

    def __init__(self, clock: Clock, interval: timedelta) -> None:
        """``interval`` is the time between cycles. Their age counts on the monotonic clock."""
        self._clock = clock
        self._longest = MISSED_CYCLES * interval.total_seconds()
        self._newest: tuple[CycleRecord, float] | None = None

    def note(self, record: CycleRecord) -> None:
        """Receives each cycle that the store accepted."""
        self._newest = record, self._clock.monotonic()

    def is_alive(self) -> bool:
        """True while cycles are committed with values of at least one target. False before the first one."""
        if self._newest is None:
            return False
        cycle, at = self._newest
        is_recent = self._clock.monotonic() - at <= self._longest
        return is_recent and cycle.signals_written > 0 and (cycle.targets == 0 or cycle.targets_up > 0)
