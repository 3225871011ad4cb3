"""Interface of a database backend: connections to read and write, and error messages."""

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
"""Time that a writer waits for another one."""


@dataclass(frozen=True, slots=True)
class DatabaseHandle:
    """Engines per use, the display name of the database, and the translation of driver errors.

    ``translate`` returns None for an unknown error. ``file`` is None on a server.
    """

    pool: sa.Engine
    readers: sa.Engine
    writers: sa.Engine
    display_name: str
    translate: Callable[[sa.exc.DBAPIError, str], StoreError | None]
    vacuum: Callable[[], None]
    file: Path | None = None
    writer_lock: int | None = None


def is_postgresql(connection: sa.Connection) -> bool:
    """True on PostgreSQL, False on SQLite."""
    return connection.dialect.name == POSTGRESQL


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT with ``on_conflict_do_nothing`` and ``on_conflict_do_update`` for this connection."""
    return postgresql.insert(table) if is_postgresql(connection) else sqlite.insert(table)


def added(connection: sa.Connection, table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Inserts a row unless its key exists; True if it was inserted."""
    first = next(iter(table.primary_key))
    statement = insert(connection, table).values(**row).on_conflict_do_nothing().returning(first)
    return connection.execute(statement).first() is not None


def put(connection: sa.Connection, table: sa.Table, *rows: Mapping[str, Any]) -> None:
    """Inserts rows, or replaces those with the same primary key. All rows have the same columns."""
    statement = insert(connection, table)
    keys = [column.name for column in table.primary_key]
    changes = {name: statement.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=changes), list(rows))
