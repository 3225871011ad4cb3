"""Rate limit of each sender: a bucket of one minute that refills steadily."""

from __future__ import annotations

import threading
from collections import OrderedDict

from outrider.clock import Clock

_MOST_SENDERS = 10_000


class SenderAllowances:
    """Amounts that senders may still send. Thread-safe; memory is bounded by the number of senders."""

    def __init__(self, clock: Clock, per_minute: int) -> None:
        """Counts on the monotonic clock."""
        self._clock, self._most = clock, float(per_minute)
        self._lock = threading.Lock()
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # sender -> amount left, at monotonic time

    def take(self, sender: str, amount: int) -> float:
        """Takes an amount; returns 0, or the seconds to wait if too little is left, which takes nothing.

        A full bucket allows any amount: a single request is limited elsewhere.
        """
        now = self._clock.monotonic()
        with self._lock:
            spare, then = self._left.pop(sender, (self._most, now))
            spare = min(self._most, spare + (now - then) * self._most / 60)
            needed = min(float(amount), self._most)
            enough = spare >= needed
            self._left[sender] = (max(0.0, spare - amount) if enough else spare, now)
            while len(self._left) > _MOST_SENDERS:
                self._left.popitem(last=False)
        return 0.0 if enough else (needed - spare) * 60 / self._most
