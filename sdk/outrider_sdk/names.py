"""Bounds the number of label values."""

from __future__ import annotations

import threading
from collections.abc import Callable

OTHER = "other"
LONGEST = 64
_EVERY = 512  # values between two rankings
_WATCHED = 10  # tracked values, as a multiple of the limit
_CLEARLY = 2.0  # hysteresis: two values of equal traffic must not alternate


class BusiestNames:
    """The ``most`` busiest values keep their names; the others become ``other``.

    Values are named on arrival while there is room. Later a clearly busier value replaces the least busy named one, and
    ``dropped`` is called with the replaced name. Threads may share it.
    """

    def __init__(self, most: int, dropped: Callable[[str], None], *, fixed: bool = False) -> None:
        """``fixed``: names are never replaced, for series that cannot be removed."""
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
        replaced = None
        with self._lock:
            if text not in self._counts and len(self._counts) >= self._most * _WATCHED:
                self._drop_rare()
            self._counts[text] = self._counts.get(text, 0.0) + 1.0
            if text not in self._named and len(self._named) < self._most:
                self._named.add(text)
            self._seen += 1
            if self._seen % _EVERY == 0 and not self._fixed:
                replaced = self._replace_least_busy()
            result = text if text in self._named else OTHER
        if replaced is not None:
            self._dropped(replaced)
        return result

    def _drop_rare(self) -> None:
        """Halves every count and drops rare unnamed values, to bound memory."""
        self._counts = {
            text: count / 2 for text, count in self._counts.items() if text in self._named or count >= _CLEARLY
        }
        if len(self._counts) >= self._most * _WATCHED:
            self._counts = {text: count for text, count in self._counts.items() if text in self._named}

    def _replace_least_busy(self) -> str | None:
        unnamed = [text for text in self._counts if text not in self._named]
        if not unnamed or not self._named:
            return None
        busiest = max(unnamed, key=lambda text: self._counts[text])
        least = min(self._named, key=lambda text: self._counts.get(text, 0.0))
        if self._counts[busiest] < _CLEARLY * self._counts.get(least, 0.0):
            return None
        self._named.remove(least)
        self._named.add(busiest)
        return least
