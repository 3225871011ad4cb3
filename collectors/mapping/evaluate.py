"""Evaluates one page with a compiled adapter: values and statuses of every cell. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.mapping.compiler import Cells, CompiledLayout, Groups
from collectors.mapping.model import Aggregate
from outrider.model import CellStatus, Floats, Statuses

_GRAIN = 1e-6  # tolerance of counts resampled onto a ladder
_JOIN = {Aggregate.MIN: np.fmin, Aggregate.MAX: np.fmax, Aggregate.SUM: np.add}


@dataclass(frozen=True, slots=True)
class Rows:
    """Input vector of a page: values, increases, rates, 1; and the status of each entry.

    ``flags`` are CellStatus numbers, all PRESENT (0) on an ordinary page. A flagged entry counts as 0 in the
    arithmetic and passes its status to every cell that reads it. ABSENT entries (a series seen for the first time)
    are ignored if the cell has others.
    """

    numbers: Floats
    flags: Statuses

    @staticmethod
    def of(values: Floats, increases: Floats, seconds: Floats | float, flags: Statuses) -> Rows:
        """Joins the sections. ``flags`` has three sections and one entry, as ``numbers`` will."""
        numbers = np.concatenate((values, increases, increases / seconds, (1.0,)))
        if flags.any():
            numbers[flags != CellStatus.PRESENT] = 0.0
        return Rows(numbers, flags)


def evaluate(compiled: CompiledLayout, rows: Rows) -> tuple[Floats, Statuses]:
    """(values, statuses) of shape (cells,). A cell whose status is not PRESENT is NaN."""
    cells, flagged = compiled.cells, bool(rows.flags.any())
    slots = _slots(compiled, rows.numbers)
    slot_status = _slot_status(compiled, rows.flags) if flagged else np.zeros(compiled.slots, dtype=np.uint8)
    outs, out_status = _outs(compiled, slots, slot_status)
    values = np.full(cells.scale.size, np.nan)
    status = np.full(cells.scale.size, CellStatus.ABSENT, dtype=np.uint8)
    values[compiled.cell_of_out], status[compiled.cell_of_out] = outs, out_status
    for aggregate, joined in cells.joins.items():
        _join(aggregate, compiled.cell_of_out[joined], outs[joined], out_status[joined], values, status)
    values = values * cells.scale + cells.offset
    _compare(cells, values)
    _spread(cells, values, status)
    if flagged:
        undefined = (status == CellStatus.UNTRUSTED) & cells.nan_is_undefined & ~cells.two_scrapes
        status[undefined] = CellStatus.UNDEFINED
    impossible = ~np.isfinite(values) | (values < cells.least) | (values > cells.most)
    status[impossible & (status == CellStatus.PRESENT)] = CellStatus.UNTRUSTED
    values[status != CellStatus.PRESENT] = np.nan
    return values, status


def _compare(cells: Cells, values: Floats) -> None:
    """Absolute values, and 1 or 0 for cells compared with a constant; in place."""
    if cells.absolute.any():
        values[cells.absolute] = np.abs(values[cells.absolute])
    compared = ~np.isnan(cells.equals)
    if compared.any():
        same = (values[compared] == cells.equals[compared]).astype(np.float64)
        values[compared] = np.where(np.isnan(values[compared]), np.nan, same)


def _slots(compiled: CompiledLayout, numbers: Floats) -> Floats:
    weighted = compiled.linear_weights * numbers[compiled.linear_rows]
    # For empty input, bincount returns integers, which would truncate the extremes below.
    slots = np.bincount(compiled.linear_slots, weights=weighted, minlength=compiled.slots).astype(
        np.float64, copy=False
    )
    for groups, function in ((compiled.maxima, np.maximum), (compiled.minima, np.minimum)):
        if groups.slots.size:
            slots[groups.slots] = function.reduceat(groups.weights * numbers[groups.rows], groups.starts)
    return slots


def _slot_status(compiled: CompiledLayout, flags: Statuses) -> Statuses:
    """Worst status of the entries a slot reads, without ABSENT ones; ABSENT if all are."""
    status = np.zeros(compiled.slots, dtype=np.uint8)
    alive = np.zeros(compiled.slots, dtype=bool)
    for rows, slots in (
        (compiled.linear_rows, compiled.linear_slots),
        (compiled.maxima.rows, _slot_of_row(compiled.maxima)),
        (compiled.minima.rows, _slot_of_row(compiled.minima)),
    ):
        entry_status = flags[rows]
        present = entry_status != CellStatus.ABSENT
        np.maximum.at(status, slots[present], entry_status[present])
        alive[slots[present]] = True
    status[~alive] = CellStatus.ABSENT
    return status


def _slot_of_row(groups: Groups) -> NDArray[np.intp]:
    lengths = np.diff(np.append(groups.starts, groups.rows.size))
    return np.repeat(groups.slots, lengths)


def _outs(compiled: CompiledLayout, slots: Floats, slot_status: Statuses) -> tuple[Floats, Statuses]:
    outs, status = slots[compiled.out_left], slot_status[compiled.out_left]
    pairs = np.flatnonzero(compiled.out_right >= 0)
    if pairs.size:
        over, under = outs[pairs], slots[compiled.out_right[pairs]]
        both = np.maximum(status[pairs], slot_status[compiled.out_right[pairs]])
        compare, product = compiled.out_compare[pairs], compiled.out_product[pairs]
        with np.errstate(divide="ignore", invalid="ignore"):
            outs[pairs] = np.where(compare, over >= under, np.where(product, over * under, over / under))
        # Denominator 0: no events, or no limit to compare with. The ratio is undefined.
        empty = (under == 0) & ~compare & ~product & (both == CellStatus.PRESENT)
        status[pairs] = np.where(empty, CellStatus.UNDEFINED, both)
        outs[pairs[empty]] = np.nan
    return outs, status


def _join(
    aggregate: Aggregate,
    cells: NDArray[np.intp],
    outs: Floats,
    out_status: Statuses,
    values: Floats,
    status: Statuses,
) -> None:
    """Combines the ratios of one cell: those with a value count; without any, the worst status applies."""
    present = out_status == CellStatus.PRESENT
    values[cells] = 0.0 if aggregate in {Aggregate.SUM, Aggregate.MEAN} else np.nan
    status[cells] = 255
    np.minimum.at(status, cells, out_status)
    _JOIN.get(aggregate, np.add).at(values, cells[present], outs[present])
    if aggregate is Aggregate.MEAN:
        counts = np.bincount(cells[present], minlength=values.size)
        counted = np.flatnonzero(counts)
        values[counted] /= counts[counted]


def _spread(cells: Cells, values: Floats, status: Statuses) -> None:
    """A histogram is valid as a whole or not at all: its worst bucket determines the status of all.

    Buckets that count fewer than those below them are not a histogram.
    """
    if cells.histograms.size:
        worst = np.maximum.reduceat(status[cells.histograms], cells.histogram_starts)
        least = np.minimum.reduceat(values[cells.histograms], cells.histogram_starts)
        worst[(worst == CellStatus.PRESENT) & (least < -_GRAIN)] = CellStatus.UNTRUSTED
        lengths = np.diff(np.append(cells.histogram_starts, cells.histograms.size))
        status[cells.histograms] = np.repeat(worst, lengths)
