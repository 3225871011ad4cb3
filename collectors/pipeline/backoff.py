"""Which targets are left in peace this round, because asking them again so soon would only cost.

A target that hangs holds a connection for its whole timeout, so one that has hung for some rounds is asked
less often; one that names a time to come back (Retry-After) is taken at its word. Engines are asked every
round whatever they do, and so is whatever refuses at once: that costs nothing and is seen to recover early.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from collectors.mapping.target import Target
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason

AFTER_FAILURES = 5
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=15), timedelta(seconds=60)
LONGEST_ASKED_FOR = timedelta(minutes=5)
_HANGS = frozenset({CollectReason.TIMEOUT, CollectReason.DNS})


@dataclass(frozen=True, slots=True)
class _Record:
    failures: int
    until: datetime
    error: CollectError


class ScrapeBackoff:
    """What is known of the targets that failed lately."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def note(self, scrape: Scrape) -> None:
        """Take an attempt into account."""
        name, error = scrape.target.name, scrape.error
        if error is None:
            self._records.pop(name, None)
            return
        before = self._records.get(name)
        failures = (before.failures if before else 0) + 1 if error.reason in _HANGS else 0
        pause = timedelta(0)
        if error.retry_after is not None:
            pause = min(error.retry_after, LONGEST_ASKED_FOR)
        elif failures >= AFTER_FAILURES and not scrape.target.probe:
            pause = min(FIRST_PAUSE * 2 ** min(failures - AFTER_FAILURES, 8), LONGEST_PAUSE)
        self._records[name] = _Record(failures, scrape.at + pause, error)

    def pause(self, target: Target, at: datetime) -> CollectError | None:
        """Why a target is not asked at this instant: what it failed of last. None when it is asked."""
        known = self._records.get(target.name)
        return known.error if known is not None and at < known.until else None

    def forget(self, name: str) -> None:
        """Drop what is known of a target."""
        self._records.pop(name, None)
