"""Counts the messages of a channel within the time of its limit."""

from __future__ import annotations

from collections import deque

from outrider.model import RateLimit


class RateWindow:
    """A sliding window. Times are monotonic seconds."""

    def __init__(self, limit: RateLimit | None) -> None:
        """``limit`` None: unlimited."""
        self.limit = limit
        self._sent: deque[float] = deque()

    def free(self, now: float) -> int | None:
        """The number of messages that may be sent now; None: any number."""
        if self.limit is None:
            return None
        while self._sent and now - self._sent[0] >= self.limit.per.total_seconds():
            self._sent.popleft()
        return max(0, self.limit.count - len(self._sent))

    def wait(self, now: float) -> float:
        """Seconds until another message may be sent."""
        if self.free(now) != 0 or self.limit is None or not self._sent:
            return 0.0
        return max(0.0, self._sent[0] + self.limit.per.total_seconds() - now)

    def record(self, now: float) -> None:
        """Counts one message."""
        if self.limit is not None:
            self._sent.append(now)
