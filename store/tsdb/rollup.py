"""Roll-up of cells into longer spans: pure functions over (columns, entities, instants).

A gauge or state keeps its last value, minimum, maximum, sum and count; its mean is derived (a sum of rounded values
packs better than a mean). An increase keeps its sum and count, a histogram bucket its sum. The status of a span is that
of its last cell with a value, else of its last cell that is not ABSENT, as in a read of the span. Rolling up in two
steps gives the same result as in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.model import CellStatus, Floats, SignalKey, SignalKind, Statuses
from outrider.vocabulary import catalog
from store.tsdb.chunk_codec import Block, Micros, Section, decode, filled


class Fold(Enum):
    """Fold of a column: the statistics of a span, in stored order."""

    GAUGE = ("last", "sum", "min", "max", "count")
    INCREASE = ("sum", "count")
    BUCKET = ("sum",)

    @property
    def sections(self) -> int:
        """Sections of a stored row: a sum takes two, because a single float32 would round it."""
        return len(self.value) + (self is not Fold.GAUGE)


_BY_SECTIONS = {fold.sections: fold for fold in Fold}
COUNT = {Fold.GAUGE: 4, Fold.INCREASE: 1}
"""Index of the count among a fold's statistics."""


def fold_of(key: SignalKey) -> Fold:
    """The fold of a column. Signals unknown to the catalog are gauges."""
    if key.bucket is not None:
        return Fold.BUCKET
    known = catalog.signals().get(key.name)
    return Fold.INCREASE if known is not None and known.kind is SignalKind.DELTA else Fold.GAUGE


@dataclass(frozen=True, slots=True)
class RollupCells:
    """Spans of one fold: ``statistics`` of shape (statistics, columns, entities, spans), status without the first axis.

    ``times`` are the starts of the spans, ascending. A span without a value has NaN statistics and count 0; its first
    statistic may still hold the number of a cell with a status such as UNTRUSTED.
    """

    fold: Fold
    times: Micros
    statistics: Floats
    status: Statuses


def counts(status: Statuses) -> NDArray[np.bool_]:
    """True for cells with a valid value."""
    result: NDArray[np.bool_] = (status == CellStatus.PRESENT) | (status == CellStatus.BELOW_FIRST_BUCKET)
    return result


def of_cells(fold: Fold, times: Micros, cells: Section) -> RollupCells:
    """Stored cells, of shape (columns, entities, instants), as spans of one cell each."""
    values = cells.values.astype(np.float64)
    status = np.zeros(values.shape, dtype=np.uint8) if cells.status is None else cells.status
    if fold is Fold.GAUGE:
        has = counts(status) & ~np.isnan(values)
        plain = np.where(has, values, np.nan)
        return RollupCells(fold, times, np.stack([values, plain, plain, plain, has]), status)
    has = status == CellStatus.PRESENT
    total = values if cells.status is None else np.where(has, values, np.nan)
    return RollupCells(fold, times, total[None] if fold is Fold.BUCKET else np.stack([total, has]), status)


def roll(cells: RollupCells, spacing: int) -> RollupCells:
    """Folds spans into longer ones of ``spacing`` microseconds that start at its multiples."""
    if cells.times.size == 0:
        return cells
    starts = cells.times // spacing * spacing
    firsts = np.flatnonzero(np.append(True, np.diff(starts) != 0))
    make = _gauges if cells.fold is Fold.GAUGE else _sums
    statistics, status = make(cells, firsts)
    return RollupCells(cells.fold, starts[firsts], statistics, status)


def _gauges(cells: RollupCells, firsts: NDArray[np.intp]) -> tuple[Floats, Statuses]:
    last, total, low, high, count = cells.statistics
    has = count > 0
    taken, status = _telling(cells.status, counts(cells.status), firsts)
    chosen = np.where(taken >= 0, np.take_along_axis(last, np.maximum(taken, 0), axis=-1), np.nan)
    many = np.add.reduceat(count, firsts, axis=-1)
    with np.errstate(invalid="ignore"):  # the sum of infinite values may be undefined
        added = np.add.reduceat(np.where(has, total, 0.0), firsts, axis=-1)
    least = np.minimum.reduceat(np.where(has, low, np.inf), firsts, axis=-1)
    most = np.maximum.reduceat(np.where(has, high, -np.inf), firsts, axis=-1)
    any_ = many > 0
    result = [chosen, *(np.where(any_, item, np.nan) for item in (added, least, most)), many]
    return np.stack(result), status


def _sums(cells: RollupCells, firsts: NDArray[np.intp]) -> tuple[Floats, Statuses]:
    has = cells.status == CellStatus.PRESENT
    _, status = _telling(cells.status, has, firsts)
    with np.errstate(invalid="ignore"):
        values = cells.statistics[0] if has.all() else np.where(has, cells.statistics[0], 0.0)
        total = np.add.reduceat(values, firsts, axis=-1)
    total = np.where(status == CellStatus.PRESENT, total, np.nan)
    if cells.fold is Fold.BUCKET:
        return total[None], status
    return np.stack([total, np.add.reduceat(cells.statistics[1], firsts, axis=-1)]), status


def _telling(status: Statuses, has: NDArray[np.bool_], firsts: NDArray[np.intp]) -> tuple[NDArray[np.intp], Statuses]:
    """For each span the index of its last cell with a value, else not ABSENT (-1: none), and that cell's status."""
    if has.all():
        ends = np.append(firsts[1:], status.shape[-1]) - 1
        shape = (*status.shape[:-1], firsts.size)
        return np.broadcast_to(ends, shape), np.ascontiguousarray(status[..., ends])
    indices = np.arange(status.shape[-1])
    last = np.maximum.reduceat(np.where(has, indices, -1), firsts, axis=-1)
    other = np.maximum.reduceat(np.where(status != CellStatus.ABSENT, indices, -1), firsts, axis=-1)
    taken = np.where(last >= 0, last, other)
    result = np.take_along_axis(status, np.maximum(taken, 0), axis=-1)
    return taken, np.where(taken >= 0, result, np.uint8(CellStatus.ABSENT))


def fill_in(kept: RollupCells, late: RollupCells) -> tuple[RollupCells, int]:
    """Fills kept spans without a value with late ones; also returns the number of rejected late values.

    Both have the same columns, entities and spans. Deleted values that were rolled up cannot be distinguished from late
    ones, so that a span with a value is never added to: nothing is counted twice.
    """
    free = ~counts(kept.status)
    takes = free & (late.status != CellStatus.ABSENT)
    statistics = np.where(takes, late.statistics, kept.statistics)
    many = late.statistics[COUNT[late.fold]] if late.fold in COUNT else counts(late.status)
    refused = int(np.nansum(np.where(free, 0, many)))
    return RollupCells(kept.fold, kept.times, statistics, np.where(takes, late.status, kept.status)), refused


def empty(fold: Fold, times: Micros, columns: int, entities: int) -> RollupCells:
    """Spans without cells, to be filled."""
    shape = (columns, entities, times.size)
    statistics = np.full((len(fold.value), *shape), np.nan)
    if fold in COUNT:
        statistics[COUNT[fold]] = 0.0
    return RollupCells(fold, times, statistics, np.full(shape, CellStatus.ABSENT, dtype=np.uint8))


def overlay(into: RollupCells, where: Any, cells: RollupCells) -> None:
    """Writes cells at ``where``, an index of (columns, entities, spans)."""
    for target, source in zip(into.statistics, cells.statistics, strict=True):
        target[where] = source
    into.status[where] = cells.status


def sections(rolled: RollupCells) -> list[Section]:
    """Stored sections of the spans: the first with the status, the others with filled gaps."""
    first = rolled.statistics[0]
    with np.errstate(over="ignore"):
        narrow = first.astype(np.float32)
    result = [Section(narrow, rolled.status)]
    rest = list(rolled.statistics[1:])
    if rolled.fold is not Fold.GAUGE:
        with np.errstate(invalid="ignore"):
            rest.insert(0, np.where(np.isfinite(narrow), first - narrow, 0.0))
    with np.errstate(over="ignore"):
        result += [Section(filled(item.astype(np.float32))) for item in rest]
    return result


def fold_in(block: Block) -> Fold:
    """The fold of the columns of a stored row."""
    return _BY_SECTIONS[block.sections]


def unpack(blocks: list[Block]) -> RollupCells:
    """Spans of rows with the same entities, columns and fold."""
    fold = fold_in(blocks[0])
    first = decode(blocks, 0)
    times = np.concatenate([block.times for block in blocks])
    status = np.zeros(first.values.shape, dtype=np.uint8) if first.status is None else first.status
    return RollupCells(fold, times, np.stack([_values(blocks, first, at) for at in range(len(fold.value))]), status)


def statistic(blocks: list[Block], at: int) -> Section:
    """One statistic of rows with the same entities, columns and fold; NaN for a span without a value."""
    first = decode(blocks, 0)
    return Section(_values(blocks, first, at), first.status)


def _values(blocks: list[Block], first: Section, at: int) -> Floats:
    gauge = fold_in(blocks[0]) is Fold.GAUGE
    if at == 0:
        values: Floats = first.values.astype(np.float64)
        return values if gauge else values + decode(blocks, 1).values
    result: Floats = decode(blocks, at if gauge else at + 1).values.astype(np.float64)
    if at != COUNT[fold_in(blocks[0])] and first.status is not None:
        result[~counts(first.status) | np.isnan(first.values)] = np.nan
    return result
