"""Parts of a read: raw samples, or one number per step that the server aggregates.

Raw samples give the same cells as every other store. The server aggregates long spans if a step holds several cycles
and none of them was written twice. An aggregated read may include an incomplete cycle, whose last request is pending.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from store.remote.bodies import Stamps
from store.remote.selectors import Selector
from store.remote.write_markers import Count, MarkedCycle
from store.tsdb.chunk_codec import Micros

FOLD_FROM: Final = 1_000_000
"""Samples above which the server aggregates a read."""
_CYCLES_A_STEP = 4
_SHORTEST_STEP = 60_000  # milliseconds: VictoriaMetrics interpolates the newest points of a finer range query
_CELLS = 4_000_000  # samples of one part
_POINTS = 10_000  # steps per range query: Prometheus allows 11,000
_MILLI = 1000


class Part(Protocol):
    """A piece of the time axis: its timestamps, its query, and the mapping of response stamps."""

    @property
    def times(self) -> Micros:
        """The timestamps of its cells."""
        ...

    @property
    def folded(self) -> bool:
        """True if a cell is a whole step."""
        ...

    def fields(self, selector: Selector, function: str) -> tuple[str, dict[str, str]]:
        """Path and parameters of the query; ``function`` aggregates a step."""
        ...

    def positions(self, stamps: Stamps) -> NDArray[np.intp]:
        """The index of each stamp among ``times``, -1 for stamps that do not count."""
        ...


@dataclass(frozen=True, slots=True)
class Raw:
    """Cycles as written."""

    stamped: MarkedCycle
    folded: bool = False

    @property
    def times(self) -> Micros:
        """The timestamps of the cycles."""
        return self.stamped.micros

    def fields(self, selector: Selector, function: str) -> tuple[str, dict[str, str]]:  # noqa: ARG002 - nothing is aggregated
        """An instant query for a range of samples."""
        return "query", selector.raw(int(self.stamped.stamps.min()), int(self.stamped.stamps.max()))

    def positions(self, stamps: Stamps) -> NDArray[np.intp]:
        """Indices by the stamps of the cycles."""
        return self.stamped.positions(stamps)


@dataclass(frozen=True, slots=True)
class ServerAggregation:
    """Steps aggregated by the server: start, length (milliseconds) and number."""

    start: int
    step: int
    steps: int
    folded: bool = True

    @property
    def times(self) -> Micros:
        """The starts of the steps."""
        return (self.start + np.arange(self.steps, dtype=np.int64) * self.step) * _MILLI

    def fields(self, selector: Selector, function: str) -> tuple[str, dict[str, str]]:
        """A range query; also for a single step, where an instant query would be equivalent."""
        return "query_range", selector.folded(function, self.start, self.step, self.steps)

    def positions(self, stamps: Stamps) -> NDArray[np.intp]:
        """Indices by the ends of the steps."""
        result = (stamps - self.start) // self.step
        return np.where((result >= 0) & (result < self.steps), result, -1).astype(np.intp)


def folds(count: Count, span: tuple[int, int], step: int, series: int) -> bool:
    """True if the server should aggregate. ``span`` and ``step`` are in microseconds; ``series`` is their number."""
    start, end = span
    cycles = count.first + count.again
    whole = start % _MILLI == 0 and step % _MILLI == 0 and step // _MILLI >= _SHORTEST_STEP
    dense = cycles * step >= _CYCLES_A_STEP * (end - start)
    return whole and dense and not count.again and cycles * series > FOLD_FROM


def raw_parts(stamped: MarkedCycle, series: int) -> Iterator[Part]:
    """The cycles in pieces of some millions of samples."""
    size = max(1, _CELLS // max(1, series))
    for first in range(0, stamped.micros.size, size):
        part = slice(first, first + size)
        yield Raw(MarkedCycle(stamped.stamps[part], stamped.micros[part]))


def folded_parts(span: tuple[int, int], step: int, series: int) -> Iterator[Part]:
    """The steps in pieces of some millions of numbers. ``span`` and ``step`` are in microseconds."""
    start, end = span
    steps = -(-(end - start) // step)
    size = max(1, min(_POINTS, _CELLS // max(1, series)))
    for first in range(0, steps, size):
        yield ServerAggregation((start + first * step) // _MILLI, step // _MILLI, min(size, steps - first))
