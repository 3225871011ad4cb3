"""Heartbeats in the state database."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from store.schema import metadata
from store.schema.metadata import instant, micros
from store.sql.backend import put
from store.sql.database import Database


class SqlHeartbeats:
    """Implements ``outrider.records.heartbeats.HeartbeatStore`` for a store with a ``_database``."""

    _database: Database

    def heartbeats(self) -> dict[str, datetime]:
        """The last heartbeat of each name."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(metadata.heartbeat)).all()
        return {row.name: instant(row.at_us) for row in rows}

    def beat(self, name: str, at: datetime) -> None:
        """Records a heartbeat."""
        with self._database.writing() as connection:
            put(connection, metadata.heartbeat, {"name": name, "at_us": micros(at)})
