"""Resamples stored columns onto a grid of steps, for ``read_windows`` of every store.

Gauges and states take the last value of a step (or the mean, minimum or maximum). Deltas and buckets sum the PRESENT
cells. Quantiles are derived from the step's summed buckets, never averaged. A step whose cells have no value gets the
status of its last cell that is not ABSENT; a step without cells is ABSENT. Roll-up cells are folded like raw ones,
with means weighted by their counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Event,
    Floats,
    SignalKey,
    SignalKind,
    Statistic,
    Statuses,
    Window,
)
from outrider.vocabulary import catalog
from store.schema.metadata import micros
from store.tsdb.arrays import Index, compact, cross
from store.tsdb.chunk_codec import Micros, Section
from store.tsdb.rollup import counts as has_value

_SUMMED = (SignalKind.DELTA, SignalKind.HISTOGRAM)


@dataclass(frozen=True, slots=True)
class ColumnRequest:
    """Request for one signal: its stored columns, their fold, and the output columns.

    ``direct`` pairs an output column with the index of its stored column; ``quantiles`` pairs an output column with its
    quantile. ``stands_in``: quantiles computed by the source, for cells without buckets.
    """

    name: str
    stored: tuple[SignalKey, ...]
    summed: bool
    direct: tuple[tuple[int, int], ...]
    quantiles: tuple[tuple[int, float], ...]
    stands_in: bool = False


def column_requests(keys: Sequence[SignalKey], *, sum_deltas: bool = True) -> tuple[ColumnRequest, ...]:
    """Groups the requested keys by signal. ``sum_deltas`` False takes the last cell of everything."""
    by_name: dict[tuple[str, bool], list[int]] = {}
    for output, key in enumerate(keys):
        by_name.setdefault((key.name, _is_mean(key)), []).append(output)
    result = []
    for (name, is_mean), outputs in by_name.items():
        result.append(_request(name, outputs, keys, sum_deltas=sum_deltas and not is_mean))
        derived = tuple(output for output, _ in result[-1].quantiles)
        if derived:
            stored = tuple(dict.fromkeys(keys[output] for output in derived))
            pairs = tuple((output, stored.index(keys[output])) for output in derived)
            result.append(ColumnRequest(name, stored, summed=False, direct=pairs, quantiles=(), stands_in=True))
    return tuple(result)


def _is_mean(key: SignalKey) -> bool:
    """True for the bare name of a histogram: the mean of a source without buckets, which cannot be summed."""
    known = catalog.signals().get(key.name)
    return known is not None and known.kind is SignalKind.HISTOGRAM and key.bucket is None and key.quantile is None


def _request(name: str, outputs: Sequence[int], keys: Sequence[SignalKey], *, sum_deltas: bool) -> ColumnRequest:
    known = catalog.signals().get(name)
    derived = [output for output in outputs if keys[output].quantile is not None and known is not None and known.bounds]
    plain = [output for output in outputs if output not in derived]
    stored = list(dict.fromkeys(keys[output] for output in plain))
    if derived and known is not None:
        buckets = known.bucket_keys[:-1]
        stored = [*buckets, *(key for key in stored if key not in buckets)]
    summed = (known is not None and known.kind in _SUMMED) or any(key.bucket is not None for key in stored)
    return ColumnRequest(
        name,
        tuple(stored),
        summed and sum_deltas,
        tuple((output, stored.index(keys[output])) for output in plain),
        tuple((output, float(keys[output].quantile or 0.0)) for output in derived),
    )


class Grid:
    """The output of one read, filled signal by signal, oldest timestamps first."""

    def __init__(
        self,
        keys: Sequence[SignalKey],
        start: datetime,
        end: datetime,
        step: timedelta,
        statistic: Statistic = Statistic.LAST,
    ) -> None:
        """Steps of ``step`` from ``start`` that begin before ``end``. Call ``open`` first."""
        self.statistic = statistic
        self._start, self._step = micros(start), max(1, step // timedelta(microseconds=1))
        self._end = micros(end)
        self.steps = max(0, -(-(self._end - self._start) // self._step))
        self._keys = tuple(keys)
        self.open(0)

    def open(self, entities: int) -> None:
        """Allocates the cells of so many entities, all ABSENT."""
        # (keys, entities, steps): each column of a window is contiguous
        self.values = np.full((len(self._keys), entities, self.steps), np.nan)
        self.status = np.full(self.values.shape, CellStatus.ABSENT, dtype=np.uint8)

    @property
    def span(self) -> tuple[int, int]:
        """Start and end in microseconds since 1970."""
        return self._start, self._end

    @property
    def step(self) -> int:
        """Microseconds of a step."""
        return self._step

    def column(self, request: ColumnRequest) -> Column:
        """The accumulator of one signal; call ``finish`` on it at the end."""
        if request.quantiles or request.stands_in or len(request.direct) != len(request.stored):
            shape = (len(request.stored), *self.values.shape[1:])
            return Column(self, request, np.full(shape, np.nan), np.full(shape, CellStatus.ABSENT, dtype=np.uint8))
        first = request.direct[0][0]
        if [output for output, _ in request.direct] == list(range(first, first + len(request.stored))):
            outputs = slice(first, first + len(request.stored))
            return Column(self, request, self.values[outputs], self.status[outputs], direct=True)
        shape = (len(request.stored), *self.values.shape[1:])
        return Column(self, request, np.full(shape, np.nan), np.full(shape, CellStatus.ABSENT, dtype=np.uint8))

    def positions(self, times: Micros) -> tuple[slice, NDArray[np.int64]]:
        """The slice of the ascending timestamps that lie in the grid, and the step of each."""
        inside = slice(int(np.searchsorted(times, self._start)), int(np.searchsorted(times, self._end)))
        return inside, (times[inside] - self._start) // self._step

    def window(self, kind: EntityKind, entities: tuple[EntityRef, ...], events: tuple[Event, ...] = ()) -> Window:
        """The filled grid. ``times`` are the starts of the steps."""
        starts = (self._start + np.arange(self.steps, dtype=np.float64) * self._step) / 1e6
        step = timedelta(microseconds=self._step)
        axes = (1, 2, 0)
        return Window(
            kind, entities, starts, self._keys, self.values.transpose(axes), self.status.transpose(axes), step, events
        )


class Column:
    """Accumulator of one signal: ``values`` and ``status`` of shape (stored columns, entities, steps)."""

    def __init__(
        self, grid: Grid, request: ColumnRequest, values: NDArray[np.float64], status: Statuses, *, direct: bool = False
    ) -> None:
        """``direct`` True: the arrays are views of the grid."""
        self._grid, self._request, self._direct = grid, request, direct
        self.values, self.status = values, status
        self.statistic = Statistic.LAST if request.summed else grid.statistic
        mean = self.statistic is Statistic.MEAN
        self._totals, self._weights = (np.zeros(values.shape), np.zeros(values.shape)) if mean else (values, values)

    def add(self, columns: Index, rows: Index, times: Micros, section: Section, weights: Floats | None = None) -> None:
        """Folds in cells of shape (columns, rows, times) at the indices ``columns`` and ``rows``.

        ``weights`` are the numbers of values that the cells stand for; None: one each.
        """
        inside, steps = self._grid.positions(times)
        if not steps.size:
            return
        values = section.values[..., inside]
        status = None if section.status is None else section.status[..., inside]
        if status is None and not self._request.summed and self.statistic is Statistic.LAST:
            last = np.append(np.flatnonzero(np.diff(steps)), steps.size - 1)
            self._last(cross(columns, rows, compact(steps[last])), values[..., compact(last)], None)
            return
        for part in ranks(steps):
            chosen = compact(part)
            cells = None if status is None else status[..., chosen]
            heavy = None if weights is None else weights[..., inside][..., chosen]
            self._fold(cross(columns, rows, compact(steps[part])), values[..., chosen], cells, heavy)

    def _fold(self, where: Any, values: NDArray[Any], status: Statuses | None, weights: Floats | None) -> None:
        if self._request.summed:
            self._sum(where, values, status)
        elif self.statistic is Statistic.LAST:
            self._last(where, values, status)
        else:
            self._statistic(where, values, status, weights)

    def _statistic(self, where: Any, values: NDArray[Any], status: Statuses | None, weights: Floats | None) -> None:
        """Mean, minimum or maximum; the status is that of the last value."""
        valid = ~np.isnan(values)
        if status is None:
            self.status[where] = CellStatus.PRESENT
        else:
            valid &= has_value(status)
            old = self.status[where]
            takes = has_value(status) | (~has_value(old) & (status != CellStatus.ABSENT))
            self.status[where] = np.where(takes, status, old)
        if self.statistic is Statistic.MEAN:
            heavy = np.where(valid, 1.0 if weights is None else weights, 0.0)
            with np.errstate(invalid="ignore"):
                self._totals[where] += np.where(heavy > 0, values * heavy, 0.0)
            self._weights[where] += heavy
            return
        pick = np.fmin if self.statistic is Statistic.MIN else np.fmax
        self.values[where] = pick(self.values[where], np.where(valid, values, np.nan))

    def _last(self, where: Any, values: NDArray[Any], status: Statuses | None) -> None:
        if status is None:
            self.values[where], self.status[where] = values, CellStatus.PRESENT
            return
        old = self.status[where]
        takes = has_value(status) | (~has_value(old) & (status != CellStatus.ABSENT))
        self.values[where] = np.where(takes, values, self.values[where])
        self.status[where] = np.where(takes, status, old)

    def _sum(self, where: Any, values: NDArray[Any], status: Statuses | None) -> None:
        old_status, old = self.status[where], self.values[where]
        was_valid = old_status == CellStatus.PRESENT
        if status is None:
            self.values[where] = np.where(was_valid, old + values, values)
            self.status[where] = CellStatus.PRESENT
            return
        valid = status == CellStatus.PRESENT
        self.values[where] = np.where(valid, np.where(was_valid, old + values, values), old)
        absent = status == CellStatus.ABSENT
        self.status[where] = np.where(
            valid | was_valid, np.uint8(CellStatus.PRESENT), np.where(absent, old_status, status)
        )

    def finish(self) -> None:
        """Moves the result into the grid and derives the quantiles."""
        if self.statistic is Statistic.MEAN:
            weighted = self._weights > 0
            self.values[weighted] = self._totals[weighted] / self._weights[weighted]
        if self._direct:
            return
        for output, index in self._request.direct:
            if self._request.stands_in:
                free = self._grid.status[output] == CellStatus.ABSENT
                self._grid.values[output][free] = self.values[index][free]
                self._grid.status[output][free] = self.status[index][free]
            else:
                self._grid.values[output], self._grid.status[output] = self.values[index], self.status[index]
        if not self._request.quantiles:
            return
        bounds = catalog.signal(self._request.name).bounds
        counts = self.values[: len(bounds) + 1].transpose(1, 2, 0)
        statuses = self.status[: len(bounds) + 1]
        seen = (statuses == CellStatus.PRESENT).any(axis=0)
        for output, quantile in self._request.quantiles:
            values, below = catalog.bucket_quantile(counts, bounds, quantile)
            result = np.where(below > 0, CellStatus.BELOW_FIRST_BUCKET, CellStatus.PRESENT)
            result = np.where(np.isnan(values), CellStatus.UNDEFINED, result)
            self._grid.values[output] = values
            self._grid.status[output] = np.where(seen, result, statuses[0])


def ranks(steps: NDArray[np.int64]) -> list[NDArray[np.intp]]:
    """Indices in groups: the first timestamp of each step, the second of each, and so on."""
    first = np.flatnonzero(np.append(True, np.diff(steps) > 0))
    sizes = np.diff(np.append(first, steps.size))
    return [first[sizes > rank] + rank for rank in range(int(sizes.max()))]


def empty_window(kind: EntityKind, keys: Sequence[SignalKey], step: timedelta) -> Window:
    """A window without entities and timestamps."""
    shape = (0, 0, len(keys))
    return Window(kind, (), np.empty(0), tuple(keys), np.empty(shape), np.empty(shape, dtype=np.uint8), step)
