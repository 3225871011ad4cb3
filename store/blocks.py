"""Rows of the ``block`` table: how they are laid out, written, found and read.

A cycle is one row with all its signals (a tail). Many instants are one row a signal, so that reading
ten signals of a day does not touch the other two hundred. Rows of one kind, signal and entity
never overlap in time: a cycle written into the span of such a row splits it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import numpy as np
import sqlalchemy as sa

from outrider.model import EntityKind, SignalKey
from store import schema
from store.chunks import BULK_LEVEL, TAIL_LEVEL, Block, Micros, Section, decode, encode
from store.dictionary import Dictionary, Keyset, sections_of
from store.merge import Ids, Merged
from store.schema import RAW, micros

MAX_SPAN = timedelta(days=1)  # no row spans more, so that a read knows how far back to look
MAX_INSTANTS = 240  # an hour of cycles: what a read of minutes must unpack at most
_READ_BYTES = 32 << 20
_MICROSECOND = timedelta(microseconds=1)
_SPANS = sa.text(
    "SELECT 1 FROM block WHERE kind = :kind AND tier = :tier AND end_us >= :at AND start_us <= :at LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row without its payload."""

    id: int
    start: int
    end: int
    instants: int
    cohort: int
    keyset: int
    size: int


def write_tail(connection: sa.Connection, numbers: Dictionary, at: datetime, cycle: Merged) -> None:
    """Write one cycle of one kind, in place of what its instant held before."""
    time = micros(at)
    make_room(connection, cycle.kind, time)
    spans = sections_of(cycle.keys).values()
    sections = [Section(cycle.values[first:end, :, None], cycle.status[first:end, :, None]) for _, first, end in spans]
    payload = encode(np.array([time]), sections, level=TAIL_LEVEL)
    _insert(connection, numbers, cycle.kind, (time, time, 1), cycle.entities, cycle.keys, payload)


def write_bulk(
    connection: sa.Connection, numbers: Dictionary, kind: EntityKind, times: Micros, entities: Ids,
    keys: tuple[SignalKey, ...], section: Section,
) -> None:  # fmt: skip
    """Write one signal's many instants, of shape (keys, entities, times)."""
    payload = encode(times, [section], level=BULK_LEVEL)
    _insert(connection, numbers, kind, (int(times[0]), int(times[-1]), times.size), entities, keys, payload)


def _insert(
    connection: sa.Connection, numbers: Dictionary, kind: EntityKind, span: tuple[int, int, int], entities: Ids,
    keys: tuple[SignalKey, ...], payload: bytes,
) -> None:  # fmt: skip
    connection.execute(
        sa.insert(schema.block),
        {
            "tier": RAW,
            "kind": kind.value,
            "start_us": span[0],
            "end_us": span[1],
            "instants": span[2],
            "cohort_id": numbers.cohort(entities),
            "keyset_id": numbers.keyset(numbers.keys.of(keys)),
            "payload": payload,
        },
    )


def rows_between(connection: sa.Connection, kind: EntityKind, start: int, end: int) -> list[Row]:
    """Raw rows with an instant in [start, end), oldest first."""
    table = schema.block
    longest = MAX_SPAN // _MICROSECOND
    asked = (
        sa.select(
            table.c.id, table.c.start_us, table.c.end_us, table.c.instants, table.c.cohort_id, table.c.keyset_id,
            sa.func.length(table.c.payload),
        )
        .where(table.c.kind == kind.value, table.c.tier == RAW)
        .where(table.c.end_us >= start, table.c.end_us < end + longest, table.c.start_us < end)
    )  # fmt: skip
    rows = [Row(*row) for row in connection.execute(asked)]
    return sorted(rows, key=lambda row: (row.start, row.id))


def payloads(connection: sa.Connection, rows: Sequence[Row]) -> Iterator[list[tuple[Row, Block]]]:
    """The rows with their blocks, in order, some tens of megabytes at a time."""
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
    table = schema.block
    found = connection.execute(sa.select(table.c.id, table.c.payload).where(table.c.id.in_([row.id for row in rows])))
    by_id = {number: Block(payload) for number, payload in found}
    return [(row, by_id[row.id]) for row in rows]


@dataclass(frozen=True, slots=True)
class Piece:
    """Cells of one signal, of shape (keys, entities, times)."""

    cohort: int
    keys: tuple[SignalKey, ...]
    times: Micros
    cells: Section


def pieces(
    found: Sequence[tuple[Row, Block]],
    keysets: Mapping[int, Keyset],
    name: str,
    wanted: Collection[SignalKey] | None = None,
) -> Iterator[Piece]:
    """One signal's cells out of the rows, oldest first, joined while entities and columns stay the same.

    Rows that hold none of the ``wanted`` columns (None: of all) are not decoded.
    """

    def has(keyset: Keyset) -> bool:
        if name not in keyset.sections:
            return False
        _, first, end = keyset.sections[name]
        return wanted is None or any(key in wanted for key in keyset.keys[first:end])

    those = {number for number in {row.keyset for row, _ in found} if has(keysets[number])}
    having = [(row, block) for row, block in found if row.keyset in those]

    def alike(item: tuple[Row, Block]) -> tuple[int, int, bool]:
        row = item[0]
        return row.cohort, row.keyset, row.instants == 1

    for (cohort, keyset, _), group in groupby(having, key=alike):
        blocks = [block for _, block in group]
        section, first, end = keysets[keyset].sections[name]
        times = np.concatenate([block.times for block in blocks])
        yield Piece(cohort, keysets[keyset].keys[first:end], times, decode(blocks, section))


def make_room(connection: sa.Connection, kind: EntityKind, at: int) -> None:
    """Take an instant out of the rows that span it: a tail goes, a row of many instants is split in two."""
    if connection.execute(_SPANS, {"kind": kind.value, "tier": RAW, "at": at}).first() is None:
        return
    table = schema.block
    for row in rows_between(connection, kind, at, at + 1):
        ((_, block),) = _fetch(connection, [row])
        stored: Any = connection.execute(sa.select(table).where(table.c.id == row.id)).one()._mapping  # noqa: SLF001
        connection.execute(sa.delete(table).where(table.c.id == row.id))
        for part in (block.times < at, block.times > at):
            times = block.times[part]
            if times.size:
                sections = [_part(decode([block], section), part) for section in range(block.sections)]
                changed: dict[str, Any] = {
                    "start_us": int(times[0]),
                    "end_us": int(times[-1]),
                    "instants": int(times.size),
                }
                changed["payload"] = encode(times, sections, level=BULK_LEVEL)
                kept = {name: value for name, value in stored.items() if name != "id"}
                connection.execute(sa.insert(table), {**kept, **changed})


def _part(section: Section, instants: Any) -> Section:
    status = None if section.status is None else section.status[..., instants]
    return Section(section.values[..., instants], status)


def replace_bulk(
    connection: sa.Connection, numbers: Dictionary, kind: EntityKind, times: Micros, entities: Ids,
    keys: tuple[SignalKey, ...],
) -> None:  # fmt: skip
    """Delete the rows of exactly these entities and columns that lie inside the span of the instants."""
    table = schema.block
    connection.execute(
        sa.delete(table)
        .where(table.c.kind == kind.value, table.c.tier == RAW)
        .where(table.c.end_us >= int(times[0]), table.c.end_us <= int(times[-1]), table.c.start_us >= int(times[0]))
        .where(table.c.cohort_id == numbers.cohort(entities))
        .where(table.c.keyset_id == numbers.keyset(numbers.keys.of(keys)))
    )
