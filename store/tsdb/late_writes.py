"""Prepares the store for a late cycle: removes its timestamp from the longer rows that span it.

An hour of a thousand replicas is two hundred rows to unpack and repack. That happens before the writer's transaction,
which swaps the rows if they are unchanged. Rows that maintenance rewrote meanwhile are split inside the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from outrider.model import EntityKind
from store.schema import metadata
from store.schema.metadata import RAW
from store.sql.backend import insert
from store.tsdb import blocks
from store.tsdb.chunk_codec import BULK_LEVEL, Block, decode, encode

_SPANS = sa.text(
    "SELECT 1 FROM block WHERE kind = :kind AND tier = :tier AND end_us >= :at AND start_us <= :at LIMIT 1"
)


@dataclass(frozen=True, slots=True)
class Split:
    """The result of splitting a row: columns of the parts around the timestamp. ``payload`` is the original."""

    payload: bytes
    parts: tuple[Mapping[str, Any], ...]


Splits = Mapping[int, Split]  # by row id


def prepare(connection: sa.Connection, kinds: Iterable[EntityKind], at: int) -> Splits:
    """Splits the rows that span a timestamp. Writes nothing and takes no lock."""
    result: dict[int, Split] = {}
    for kind in kinds:
        if _spanned(connection, kind, at):
            rows = [row for row in blocks.rows_between(connection, kind, at, at + 1) if row.instants > 1]
            for row in rows:
                payload = connection.execute(sa.select(metadata.block.c.payload).where(metadata.block.c.id == row.id))
                result[row.id] = _split(payload.scalar_one(), at)
    return result


def make(connection: sa.Connection, kind: EntityKind, at: int, splits: Splits) -> list[int]:
    """Removes a timestamp from the rows of a kind: a tail is deleted, a longer row becomes two.

    Longer rows are hidden, because deleting megabytes is slow. Returns their ids, to be deleted later.
    """
    if not _spanned(connection, kind, at):
        return []
    table = metadata.block
    new: list[dict[str, Any]] = []
    old: list[int] = []
    for row in blocks.rows_between(connection, kind, at, at + 1):
        stored = dict(connection.execute(sa.select(table).where(table.c.id == row.id)).one()._mapping)  # noqa: SLF001
        number = stored.pop("id")
        if row.instants == 1:
            connection.execute(sa.delete(table).where(table.c.id == number))
            continue
        split = splits.get(number)
        if split is None or split.payload != stored["payload"]:
            split = _split(stored["payload"], at)
        new += [{**stored, **part} for part in split.parts]
        old.append(number)
    if new:
        connection.execute(sa.insert(table), new)
    if old:
        connection.execute(insert(connection, metadata.hidden), [{"block_id": number} for number in old])
    return old


def _spanned(connection: sa.Connection, kind: EntityKind, at: int) -> bool:
    return connection.execute(_SPANS, {"kind": kind.value, "tier": RAW, "at": at}).first() is not None


def _split(payload: bytes, at: int) -> Split:
    block = Block(payload)
    parts = []
    for part in (block.times < at, block.times > at):
        times = block.times[part]
        if times.size:
            sections = [blocks.instants_of(decode([block], section), part) for section in range(block.sections)]
            parts.append(
                {
                    "start_us": int(times[0]),
                    "end_us": int(times[-1]),
                    "instants": int(times.size),
                    "payload": encode(times, sections, level=BULK_LEVEL),
                }
            )
    return Split(payload, tuple(parts))
