"""Time, handed in. Nothing of ours calls ``datetime.now`` or ``time.sleep`` but this file."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """``now`` for records, waits and schedules; ``monotonic`` for I/O deadlines and leases."""

    def now(self) -> datetime:
        """The instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Return once ``duration`` has passed on this clock."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The instant, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that only grow."""
        return time.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(max(0.0, duration.total_seconds()))


class ManualClock:
    """A clock that moves when it is told to: for tests, simulation and replay.

    ``set`` may step back, as machines' clocks do; ``monotonic`` never does.
    """

    def __init__(self, start: datetime) -> None:
        """``start`` must be aware."""
        if start.tzinfo is None:
            raise ValueError("a clock starts at an aware datetime")
        self._now = start.astimezone(UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The instant it was set to."""
        return self._now

    def monotonic(self) -> float:
        """Seconds moved forward so far."""
        return self._monotonic

    def advance(self, duration: timedelta) -> datetime:
        """Move forward and return the new instant."""
        self._now += duration
        self._monotonic += max(0.0, duration.total_seconds())
        return self._now

    def set(self, instant: datetime) -> None:
        """Jump to ``instant``, back or forth."""
        self._monotonic += max(0.0, (instant - self._now).total_seconds())
        self._now = instant.astimezone(UTC)

    async def sleep(self, duration: timedelta) -> None:
        """Advance at once."""
        self.advance(duration)


def from_unix(seconds: float) -> datetime:
    """Unix seconds to an aware UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def rfc3339(instant: datetime) -> str:
    """RFC 3339 with Z: the spelling of every instant we print. Fractions are kept to milliseconds."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace(".000+00:00", "Z").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> datetime:
    """Read an RFC 3339 instant. Raises ValueError when it has no offset or lies outside years 1 to 9999."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an instant") from error
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it with Z or an offset")
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} lies outside the years 1 to 9999") from error
