"""Writes the table and column comments into PostgreSQL, for psql and database browsers."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.schema import SetColumnComment, SetTableComment

from store.schema import metadata as schema_metadata


def write(connection: sa.Connection, name: schema_metadata.Database) -> None:
    """Sets every comment. SQLite stores none: see docs/reference/tables.md."""
    if not connection.dialect.supports_comments:
        return
    metadata = schema_metadata.metrics if name == "metrics" else schema_metadata.state
    for table in metadata.sorted_tables:
        connection.execute(SetTableComment(table))
        for column in table.columns:
            connection.execute(SetColumnComment(column))
