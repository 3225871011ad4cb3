"""Precision and recall of alarms against labeled events.

Alarm points at most 30 minutes apart are one alarm, and an alarm longer than four hours counts again every
four hours. Events are extended by 15 minutes at their end. An alarm is true if it overlaps an event; an event is
recalled if an alarm point lies in it. Counts are summed over entities before ratios are formed. Points are not
adjusted: with point adjustment a random score gets an F1 of 0.92.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats

MERGE_SECONDS = 1800.0
REPEAT_SECONDS = 4 * 3600.0
GRACE_SECONDS = 900.0
_HAIR = 1e-6  # seconds of tolerance: times are sums of steps


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Sums of one or several entities; ``delays`` in seconds, one per recalled event."""

    alarms: int = 0
    true_alarms: int = 0
    events: int = 0
    recalled: int = 0
    entity_days: float = 0.0
    delays: tuple[float, ...] = ()

    def __add__(self, other: EventCounts) -> EventCounts:
        """Adds both."""
        return EventCounts(
            self.alarms + other.alarms,
            self.true_alarms + other.true_alarms,
            self.events + other.events,
            self.recalled + other.recalled,
            self.entity_days + other.entity_days,
            self.delays + other.delays,
        )

    @property
    def precision(self) -> float | None:
        """True alarms / all alarms; None without an alarm."""
        return self.true_alarms / self.alarms if self.alarms else None

    @property
    def recall(self) -> float | None:
        """Recalled events / all events; None without an event."""
        return self.recalled / self.events if self.events else None

    @property
    def f1(self) -> float | None:
        """Harmonic mean of precision and recall; 0 if nothing is recalled, None without an event."""
        if self.recall is None:
            return None
        both = (self.precision or 0.0) + self.recall
        return 2.0 * (self.precision or 0.0) * self.recall / both if both else 0.0

    @property
    def false_alarms(self) -> int:
        """Alarms that overlap no event."""
        return self.alarms - self.true_alarms

    @property
    def false_alarms_per_day(self) -> float | None:
        """False alarms per entity-day; None without an entity-day."""
        return self.false_alarms / self.entity_days if self.entity_days else None

    @property
    def median_delay_seconds(self) -> float | None:
        """Median time from an event's start to its first alarm point; None if none was recalled."""
        return float(np.median(self.delays)) if self.delays else None


def spans(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Returns runs of True as rows of first and last index, shape (runs, 2)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    runs: NDArray[np.intp] = edges.reshape(-1, 2) - np.array([0, 1])
    return runs


def alarms(times: Floats, points: NDArray[np.bool_]) -> Floats:
    """Merges alarm points to alarms, as rows of first and last time; long ones count again every four hours."""
    at = times[points]
    if at.size == 0:
        return np.zeros((0, 2))
    start = np.flatnonzero(np.diff(at, prepend=-np.inf) > MERGE_SECONDS + _HAIR)
    first = np.repeat(at[start], np.diff(np.append(start, at.size)))
    piece = np.floor((at - first + _HAIR) / REPEAT_SECONDS)
    begins = np.flatnonzero((np.diff(piece, prepend=-1.0) != 0) | np.isin(np.arange(at.size), start))
    return np.stack((at[begins], at[np.append(begins[1:], at.size) - 1]), axis=1)


def count(times: Floats, points: NDArray[np.bool_], labels: NDArray[np.bool_], step_seconds: float) -> EventCounts:
    """Scores one entity; ``times``, ``points`` and ``labels`` of shape (times,)."""
    merged, runs = alarms(times, points), spans(labels)
    begins, ends = times[runs[:, 0]], times[runs[:, 1]] + GRACE_SECONDS + _HAIR
    touches = (merged[:, :1] <= ends[None]) & (merged[:, 1:] >= begins[None] - _HAIR)
    at = times[points]
    first = np.searchsorted(at, begins - _HAIR)
    seen = (
        np.where(first < at.size, at[np.minimum(first, at.size - 1)], np.inf) if at.size else np.full(len(runs), np.inf)
    )
    recalled = seen <= ends
    return EventCounts(
        alarms=len(merged),
        true_alarms=int(touches.any(axis=1).sum()),
        events=len(runs),
        recalled=int(recalled.sum()),
        entity_days=times.size * step_seconds / 86400.0,
        delays=tuple(float(delay) for delay in (seen - begins)[recalled]),
    )


def total(parts: Iterable[EventCounts]) -> EventCounts:
    """Sums over entities."""
    return sum(parts, EventCounts())
