"""Label values that stay few, however many there are in the world."""

from __future__ import annotations

import threading
from collections.abc import Callable

OTHER = "other"
LONGEST = 64
_EVERY = 512  # values between two looks at who is busiest
_WATCHED = 10  # times the limit: how many are counted
_CLEARLY = 2.0  # as many times as busy, so that two that are alike do not change places all day


class BusiestNames:
    """The ``most`` busiest values keep their names, the rest is ``other``.

    Values get a name as they come while there is room; later a value that is clearly busier than the least
    busy named one takes its place, and ``dropped`` is called with the name that goes. Threads may share it.
    """

    def __init__(self, most: int, dropped: Callable[[str], None], *, fixed: bool = False) -> None:
        """``fixed``: a name once given stays, as where series cannot be taken back."""
        self._most = max(0, most)
        self._dropped = dropped
        self._fixed = fixed
        self._counts: dict[str, float] = {}
        self._named: set[str] = set()
        self._seen = 0
        self._lock = threading.Lock()

    def name(self, value: object) -> str:
        """The label value for one use of ``value``."""
        text = str(value)[:LONGEST] or OTHER
        gone = None
        with self._lock:
            if text not in self._counts and len(self._counts) >= self._most * _WATCHED:
                self._forget_rare()
            self._counts[text] = self._counts.get(text, 0.0) + 1.0
            if text not in self._named and len(self._named) < self._most:
                self._named.add(text)
            self._seen += 1
            if self._seen % _EVERY == 0 and not self._fixed:
                gone = self._change_places()
            found = text if text in self._named else OTHER
        if gone is not None:
            self._dropped(gone)
        return found

    def _forget_rare(self) -> None:
        """Halve every count and let go of unnamed values that are rare: memory stays bounded."""
        self._counts = {
            text: count / 2 for text, count in self._counts.items() if text in self._named or count >= _CLEARLY
        }
        if len(self._counts) >= self._most * _WATCHED:
            self._counts = {text: count for text, count in self._counts.items() if text in self._named}

    def _change_places(self) -> str | None:
        waiting = [text for text in self._counts if text not in self._named]
        if not waiting or not self._named:
            return None
        busiest = max(waiting, key=lambda text: self._counts[text])
        least = min(self._named, key=lambda text: self._counts.get(text, 0.0))
        if self._counts[busiest] < _CLEARLY * self._counts.get(least, 0.0):
            return None
        self._named.remove(least)
        self._named.add(busiest)
        return least
