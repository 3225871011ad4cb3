"""Puts what each table and column means into PostgreSQL, where the shell and every browser of databases show it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.schema import SetColumnComment, SetTableComment

from store.schema import metadata as schema_metadata


def write(connection: sa.Connection, name: schema_metadata.Database) -> None:
    """Set every comment anew. SQLite keeps none: there docs/reference/tables.md is the place."""
    if not connection.dialect.supports_comments:
        return
    metadata = schema_metadata.metrics if name == "metrics" else schema_metadata.state
    for table in metadata.sorted_tables:
        connection.execute(SetTableComment(table))
        for column in table.columns:
            connection.execute(SetColumnComment(column))
