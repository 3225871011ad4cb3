"""What an engine of databases must give: connections to read and to write, and its troubles in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from outrider.errors import StoreError
from store.sql.urls import POSTGRESQL

BUSY_TIMEOUT = timedelta(seconds=10)
"""How long a writer waits for another before it gives up."""


@dataclass(frozen=True, slots=True)
class DatabaseHandle:
    """An engine of each use, what people call the place, and how to put an error of the driver.

    ``sentence`` gives None for an error it does not know. ``file`` is None where there is no file.
    """

    pool: sa.Engine
    readers: sa.Engine
    writers: sa.Engine
    place: str
    sentence: Callable[[sa.exc.DBAPIError, str], StoreError | None]
    vacuum: Callable[[], None]
    file: Path | None = None
    writer_lock: int | None = None


def is_postgresql(connection: sa.Connection) -> bool:
    """True on PostgreSQL, False on SQLite."""
    return connection.dialect.name == POSTGRESQL


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that can say ``on_conflict_do_nothing`` and ``on_conflict_do_update`` on this connection."""
    return postgresql.insert(table) if is_postgresql(connection) else sqlite.insert(table)


def added(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Insert a row unless one with the same key is there; True when it was inserted."""
    first = next(iter(table.primary_key))
    statement = insert(connection, table).values(**row).on_conflict_do_nothing().returning(first)
    return connection.execute(statement).first() is not None


def put(connection: sa.Connection, table: sa.Table, *rows: Mapping[str, Any]) -> None:
    """Insert, or replace the row with the same primary key. The rows name the same columns."""
    statement = insert(connection, table)
    keys = [column.name for column in table.primary_key]
    changes = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes), list(rows))
