"""Injected time. Only this file calls ``datetime.now`` and ``time.sleep``."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """``now`` for records, waits and schedules; ``monotonic`` for I/O deadlines and leases."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow."""
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Returns once ``duration`` has passed on this clock."""
        ...


class SystemClock:
    """The system clock."""

    def now(self) -> datetime:
        """The current time, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        """Sleeps on the running event loop."""
        await asyncio.sleep(max(0.0, duration.total_seconds()))


class ManualClock:
    """A manually advanced clock for tests, simulation and replay.

    ``set`` may go back, as system clocks do; ``monotonic`` never does.
    """

    def __init__(self, start: datetime) -> None:
        """``start`` must be aware."""
        if start.tzinfo is None:
            raise ValueError("a clock needs an aware start time")
        self._now = start.astimezone(UTC)
        self._monotonic = 0.0

    def now(self) -> datetime:
        """The time that was last set."""
        return self._now

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._monotonic

    def advance(self, duration: timedelta) -> datetime:
        """Advances the clock and returns the new time."""
        self._now += duration
        self._monotonic += max(0.0, duration.total_seconds())
        return self._now

    def set(self, instant: datetime) -> None:
        """Sets the clock to ``instant``, forward or back."""
        self._monotonic += max(0.0, (instant - self._now).total_seconds())
        self._now = instant.astimezone(UTC)

    async def sleep(self, duration: timedelta) -> None:
        """Advances the clock at once."""
        self.advance(duration)


def from_unix(seconds: float) -> datetime:
    """Converts unix seconds to an aware UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def rfc3339(instant: datetime) -> str:
    """RFC 3339 with Z, the format of every printed timestamp. Fractions are kept to milliseconds."""
    text = instant.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace(".000+00:00", "Z").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> datetime:
    """Parses an RFC 3339 timestamp. Raises ValueError if it has no offset or is outside the years 1 to 9999."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a valid timestamp") from error
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it with Z or an offset")
    try:
        return instant.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is outside the years 1 to 9999") from error
