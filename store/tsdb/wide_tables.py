"""Creation of the wide tables ``latest_<kind>`` and ``hourly_<kind>``, whose columns follow the signal catalog."""

from __future__ import annotations

import sqlalchemy as sa

from store.sql.database import Database
from store.tsdb import hourly, latest


def create(database: Database) -> None:
    """Creates missing tables and columns. Takes no write lock if nothing is missing."""
    latest.create(database)
    hourly.create(database)


def create_on(connection: sa.Connection) -> None:
    """Creates missing tables and columns inside the caller's transaction."""
    for statement in latest.missing(connection):
        connection.exec_driver_sql(statement)
    for ddl in hourly.missing(connection):
        connection.execute(ddl)
