"""The time of a clock that never goes back while the process runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from threading import Lock

from outrider.clock import Clock


class SteadyTime:
    """Follows a clock forward. When the clock steps back, it goes on at the pace of monotonic time.

    Retries that were due stay due, instead of waiting until the clock reaches their time again.
    """

    def __init__(self, clock: Clock) -> None:
        """Starts at the time of the clock."""
        self._clock = clock
        self._lock = Lock()
        self._last, self._monotonic = clock.now(), clock.monotonic()

    def now(self) -> datetime:
        """The time of the clock, or a later one after a step back."""
        with self._lock:
            monotonic = self._clock.monotonic()
            passed = timedelta(seconds=monotonic - self._monotonic)
            self._last, self._monotonic = max(self._clock.now(), self._last + passed), monotonic
            return self._last
