"""Writes a piece of history: packed outside transactions, written hidden in parts, then shown at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import numpy as np
import sqlalchemy as sa

from outrider.errors import StoreError
from outrider.model import EntityKind, SignalKey, Statuses
from store.schema import metadata
from store.schema.metadata import RAW
from store.tsdb import atomic_replace, blocks, last_seen, maintenance_queue
from store.tsdb.arrays import cross
from store.tsdb.atomic_replace import Access
from store.tsdb.blocks import MAX_INSTANTS, MAX_SPAN, Draft
from store.tsdb.chunk_codec import Micros, Numeric, Section
from store.tsdb.cycle_matrix import Ids, column_order
from store.tsdb.tiers import HOUR

_ATTEMPTS: Final = 5  # maintenance may delete rows that are not shown yet


def pack(
    kind: EntityKind, times: Micros, numbers: Ids, keys: Sequence[SignalKey], values: Numeric, status: Statuses
) -> Iterator[Draft]:
    """Packs values of shape (entities, times, keys) into rows. Takes no lock."""
    ordered = sorted(range(len(keys)), key=lambda index: column_order(keys[index]))
    rows = np.argsort(numbers)
    for name in dict.fromkeys(keys[index].name for index in ordered):
        columns = [index for index in ordered if keys[index].name == name]
        names = tuple(keys[index] for index in columns)
        for part in _spans(times):
            cells = cross(rows, part, columns)
            section = Section(values[cells].transpose(2, 0, 1), status[cells].transpose(2, 0, 1))
            yield blocks.draft(RAW, kind, times[part], numbers[rows], names, [section])


def write(access: Access, kind: EntityKind, times: Micros, drafts: Sequence[Draft]) -> None:
    """Writes the rows and shows them, replacing those of the same entities and signals inside the span.

    Raises StoreError if maintenance interfered in every attempt.
    """

    def then(connection: sa.Connection) -> None:
        last_seen.put_span(connection, drafts[0].entities, int(times[0]), int(times[-1]))
        maintenance_queue.written(connection, kind, np.unique(times // HOUR * HOUR).tolist())

    leftovers: list[int] = []
    for _ in range(_ATTEMPTS):
        new = atomic_replace.stage(access, drafts)
        with access.writing() as connection:
            old = _replaced(connection, access, kind, times, drafts)
        if atomic_replace.swap(access, new, old, (), then):
            atomic_replace.purge(access, [*leftovers, *old])
            return
        leftovers += new
    atomic_replace.purge(access, leftovers)
    raise StoreError("Maintenance of the store interfered in every attempt.", hint="Write this piece of history again.")


def _replaced(
    connection: sa.Connection, access: Access, kind: EntityKind, times: Micros, drafts: Sequence[Draft]
) -> list[int]:
    """The rows with exactly these entities and columns inside the span of the timestamps."""
    table = metadata.block
    numbers = access.numbers
    keysets = {numbers.keyset(numbers.keys.of(keys)) for keys in {draft.keys for draft in drafts}}
    query = (
        sa.select(table.c.id)
        .where(table.c.kind == kind.value, table.c.tier == RAW, blocks.visible())
        .where(table.c.end_us >= int(times[0]), table.c.end_us <= int(times[-1]), table.c.start_us >= int(times[0]))
        .where(table.c.cohort_id == numbers.cohort(drafts[0].entities), table.c.keyset_id.in_(keysets))
    )
    return list(connection.scalars(query))


def _spans(times: Micros) -> list[slice]:
    """Splits ascending timestamps so that no part exceeds the limits of a row."""
    longest = MAX_SPAN // timedelta(microseconds=1)
    result, start = [], 0
    for index in range(1, times.size + 1):
        if index == times.size or index - start >= MAX_INSTANTS or times[index] - times[start] >= longest:
            result.append(slice(start, index))
            start = index
    return result
