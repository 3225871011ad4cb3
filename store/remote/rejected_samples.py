"""Counts rejected samples by reason; logs each reason once, and again whenever its count has grown tenfold."""

from __future__ import annotations

import re
from threading import Lock

from outrider import log

_log = log.get("store")
_NAMED = re.compile(r"\berr-[a-z-]+")  # Mimir's error ids
_PARTICULARS = re.compile(r"\{[^}]*\}|\"[^\"]*\"|'[^']*'|\d[\d.,:TZ+-]*")
_TENFOLD = 10
_LONGEST = 120
_MOST = 50  # distinct reasons; further ones share one count


class RejectedSamples:
    """Number of rejected samples by reason. Threads may share it."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = Lock()
        self._counts: dict[str, int] = {}
        self._logged: dict[str, int] = {}

    def add(self, message: str, samples: int) -> None:
        """Counts samples rejected with this message."""
        reason = reason_of(message)
        with self._lock:
            if reason not in self._counts and len(self._counts) >= _MOST:
                reason = "other"
            count = self._counts[reason] = self._counts.get(reason, 0) + samples
            if reason in self._logged and count < _TENFOLD * self._logged[reason]:
                return
            self._logged[reason] = count
        _log.warning("samples_refused", reason=reason, samples=count, error=message)

    def counted(self) -> dict[str, int]:
        """Rejected samples since the start, by reason."""
        with self._lock:
            return dict(self._counts)


def reason_of(message: str) -> str:
    """The message without its series, number and timestamp."""
    named = _NAMED.search(message)
    if named is not None:
        return named.group()
    status, _, text = message.partition(": ")
    return f"{status}: {' '.join(_PARTICULARS.sub('…', text).split())[:_LONGEST]}"
