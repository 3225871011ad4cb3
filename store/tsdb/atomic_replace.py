"""Replaces rows without blocking writers.

New rows are written in short transactions and stay *hidden*: reads skip hidden rows. One more short transaction shows
them and hides the old rows; hidden rows are then deleted in small batches. After a kill at any point, hidden rows are
garbage that the next run deletes. If a writer changed the span meanwhile, its mark has changed and nothing is swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import sqlalchemy as sa

from store.schema.metadata import block, hidden
from store.sql.backend import insert
from store.tsdb import blocks, maintenance_queue
from store.tsdb.blocks import Draft
from store.tsdb.maintenance_queue import Mark
from store.tsdb.series_dictionary import SeriesDictionary

_STAGED_BYTES = 1 << 20  # per transaction: some 10 ms on an ordinary disk, 50 ms on a slow or busy one
_DELETED_BYTES = 4 << 20
_DELETED_ROWS = 100

Connecting = Callable[[], AbstractContextManager[sa.Connection]]


@dataclass(frozen=True, slots=True)
class Access:
    """Access of maintenance to a metrics database. ``writing`` is short and exclusive; ``numbers`` work inside it."""

    reading: Connecting
    writing: Connecting
    numbers: SeriesDictionary


def stage(access: Access, drafts: Iterable[Draft]) -> list[int]:
    """Writes hidden rows, some megabytes per transaction, and returns their ids. Packing runs outside transactions."""
    result: list[int] = []
    batch: list[Draft] = []
    size = 0
    for draft in drafts:
        if batch and size + len(draft.payload) > _STAGED_BYTES:
            result += _write(access, batch)
            batch, size = [], 0
        batch.append(draft)
        size += len(draft.payload)
    return result + _write(access, batch) if batch else result


def _write(access: Access, drafts: Sequence[Draft]) -> list[int]:
    with access.writing() as connection:
        ids = [blocks.insert(connection, access.numbers, draft) for draft in drafts]
        connection.execute(sa.insert(hidden), [{"block_id": number} for number in ids])
    return ids


def swap(
    access: Access,
    new: Sequence[int],
    old: Sequence[int],
    work: Sequence[Mark],
    then: Callable[[sa.Connection], None] = lambda _: None,
) -> bool:
    """Shows the new rows, hides the old ones and removes the marks, atomically. False if the span changed meanwhile.

    ``then`` runs in the same transaction.
    """
    with access.writing() as connection:
        if not maintenance_queue.unchanged(connection, work) or _hidden(connection, new) < len(new):
            return False
        if _visible(connection, old) < len(old):
            return False
        maintenance_queue.done(connection, work)
        for part in _parts(new):
            connection.execute(sa.delete(hidden).where(hidden.c.block_id.in_(part)))
        if old:
            rows = [{"block_id": number} for number in old]
            connection.execute(insert(connection, hidden).on_conflict_do_nothing(), rows)
        then(connection)
    return True


def _hidden(connection: sa.Connection, ids: Sequence[int]) -> int:
    query = (sa.select(sa.func.count()).where(hidden.c.block_id.in_(part)) for part in _parts(ids))
    return sum(int(connection.execute(statement).scalar_one()) for statement in query)


def _visible(connection: sa.Connection, ids: Sequence[int]) -> int:
    query = (sa.select(sa.func.count()).where(block.c.id.in_(part), blocks.visible()) for part in _parts(ids))
    return sum(int(connection.execute(statement).scalar_one()) for statement in query)


def _parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(ids), 500):
        yield ids[first : first + 500]


def purge(access: Access, only: Sequence[int] | None = None) -> int:
    """Deletes hidden rows, all or ``only`` some, in small batches; returns their bytes.

    Another process may show a row between the read and the delete, so that each transaction checks again. The newest
    row stays until there is a newer one: SQLite reuses the id of a deleted last row.
    """
    if only is not None and not only:
        return 0
    query = sa.select(hidden.c.block_id, sa.func.coalesce(sa.func.length(block.c.payload), 0))
    query = query.join_from(hidden, block, hidden.c.block_id == block.c.id, isouter=True)
    chosen = [query] if only is None else [query.where(hidden.c.block_id.in_(part)) for part in _parts(only)]
    sized: dict[int, int] = {}
    with access.reading() as connection:
        for statement in chosen:
            sized.update((row[0], row[1]) for row in connection.execute(statement))
    freed = 0
    for part in batches(sized.items()):
        with access.writing() as connection:
            gone = _to_delete(connection, part)
            connection.execute(sa.delete(block).where(block.c.id.in_(gone)))
            connection.execute(sa.delete(hidden).where(hidden.c.block_id.in_(gone)))
        freed += sum(sized[number] for number in gone)
    return freed


def _to_delete(connection: sa.Connection, ids: Sequence[int]) -> list[int]:
    """The ids that are still hidden, without the newest row of the table."""
    newest = connection.execute(sa.select(sa.func.max(block.c.id))).scalar()
    still = sa.select(hidden.c.block_id).where(hidden.c.block_id.in_(ids)).with_for_update()
    return [number for number in connection.scalars(still) if number != newest]


def batches(sized: Iterable[tuple[int, int]]) -> Iterator[list[int]]:
    """Ids with their bytes, split into batches for one transaction each."""
    batch: list[int] = []
    total = 0
    for number, size in sized:
        if batch and (total + size > _DELETED_BYTES or len(batch) >= _DELETED_ROWS):
            yield batch
            batch, total = [], 0
        batch.append(number)
        total += size
    if batch:
        yield batch
