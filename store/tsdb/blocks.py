"""Rows of the ``block`` table: layout, writes, lookups and reads.

A cycle is one row with all its signals (a tail). Many timestamps are one row per signal, so that reading ten signals
of a day skips the other two hundred. Rows of one kind, signal and entity never overlap in time: a cycle written into
the span of such a row splits it. A roll-up row holds columns of one signal with the same fold, one section per
statistic (``store.tsdb.rollup``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import numpy as np
import sqlalchemy as sa

from outrider.model import EntityKind, Floats, SignalKey, Statistic
from store.schema import metadata
from store.schema.metadata import RAW, micros
from store.tsdb import rollup
from store.tsdb.chunk_codec import BULK_LEVEL, TAIL_LEVEL, Block, Micros, Section, decode, encode
from store.tsdb.cycle_matrix import CycleMatrix, Ids
from store.tsdb.rollup import Fold
from store.tsdb.series_dictionary import Keyset, SeriesDictionary, sections_of

MAX_SPAN = timedelta(days=1)  # longest span of a row, which limits the look-back of a read
MAX_INSTANTS = 240  # an hour of cycles: the most that a read of minutes must unpack
_READ_BYTES = 32 << 20
_MICROSECOND = timedelta(microseconds=1)
_PLACES = {Statistic.LAST: 0, Statistic.MEAN: 1, Statistic.MIN: 2, Statistic.MAX: 3}  # index in ``Fold.GAUGE``


@dataclass(frozen=True, slots=True)
class Row:
    """A row without its payload."""

    tier: str
    id: int
    start: int
    end: int
    instants: int
    cohort: int
    keyset: int
    size: int


@dataclass(frozen=True, slots=True)
class Draft:
    """A packed row that is not written yet. ``span`` is the first and last timestamp and their number."""

    tier: str
    kind: EntityKind
    span: tuple[int, int, int]
    entities: Ids
    keys: tuple[SignalKey, ...]
    payload: bytes


def draft(
    tier: str,
    kind: EntityKind,
    times: Micros,
    entities: Ids,
    keys: tuple[SignalKey, ...],
    sections: Sequence[Section],
    level: int = BULK_LEVEL,
) -> Draft:
    """Packs many timestamps of one signal, sections of shape (keys, entities, times)."""
    payload = encode(times, sections, level=level)
    return Draft(tier, kind, (int(times[0]), int(times[-1]), times.size), entities, keys, payload)


def write_tail(connection: sa.Connection, numbers: SeriesDictionary, at: datetime, cycle: CycleMatrix) -> None:
    """Writes one cycle of one kind. The caller has already removed its timestamp (``store.tsdb.late_writes``)."""
    time = micros(at)
    spans = sections_of(cycle.keys).values()
    sections = [Section(cycle.values[first:end, :, None], cycle.status[first:end, :, None]) for _, first, end in spans]
    payload = encode(np.array([time]), sections, level=TAIL_LEVEL)
    insert(connection, numbers, Draft(RAW, cycle.kind, (time, time, 1), cycle.entities, cycle.keys, payload))


def insert(connection: sa.Connection, numbers: SeriesDictionary, row: Draft) -> int:
    """Writes a row; returns its id."""
    stored = connection.execute(
        sa.insert(metadata.block),
        {
            "tier": row.tier,
            "kind": row.kind.value,
            "start_us": row.span[0],
            "end_us": row.span[1],
            "instants": row.span[2],
            "cohort_id": numbers.cohort(row.entities),
            "keyset_id": numbers.keyset(numbers.keys.of(row.keys)),
            "payload": row.payload,
        },
    )
    return int(stored.inserted_primary_key[0])  # type: ignore[index]


def visible() -> sa.ColumnElement[bool]:
    """True for rows that reads may see: neither still being written nor about to be deleted."""
    return metadata.block.c.id.not_in(sa.select(metadata.hidden.c.block_id))


def rows_between(connection: sa.Connection, kind: EntityKind, start: int, end: int, tier: str = RAW) -> list[Row]:
    """Rows of a tier with a timestamp in [start, end), oldest first."""
    table = metadata.block
    longest = MAX_SPAN // _MICROSECOND
    query = (
        sa.select(
            table.c.id, table.c.start_us, table.c.end_us, table.c.instants, table.c.cohort_id, table.c.keyset_id,
            sa.func.length(table.c.payload),
        )
        .where(table.c.kind == kind.value, table.c.tier == tier, visible())
        .where(table.c.end_us >= start, table.c.end_us < end + longest, table.c.start_us < end)
    )  # fmt: skip
    rows = [Row(tier, *row) for row in connection.execute(query)]
    return sorted(rows, key=lambda row: (row.start, row.id))


def payloads(connection: sa.Connection, rows: Sequence[Row]) -> Iterator[list[tuple[Row, Block]]]:
    """The rows with their blocks, in order, in batches of some tens of megabytes."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        if batch and (size + row.size > _READ_BYTES or len(batch) >= 2 * MAX_INSTANTS):
            yield _fetch(connection, batch)
            batch, size = [], 0
        batch.append(row)
        size += row.size
    if batch:
        yield _fetch(connection, batch)


def _fetch(connection: sa.Connection, rows: Sequence[Row]) -> list[tuple[Row, Block]]:
    table = metadata.block
    result = connection.execute(sa.select(table.c.id, table.c.payload).where(table.c.id.in_([row.id for row in rows])))
    by_id = {number: Block(payload) for number, payload in result}
    return [(row, by_id[row.id]) for row in rows]


@dataclass(frozen=True, slots=True)
class Piece:
    """Cells of one signal, of shape (keys, entities, times).

    ``weights`` are the numbers of values that the cells stand for; None: one each.
    """

    cohort: int
    keys: tuple[SignalKey, ...]
    times: Micros
    cells: Section
    weights: Floats | None = None

    def inside(self, start: int, end: int) -> Piece:
        """The part in [start, end)."""
        if not self.times.size or (self.times[0] >= start and self.times[-1] < end):
            return self
        part = slice(int(np.searchsorted(self.times, start)), int(np.searchsorted(self.times, end)))
        weights = None if self.weights is None else self.weights[..., part]
        return Piece(self.cohort, self.keys, self.times[part], instants_of(self.cells, part), weights)


Groups = Iterator[tuple[Row, Keyset, list[Block]]]


def groups(
    loaded: Sequence[tuple[Row, Block]],
    keysets: Mapping[int, Keyset],
    name: str,
    wanted: Collection[SignalKey] | None = None,
) -> Groups:
    """The rows that hold a signal, oldest first, grouped while entities, columns and shape stay the same.

    Rows without any of the ``wanted`` columns (None: all columns) are left out.
    """

    def has(keyset: Keyset) -> bool:
        if name not in keyset.sections:
            return False
        _, first, end = keyset.sections[name]
        return wanted is None or any(key in wanted for key in keyset.keys[first:end])

    those = {number for number in {row.keyset for row, _ in loaded} if has(keysets[number])}
    having = [(row, block) for row, block in loaded if row.keyset in those]

    def alike(item: tuple[Row, Block]) -> tuple[str, int, int, bool, int]:
        row, block = item
        return row.tier, row.cohort, row.keyset, row.instants == 1, block.sections

    for _, group in groupby(having, key=alike):
        pairs = list(group)
        yield pairs[0][0], keysets[pairs[0][0].keyset], [block for _, block in pairs]


def pieces(
    loaded: Sequence[tuple[Row, Block]],
    keysets: Mapping[int, Keyset],
    name: str,
    wanted: Collection[SignalKey] | None = None,
    statistic: Statistic = Statistic.LAST,
) -> Iterator[Piece]:
    """The cells of one signal, oldest first, grouped as by ``groups``."""
    for row, keyset, blocks in groups(loaded, keysets, name, wanted):
        section, first, end = keyset.sections[name]
        keys = keyset.keys[first:end]
        if row.tier != RAW:
            yield _rolled(row.cohort, keys, blocks, statistic)
            continue
        times = np.concatenate([block.times for block in blocks])
        yield Piece(row.cohort, keys, times, decode(blocks, section))


def _rolled(cohort: int, keys: tuple[SignalKey, ...], blocks: list[Block], statistic: Statistic) -> Piece:
    """One statistic of a roll-up as cells; sums stay sums, whatever the statistic."""
    gauge = rollup.fold_in(blocks[0]) is Fold.GAUGE
    times = np.concatenate([block.times for block in blocks])
    cells = rollup.statistic(blocks, _PLACES[statistic] if gauge else 0)
    if not gauge or statistic is not Statistic.MEAN:
        return Piece(cohort, keys, times, cells)
    weights = rollup.statistic(blocks, rollup.COUNT[Fold.GAUGE]).values.astype(np.float64)
    means = cells.values / np.where(weights > 0, weights, np.nan)
    return Piece(cohort, keys, times, Section(means, cells.status), weights)


def instants_of(section: Section, instants: Any) -> Section:
    """A slice of cells of shape (keys, entities, times) along time."""
    status = None if section.status is None else section.status[..., instants]
    return Section(section.values[..., instants], status)
