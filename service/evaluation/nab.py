"""Score of the Numenta Anomaly Benchmark, standard profile (Lavin and Ahmad, 2015), from alarm points.

The first alarm within a window earns up to 1, more if it is early. An alarm outside costs up to 0.11, less
soon after a window. A window without an alarm costs 1. The sum over all series is scaled: no alarm at all is 0, every
window found at its first point is 100. The first 15 % of a series, at most 750 points, are for learning: alarms
there do not count. The score chooses no threshold.
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
    """Sums of one or several series."""

    raw: float = 0.0
    windows: int = 0
    found: int = 0
    false_alarms: int = 0

    def __add__(self, other: NabCounts) -> NabCounts:
        """Adds both."""
        return NabCounts(
            self.raw + other.raw,
            self.windows + other.windows,
            self.found + other.found,
            self.false_alarms + other.false_alarms,
        )

    @property
    def score(self) -> float | None:
        """0 to 100, below 0 if worse than no alarm at all; None without a window."""
        return 100.0 * (self.raw + self.windows) / (2.0 * self.windows) if self.windows else None


def sigmoid(position: Floats | float) -> Floats:
    """Value of an alarm by its position relative to a window: 1 early in it, 0 at its end, -1 long after it."""
    relative = np.asarray(position, dtype=np.float64)
    worth: Floats = np.where(
        relative > _FAR_BEHIND, -1.0, 2.0 / (1.0 + np.exp(5.0 * np.minimum(relative, _FAR_BEHIND))) - 1.0
    )
    return worth


_BEST = float(sigmoid(-1.0))


def probation(size: int) -> int:
    """Returns the number of learning points at the start of a series."""
    return int(min(np.floor(PROBATION_RATIO * size), PROBATION_RATIO * PROBATION_POINTS))


def spaced(points: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keeps an alarm point only if the last kept one is more than half a day of readings older."""
    selected, last = np.zeros_like(points), -REFRACTORY_READINGS - 1
    for index in np.flatnonzero(points):
        if index - last > REFRACTORY_READINGS:
            selected[index], last = True, int(index)
    return selected


def windows(labels: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Returns first and last index of each run of labels."""
    return [(int(first), int(last)) for first, last in spans(labels)]


def count(points: NDArray[np.bool_], ranges: Sequence[tuple[int, int]]) -> NabCounts:
    """Scores one series; ``ranges`` are first and last index of the windows, in order, ``points`` of shape (times,)."""
    scored = points.copy()
    scored[: probation(points.size)] = False
    indices = np.flatnonzero(scored)
    raw, found, inside = 0.0, 0, np.zeros(indices.size, dtype=bool)
    for first, last in ranges:
        here = (indices >= first) & (indices <= last)
        inside |= here
        width = last - first + 1
        if here.any():
            raw += float(sigmoid(-(last - int(indices[here][0]) + 1) / width)) / _BEST
            found += 1
        else:
            raw -= 1.0
    for index in indices[~inside]:
        before = [window for window in ranges if window[1] < index]
        worth = -1.0 if not before else float(sigmoid((index - before[-1][1]) / max(1, before[-1][1] - before[-1][0])))
        raw += FALSE_ALARM_WEIGHT * worth
    return NabCounts(raw, len(ranges), found, int((~inside).sum()))


def total(parts: Iterable[NabCounts]) -> NabCounts:
    """Sums over series."""
    return sum(parts, NabCounts())
