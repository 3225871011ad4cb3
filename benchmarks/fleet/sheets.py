"""Rows of canonical signals: the result of collecting counters and gauges, for all entities of a kind at once.

A row is an entity whose page is read; a sheet has the values of one sort of pages for one kind of entity. Statuses are
those of collecting: no increases on a first page, RESET after a process restart, ABSENT cells if a page could not be
read, UNDEFINED without any event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Floats,
    SampleBatch,
    SignalKey,
    Statuses,
    TrustVerdict,
)
from outrider.vocabulary import catalog

FELL = -np.inf  # in place of an increase that is none
REMEMBER_SECONDS = 15 * 60.0  # an entity that could not be read for longer is left out


@dataclass(frozen=True, slots=True)
class Grown:
    """Growth of counters, ``increases`` of shape (rows, counters): NaN without a value, FELL after a decrease.

    ``seconds`` (rows,) since the last good page, NaN without; ``status`` of cells that need two pages.
    """

    increases: Floats
    seconds: Floats
    status: Statuses


class Ledger:
    """The counters of the last good page of every row."""

    def __init__(self, rows: int) -> None:
        self.at = np.full(rows, np.nan)
        self._counters: Floats | None = None
        self._started = np.full(rows, np.nan)
        self._identity: np.ndarray | None = None

    def compare(
        self,
        at: float,
        up: np.ndarray,
        counters: Floats,
        started: Floats | None = None,
        identity: np.ndarray | None = None,
    ) -> Grown:
        """Increases since the last page of each row, whose page is then this one if ``up``.

        ``started`` (rows,) is the start time of each process: a change is a reset. ``identity`` (rows,) stands for the
        labels
        of a row's series: other labels are new series.
        """
        before = np.zeros_like(counters) if self._counters is None else self._counters
        if identity is not None:
            if self._identity is not None:
                self.at[self._identity != identity] = np.nan
            self._identity = identity.copy()
        seconds = np.where(up, at - self.at, np.nan)
        anew = np.zeros(up.shape, dtype=bool)
        if started is not None:
            anew = up & (np.abs(started - self._started) > 1.0)
            self._started = np.where(up, started, self._started)
        status = np.where(np.isnan(seconds), CellStatus.ABSENT, np.where(anew, CellStatus.RESET, CellStatus.PRESENT))
        good = (status == CellStatus.PRESENT)[:, None]
        increases = np.where(good, counters - before, np.nan)
        increases[increases < 0] = FELL
        self._counters = np.where(up[:, None], counters, before)
        self.at = np.where(up, at, self.at)
        return Grown(increases, seconds, status.astype(np.uint8))

    def recent(self, at: float) -> np.ndarray:
        """Rows with a good page in the last 15 minutes."""
        return np.asarray(at - np.nan_to_num(self.at, nan=-np.inf) <= REMEMBER_SECONDS)

    def forget(self, rows: np.ndarray) -> None:
        """These rows are read no more: their next page is a first one."""
        self.at[rows] = np.nan
        self._started[rows] = np.nan


@dataclass(frozen=True, slots=True)
class Sheet:
    """Cells of all rows of one kind, before it is known which pages were read.

    ``gauges`` are (rows,) with NaN if a page has no such line; ``grown`` need two pages, (rows,) or (rows, buckets of
    the
    signal), with NaN without any event and ``FELL`` after a decrease.
    """

    kind: EntityKind
    source: str
    gauges: Mapping[str, Floats]
    grown: Mapping[str, Floats]

    def cells(self, status: Statuses) -> tuple[tuple[SignalKey, ...], Floats, Statuses]:
        """Keys, values and statuses of shape (rows, keys); ``status`` (rows,) is that of cells that need two pages."""
        keys = _keys(tuple(self.gauges), tuple((name, values.ndim > 1) for name, values in self.grown.items()))
        blocks = [*self.gauges.values(), *self.grown.values()]
        values = np.concatenate([_whole(each.reshape(status.size, -1)) for each in blocks], axis=1)
        missing = np.isnan(values)
        result = np.where(missing, CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        first = len(self.gauges)
        unsure = (status != CellStatus.PRESENT)[:, None]
        result[:, first:] = np.where(
            unsure, status[:, None], np.where(missing[:, first:], CellStatus.UNDEFINED, CellStatus.PRESENT)
        )
        values[:, first:][np.broadcast_to(unsure, values[:, first:].shape)] = np.nan
        back = values == FELL
        values[back], result[back] = np.nan, CellStatus.RESET
        return keys, values, result


def _whole(block: Floats) -> Floats:
    """A histogram is whole or not at all: one bucket that fell speaks for every one."""
    if block.shape[1] == 1:
        return block
    return np.where((block == FELL).any(axis=1)[:, None], FELL, block)


_KEYS: dict[tuple[object, ...], tuple[SignalKey, ...]] = {}


def _keys(gauges: tuple[str, ...], grown: tuple[tuple[str, bool], ...]) -> tuple[SignalKey, ...]:
    """The columns of a sheet; the same object each time, so that readers can compare by identity."""
    result = _KEYS.get((gauges, grown))
    if result is None:
        keys = [SignalKey(name) for name in gauges]
        for name, histogram in grown:
            keys += catalog.signal(name).bucket_keys if histogram else (SignalKey(name),)
        result = _KEYS[gauges, grown] = tuple(keys)
    return result


@dataclass(frozen=True, slots=True)
class Reading:
    """Rows that are read and their scrape status: arrays of shape (rows,). ``known`` rows are listed or remembered."""

    entities: np.ndarray  # of EntityRef
    known: np.ndarray
    up: np.ndarray
    seconds: Floats
    status: Statuses


def batches_of(sheet: Sheet, reading: Reading, at: datetime, own: Sequence[str] = ()) -> Iterator[SampleBatch]:
    """The known rows as batches, one for each interval and verdict, so that each has one ``interval_seconds``.

    Cells of rows whose page could not be read are ABSENT, but for the gauges named in ``own``.
    """
    keys, values, status = sheet.cells(reading.status)
    down = np.flatnonzero(~reading.up & reading.known)
    if down.size:
        lost = np.flatnonzero([key.name not in own for key in keys])
        values[np.ix_(down, lost)], status[np.ix_(down, lost)] = np.nan, CellStatus.ABSENT
    rows = np.flatnonzero(reading.known)
    interval = np.where(reading.up, np.nan_to_num(reading.seconds, nan=-1.0), -2.0)[rows]
    anew = (reading.status == CellStatus.RESET)[rows]
    for seconds, reset in sorted(set(zip(interval.tolist(), anew.tolist(), strict=True))):
        chosen = rows[(interval == seconds) & (anew == reset)]
        trust = TrustVerdict.FAILED if seconds == -2.0 else TrustVerdict.RESET if reset else TrustVerdict.FRESH
        entities: tuple[EntityRef, ...] = tuple(reading.entities[chosen])
        yield SampleBatch(
            sheet.source,
            at,
            sheet.kind,
            keys,
            entities,
            values[chosen],
            status[chosen],
            seconds if seconds > 0 else None,
            trust,
        )


def ratio(over: Floats, under: Floats) -> Floats:
    """``over / under``, NaN without any event."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.where(under > 0, over / under, np.nan)
    return np.where((over == FELL) | (under == FELL), FELL, result)


def refs(found: Sequence[EntityRef]) -> np.ndarray:
    """Entities as an array, for picking rows."""
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array
