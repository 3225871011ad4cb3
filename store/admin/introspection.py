"""The tables that a database really has, whatever its revision, wide tables included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from outrider.model import EntityKind
from store.schema import metadata as schema_metadata
from store.sql.backend import is_postgresql

WIDE: Final = ("latest_", "hourly_")
"""Prefixes of the wide tables; the rest of the name is an entity kind. Their columns follow the signal catalog."""
_SIZE = sa.text(
    "SELECT coalesce(sum(pg_total_relation_size(to_regclass(quote_ident(name)))), 0) "
    "FROM unnest(CAST(:names AS text[])) name"
)
_WITH_BYTES_AT_ONCE, _AT_ONCE = 32, 2_000  # rows in memory; a block may have megabytes


def of(connection: sa.Connection, name: schema_metadata.Database) -> tuple[sa.Table, ...]:
    """The existing tables of a database, parents before children, without its revision table."""
    inspector = sa.inspect(connection)
    metadata: sa.MetaData = getattr(schema_metadata, name)
    wide = {f"{prefix}{kind.value}" for prefix in WIDE for kind in EntityKind} if name == "metrics" else set()
    own_tables = sorted((set(metadata.tables) | wide) & set(inspector.get_table_names()))
    result = sa.MetaData()
    result.reflect(connection, only=own_tables)
    return tuple(table for table in result.sorted_tables if table.name in own_tables)


def count(connection: sa.Connection, table: sa.Table) -> int:
    """The number of rows of a table."""
    return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def rows(connection: sa.Connection, table: sa.Table) -> Iterator[Sequence[sa.Row[Any]]]:
    """All rows by primary key, in batches that fit into memory."""
    big = any(isinstance(column.type, sa.LargeBinary) for column in table.columns)
    query = sa.select(table).order_by(*table.primary_key)
    part = _WITH_BYTES_AT_ONCE if big else _AT_ONCE
    yield from connection.execute(query, execution_options={"yield_per": part}).partitions()


def size(connection: sa.Connection, name: schema_metadata.Database) -> int:
    """Size in bytes: tables and indexes on a server, pages in a file."""
    if not is_postgresql(connection):
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())
    names = [table.name for table in of(connection, name)]
    return int(connection.execute(_SIZE, {"names": names}).scalar_one())


def fit(connection: sa.Connection, table: sa.Table) -> None:
    """Creates the same table on this connection, or adds the columns it lacks."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(table.name):
        _portable(table, sa.MetaData()).create(connection)
    else:
        present = {column["name"] for column in inspector.get_columns(table.name)}
        kind = connection.dialect
        for column in _portable(table, sa.MetaData()).columns:
            if column.name not in present:
                quoted = kind.identifier_preparer.quote(column.name)
                spelled = column.type.compile(dialect=kind)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {quoted} {spelled}")


def _portable(table: sa.Table, metadata: sa.MetaData) -> sa.Table:
    types: dict[type, Any] = {int: sa.BigInteger, float: sa.Double, bytes: sa.LargeBinary}
    keys = {column.name for column in table.primary_key}
    columns = [
        sa.Column(
            column.name,
            types.get(column.type.python_type, sa.Text)(),
            primary_key=column.name in keys,
            autoincrement=False,
        )
        for column in table.columns
    ]
    return sa.Table(table.name, metadata, *columns)
