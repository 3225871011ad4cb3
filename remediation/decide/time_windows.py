"""Maintenance windows and freezes: spans of wall-clock time with a scope. Pure.

In an hour that daylight saving time skips or repeats, a boundary counts in the stricter direction: a maintenance window
is shorter, a freeze is longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, tzinfo

from outrider.vocabulary import time_spans
from outrider.vocabulary.time_spans import DateSpan, WeeklySpan
from remediation.decide.autonomy import Scope, ServiceScope


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A maintenance window or a freeze. Without ``services`` and ``environments`` it applies to everything."""

    name: str
    zone: tzinfo
    span: WeeklySpan | DateSpan
    services: frozenset[str] = frozenset()
    environments: frozenset[str] = frozenset()

    def applies(self, service: ServiceScope) -> bool:
        """True if the window concerns the service, by its name and by its environment."""
        by_name = not self.services or bool(self.services & service.names)
        return by_name and (not self.environments or bool(self.environments & service.environments))

    def contains(self, now: datetime, *, widen: bool = False) -> bool:
        """True while the window is open. ``widen`` extends it over a repeated hour, as a freeze needs it."""
        return any(start <= now < end for start, end in self._open(now, widen=widen))

    def next_start(self, now: datetime, *, widen: bool = False) -> datetime | None:
        """The next time at which the window opens; None if it opens no more."""
        starts = (start for start, _ in self._open(now, widen=widen, ahead=time_spans.WEEK))
        return min((start for start in starts if start > now), default=None)

    def end(self, now: datetime, *, widen: bool = False) -> datetime | None:
        """The time at which the open window closes; None if it is not open.

        A span that begins when another ends continues it. One that never closes ends after the days ahead.
        """
        closes = now
        for start, end in sorted(self._open(now, widen=widen, ahead=time_spans.WEEK)):
            if start <= closes < end:
                closes = end
        return closes if closes > now else None

    def _open(self, now: datetime, *, widen: bool, ahead: int = 1) -> Iterator[tuple[datetime, datetime]]:
        """The instants of the start and end of each span that exists on its day."""
        return time_spans.occurrences(self.span, self.zone, now, widen=widen, ahead=ahead)


def applying(windows: tuple[TimeWindow, ...], scope: Scope) -> tuple[TimeWindow, ...]:
    """The windows that concern one of the services of an action."""
    return tuple(window for window in windows if any(window.applies(service) for service in scope.services))


def frozen_by(freezes: tuple[TimeWindow, ...], scope: Scope, now: datetime) -> str:
    """Names of the freezes that hold an action now; empty if there are none."""
    return ", ".join(freeze.name for freeze in applying(freezes, scope) if freeze.contains(now, widen=True))


def missed_windows(windows: tuple[TimeWindow, ...], scope: Scope, now: datetime) -> str:
    """Names of the windows that an affected service must wait for; empty if none does.

    A service without a window of its own is not restricted.
    """
    missed: dict[str, None] = {}
    for service in scope.services:
        own = [window for window in windows if window.applies(service)]
        if own and not any(window.contains(now) for window in own):
            missed.update(dict.fromkeys(window.name for window in own))
    return ", ".join(missed)
