"""Backoff for targets that hang: they are scraped less often.

A hanging target holds a connection for its whole timeout. After some rounds it is scraped less often.
A Retry-After header is obeyed. Engines are scraped every round. So is a target that refuses connections: that
costs nothing, and its recovery is seen early.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from collectors.mapping.target import Target
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason

AFTER_FAILURES = 5
FIRST_PAUSE, MAX_PAUSE = timedelta(seconds=15), timedelta(seconds=60)
MAX_RETRY_AFTER = timedelta(minutes=5)
_HANGS = frozenset({CollectReason.TIMEOUT, CollectReason.DNS})


@dataclass(frozen=True, slots=True)
class _Record:
    failures: int
    until: datetime
    error: CollectError


class ScrapeBackoff:
    """Failure counts of the targets whose last scrape failed."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def note(self, scrape: Scrape) -> None:
        """Records an attempt."""
        name, error = scrape.target.name, scrape.error
        if error is None:
            self._records.pop(name, None)
            return
        before = self._records.get(name)
        failures = (before.failures if before else 0) + 1 if error.reason in _HANGS else 0
        pause = timedelta(0)
        if error.retry_after is not None:
            pause = min(error.retry_after, MAX_RETRY_AFTER)
        elif failures >= AFTER_FAILURES and not scrape.target.probe:
            pause = min(FIRST_PAUSE * 2 ** min(failures - AFTER_FAILURES, 8), MAX_PAUSE)
        self._records[name] = _Record(failures, scrape.at + pause, error)

    def pause(self, target: Target, at: datetime) -> CollectError | None:
        """Returns the last error of a target that is backed off at this time; None if it is due."""
        record = self._records.get(target.name)
        return record.error if record is not None and at < record.until else None

    def forget(self, name: str) -> None:
        """Drops the record of a target."""
        self._records.pop(name, None)
