"""Copies the tables of a store between databases of either backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from store.admin import introspection
from store.schema import metadata
from store.sql.backend import is_postgresql
from store.sql.database import Database

Progress = Callable[[float], None]
"""Receives the completed share, 0 to 1."""
_COST_OF_BYTES = 50  # cost of a row with a block, in plain rows


def copy(source: sa.Connection, target: sa.Connection, name: metadata.Database, progress: Progress) -> dict[str, int]:
    """Copies every row of every table; returns row counts by table. The target is empty and at the same revision."""
    result = introspection.of(source, name)
    costs = {table.name: introspection.count(source, table) * _cost(table) for table in result}
    total, done = sum(costs.values()) or 1, 0
    copied: dict[str, int] = {}
    for table in result:
        introspection.fit(target, table)
        copied[table.name] = 0
        with _writing(target, table) as write:
            for part in introspection.rows(source, table):
                write(part)
                copied[table.name] += len(part)
                done += len(part) * _cost(table)
                progress(min(done / total, 1.0))
        number_on(source, target, table)
    progress(1.0)
    return copied


@contextmanager
def _writing(target: sa.Connection, table: sa.Table) -> Iterator[Callable[[Sequence[sa.Row[Any]]], None]]:
    """Writes rows of a table that has the target's columns. Several times faster than one Core INSERT per row."""
    quote = target.dialect.identifier_preparer.quote
    names = ", ".join(quote(column.name) for column in table.columns)
    if not is_postgresql(target):
        marks = ", ".join("?" for _ in table.columns)
        statement = f"INSERT INTO {quote(table.name)} ({names}) VALUES ({marks})"  # noqa: S608 - names of our own tables
        yield lambda part: _insert(target, statement, part)
        return
    driver: Any = target.dialect.loaded_dbapi
    plain: Any = target.connection.driver_connection
    try:
        with plain.cursor() as cursor, cursor.copy(f"COPY {quote(table.name)} ({names}) FROM STDIN") as stream:

            def write(part: Sequence[sa.Row[Any]]) -> None:
                for row in part:
                    stream.write_row(row)

            yield write
    except driver.Error as error:
        raise sa.exc.DBAPIError.instance(None, None, error, driver.Error, dialect=target.dialect) from error


def _insert(target: sa.Connection, statement: str, part: Sequence[sa.Row[Any]]) -> None:
    target.exec_driver_sql(statement, [tuple(row) for row in part])


def _cost(table: sa.Table) -> int:
    return _COST_OF_BYTES if any(isinstance(column.type, sa.LargeBinary) for column in table.columns) else 1


def number_on(source: sa.Connection, target: sa.Connection, table: sa.Table) -> None:
    """Sets the target's id sequences to those of the source, even if the rows with the last ids were deleted."""
    column = _numbered(table)
    if column is None:
        return
    highest = target.execute(sa.select(sa.func.max(sa.column(column))).select_from(sa.table(table.name))).scalar()
    last = max(highest or 0, _last_number(source, table.name, column))
    if is_postgresql(target):
        sequence = target.execute(_SEQUENCE, {"table": table.name, "column": column}).scalar()
        if sequence is not None and last > 0:
            target.execute(sa.text("SELECT setval(:sequence, :last)"), {"sequence": sequence, "last": last})
    elif last > 0 and _is_counted(target, table.name):
        target.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = ?", (table.name,))
        target.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table.name, last))


_SEQUENCE = sa.text("SELECT pg_get_serial_sequence(quote_ident(:table), :column)")


def _numbered(table: sa.Table) -> str | None:
    keys = list(table.primary_key)
    return keys[0].name if len(keys) == 1 and issubclass(keys[0].type.python_type, int) else None


def _last_number(connection: sa.Connection, table: str, column: str) -> int:
    if is_postgresql(connection):
        sequence = connection.execute(_SEQUENCE, {"table": table, "column": column}).scalar()
        if sequence is None:
            return 0
        query = f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}"  # noqa: S608 - the server's own spelling
        return int(connection.exec_driver_sql(query).scalar_one())
    if not _is_counted(connection, table):
        return 0
    value = connection.exec_driver_sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).scalar()
    return int(value or 0)


def _is_counted(connection: sa.Connection, table: str) -> bool:
    """True for an SQLite table that never reuses an id."""
    query = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
    definition: str | None = connection.exec_driver_sql(query, (table,)).scalar()
    return definition is not None and "AUTOINCREMENT" in definition.upper()


@contextmanager
def new_file(path: Path) -> Iterator[sa.Connection]:
    """A connection to a private file: one transaction, fast, not durable until synced."""
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(path)))

    def fast(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA foreign_keys=OFF")

    sa.event.listen(engine, "connect", fast)
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def file_database(path: Path, name: metadata.Database) -> Database:
    """Opens a file as a database."""
    return Database(sa.URL.create("sqlite", database=str(path)).render_as_string(), name)
