"""The score of the Numenta Anomaly Benchmark, standard profile (Lavin and Ahmad, 2015), from alarm points.

The first alarm within a window earns up to 1, the earlier the more; an alarm outside costs up to 0.11, less
soon after a window; a window without an alarm costs 1. The sum over all series is put on a scale where no
alarm at all is 0 and every window found at its first point is 100. The first 15 % of a series, at most 750
points, are for learning: alarms there do not count. No threshold is chosen by the score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats
from service.evaluation.events import spans

FALSE_ALARM_WEIGHT = 0.11
PROBATION_RATIO, PROBATION_POINTS = 0.15, 5000
REFRACTORY_READINGS = 144
_FAR_BEHIND = 3.0  # window widths


@dataclass(frozen=True, slots=True)
class NabCounts:
    """What one or several series add up to."""

    raw: float = 0.0
    windows: int = 0
    found: int = 0
    false_alarms: int = 0

    def __add__(self, other: NabCounts) -> NabCounts:
        """Both together."""
        return NabCounts(
            self.raw + other.raw,
            self.windows + other.windows,
            self.found + other.found,
            self.false_alarms + other.false_alarms,
        )

    @property
    def score(self) -> float | None:
        """0 to 100, below 0 when worse than silence; None without a window."""
        return 100.0 * (self.raw + self.windows) / (2.0 * self.windows) if self.windows else None


def sigmoid(position: Floats | float) -> Floats:
    """Worth of an alarm at a place relative to a window: 1 early in it, 0 at its end, -1 far behind it."""
    place = np.asarray(position, dtype=np.float64)
    worth: Floats = np.where(
        place > _FAR_BEHIND, -1.0, 2.0 / (1.0 + np.exp(5.0 * np.minimum(place, _FAR_BEHIND))) - 1.0
    )
    return worth


_BEST = float(sigmoid(-1.0))


def probation(size: int) -> int:
    """Points at the start of a series that are for learning."""
    return int(min(np.floor(PROBATION_RATIO * size), PROBATION_RATIO * PROBATION_POINTS))


def spaced(points: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Only the alarm points that begin something: after one, half a day of readings says nothing."""
    kept, last = np.zeros_like(points), -REFRACTORY_READINGS - 1
    for place in np.flatnonzero(points):
        if place - last > REFRACTORY_READINGS:
            kept[place], last = True, int(place)
    return kept


def windows(labels: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last places of each run of labels."""
    return [(int(first), int(last)) for first, last in spans(labels)]


def count(points: NDArray[np.bool_], ranges: Sequence[tuple[int, int]]) -> NabCounts:
    """Score one series; ``ranges`` are the windows' first and last places, in order, ``points`` of shape (times,)."""
    scored = points.copy()
    scored[: probation(points.size)] = False
    places = np.flatnonzero(scored)
    raw, found, inside = 0.0, 0, np.zeros(places.size, dtype=bool)
    for first, last in ranges:
        here = (places >= first) & (places <= last)
        inside |= here
        width = last - first + 1
        if here.any():
            raw += float(sigmoid(-(last - int(places[here][0]) + 1) / width)) / _BEST
            found += 1
        else:
            raw -= 1.0
    for place in places[~inside]:
        before = [window for window in ranges if window[1] < place]
        worth = -1.0 if not before else float(sigmoid((place - before[-1][1]) / max(1, before[-1][1] - before[-1][0])))
        raw += FALSE_ALARM_WEIGHT * worth
    return NabCounts(raw, len(ranges), found, int((~inside).sum()))


def total(parts: Iterable[NabCounts]) -> NabCounts:
    """The sum over series."""
    return sum(parts, NabCounts())
