"""Rewrites an hour of cycles as one row a signal: a third of the bytes, and ten signals of a day in half a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np
import sqlalchemy as sa

from outrider.model import CellStatus, EntityKind, SignalKey
from store import schema
from store.arrays import cross
from store.blocks import Piece, payloads, pieces, rows_between, write_bulk
from store.chunks import Micros, Section
from store.dictionary import Dictionary, Names
from store.merge import Ids, column_order
from store.schema import RAW

_HOUR = timedelta(hours=1) // timedelta(microseconds=1)


def hours_of_tails(connection: sa.Connection, kind: EntityKind, before: int) -> list[int]:
    """Starts of the whole hours before an instant that still have single cycles, oldest first."""
    table = schema.block
    asked = (
        sa.select(table.c.end_us)
        .where(table.c.kind == kind.value, table.c.tier == RAW, table.c.instants == 1)
        .where(table.c.end_us < before // _HOUR * _HOUR)
    )
    return sorted({at // _HOUR * _HOUR for (at,) in connection.execute(asked)})


def compact_hour(connection: sa.Connection, numbers: Dictionary, kind: EntityKind, start: int) -> bool:
    """Rewrite the rows of one hour. False leaves an hour alone that a longer row reaches into."""
    rows = rows_between(connection, kind, start, start + _HOUR)
    if any(row.start < start or row.end >= start + _HOUR for row in rows):
        return False
    names = Names()  # of this transaction only: it may see numbers that are rolled back
    found = [pair for batch in payloads(connection, rows) for pair in batch]
    keysets = names.keysets(connection)
    members = {row.cohort: names.cohort(connection, row.cohort) for row in rows}
    entities = np.unique(np.concatenate(list(members.values())))
    times = np.unique(np.concatenate([block.times for _, block in found]))
    for name in dict.fromkeys(key.name for row in rows for key in keysets[row.keyset].keys):
        parts = list(pieces(found, keysets, name))
        keys = tuple(sorted({key for part in parts for key in part.keys}, key=column_order))
        write_bulk(connection, numbers, kind, times, entities, keys, _joined(parts, keys, members, entities, times))
    connection.execute(sa.delete(schema.block).where(schema.block.c.id.in_([row.id for row in rows])))
    return True


def _joined(
    parts: Sequence[Piece], keys: Sequence[SignalKey], members: Mapping[int, Ids], entities: Ids, times: Micros
) -> Section:
    shape = (len(keys), entities.size, times.size)
    values = np.full(shape, np.nan, dtype=np.float32)
    status = np.full(shape, CellStatus.ABSENT, dtype=np.uint8)
    for part in parts:
        where = cross(
            [keys.index(key) for key in part.keys],
            np.searchsorted(entities, members[part.cohort]),
            np.searchsorted(times, part.times),
        )
        values[where] = part.cells.values
        status[where] = CellStatus.PRESENT if part.cells.status is None else part.cells.status
    return Section(values, status)
