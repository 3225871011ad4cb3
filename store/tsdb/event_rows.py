"""Events as rows, for every metric store with a database."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from outrider.model import EntityKind, EntityRef, Event
from store.schema import json_codec, metadata
from store.schema.metadata import micros
from store.sql.backend import insert


def add(connection: sa.Connection, events: Sequence[Event]) -> None:
    """Inserts events; those with a known dedup key are left out."""
    if events:
        statement = insert(connection, metadata.event).on_conflict_do_nothing()
        connection.execute(statement, [_row(event) for event in events])


def between(
    connection: sa.Connection, start: int, end: int, *, entity: EntityRef | None = None, kind: EntityKind | None = None
) -> tuple[Event, ...]:
    """Events in [start, end) in microseconds, oldest first, optionally of one entity or kind."""
    table = metadata.event
    query = sa.select(table.c.body).where(table.c.at_us >= start, table.c.at_us < end)
    if entity is not None:
        query = query.where(table.c.entity == entity.key)
    if kind is not None:
        query = query.where(table.c.entity_kind == kind.value)
    rows = connection.execute(query.order_by(table.c.at_us, table.c.dedup_key))
    return tuple(json_codec.loads(Event, row.body) for row in rows)


def _row(event: Event) -> dict[str, object]:
    return {
        "dedup_key": event.dedup_key or event.id,
        "at_us": micros(event.at),
        "entity": event.entity.key,
        "entity_kind": event.entity.kind.value,
        "body": json_codec.dumps(event),
    }
