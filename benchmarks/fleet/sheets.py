"""Rows of canonical signals: the result of collecting counters and gauges, for all entities of a kind at once.

A row is an entity whose page is read; a sheet has the values of one type of page for one entity kind. Cell statuses are
those of collecting: no increases on a first page, RESET after a process restart, ABSENT if a page could not be read,
UNDEFINED without any event.
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

FELL = -np.inf  # marks a counter that decreased
REMEMBER_SECONDS = 15 * 60.0  # entities missing for longer are dropped


@dataclass(frozen=True, slots=True)
class Increases:
    """Counter increases of shape (rows, counters): NaN without a value, FELL after a decrease.

    ``seconds`` (rows,) since the last good page, NaN without one; ``status`` of cells that need two pages.
    """

    increases: Floats
    seconds: Floats
    status: Statuses


class LastCounters:
    """The counters of every row's last good page."""

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
    ) -> Increases:
        """Returns increases since the last page of each row and stores this page if ``up``.

        ``started`` (rows,) is the start time of each process; a change is a reset. ``identity`` (rows,) stands for the
        labels of a row's series; a change means new series.
        """
        before = np.zeros_like(counters) if self._counters is None else self._counters
        if identity is not None:
            if self._identity is not None:
                self.at[self._identity != identity] = np.nan
            self._identity = identity.copy()
        seconds = np.where(up, at - self.at, np.nan)
        reset = np.zeros(up.shape, dtype=bool)
        if started is not None:
            reset = up & (np.abs(started - self._started) > 1.0)
            self._started = np.where(up, started, self._started)
        status = np.where(np.isnan(seconds), CellStatus.ABSENT, np.where(reset, CellStatus.RESET, CellStatus.PRESENT))
        good = (status == CellStatus.PRESENT)[:, None]
        increases = np.where(good, counters - before, np.nan)
        increases[increases < 0] = FELL
        self._counters = np.where(up[:, None], counters, before)
        self.at = np.where(up, at, self.at)
        return Increases(increases, seconds, status.astype(np.uint8))

    def recent(self, at: float) -> np.ndarray:
        """Returns rows with a good page in the last 15 minutes."""
        return np.asarray(at - np.nan_to_num(self.at, nan=-np.inf) <= REMEMBER_SECONDS)

    def forget(self, rows: np.ndarray) -> None:
        """Clears these rows: their next page counts as the first one."""
        self.at[rows] = np.nan
        self._started[rows] = np.nan


@dataclass(frozen=True, slots=True)
class Sheet:
    """Cells of all rows of one kind, before it is known which pages were read.

    ``gauges`` are (rows,) with NaN if a page has no such line. ``grown`` need two pages: (rows,) or (rows, buckets of
    the signal), NaN without any event, ``FELL`` after a decrease.
    """

    kind: EntityKind
    source: str
    gauges: Mapping[str, Floats]
    grown: Mapping[str, Floats]

    def cells(self, status: Statuses) -> tuple[tuple[SignalKey, ...], Floats, Statuses]:
        """Returns keys, values and statuses (rows, keys); ``status`` (rows,) is for cells that need two pages."""
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
    """Marks all buckets of a histogram as FELL if one fell."""
    if block.shape[1] == 1:
        return block
    return np.where((block == FELL).any(axis=1)[:, None], FELL, block)


_KEYS: dict[tuple[object, ...], tuple[SignalKey, ...]] = {}


def _keys(gauges: tuple[str, ...], grown: tuple[tuple[str, bool], ...]) -> tuple[SignalKey, ...]:
    """Returns the columns of a sheet; the same object each time, so that readers can compare by identity."""
    result = _KEYS.get((gauges, grown))
    if result is None:
        keys = [SignalKey(name) for name in gauges]
        for name, histogram in grown:
            keys += catalog.signal(name).bucket_keys if histogram else (SignalKey(name),)
        result = _KEYS[gauges, grown] = tuple(keys)
    return result


@dataclass(frozen=True, slots=True)
class Reading:
    """Rows and their scrape status: arrays of shape (rows,). ``known`` rows are listed now or recently."""

    entities: np.ndarray  # of EntityRef
    known: np.ndarray
    up: np.ndarray
    seconds: Floats
    status: Statuses


def batches_of(sheet: Sheet, reading: Reading, at: datetime, own: Sequence[str] = ()) -> Iterator[SampleBatch]:
    """Yields the known rows as batches, one per interval and scrape status, so that each has one ``interval_seconds``.

    Cells of rows whose page could not be read are ABSENT, except the gauges in ``own``.
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
    """Returns ``over / under``, NaN without any event."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.where(under > 0, over / under, np.nan)
    return np.where((over == FELL) | (under == FELL), FELL, result)


def refs(entities: Sequence[EntityRef]) -> np.ndarray:
    """Returns entities as an array, for selecting rows."""
    array = np.empty(len(entities), dtype=object)
    array[:] = entities
    return array
