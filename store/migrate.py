"""Upgrades a whole store and reports its revisions."""

from __future__ import annotations

from store.migrations.runner import current, databases_of, upgrade_database
from store.schema import metadata
from store.schema.metadata import HEADS
from store.tsdb import wide_tables

__all__ = ["databases_of", "revision", "upgrade"]


def upgrade(store_url: str) -> dict[metadata.Database, str]:
    """Creates or upgrades both databases of a store, wide tables included; returns their revisions.

    Raises SchemaTooNewError if a newer program wrote one, StoreError if one cannot be written.
    """
    for name, database in databases_of(store_url).items():
        try:
            upgrade_database(database, name)
            if name == "metrics":
                wide_tables.create(database)
        finally:
            database.close()
    return dict(HEADS)


def revision(store_url: str) -> dict[metadata.Database, str | None]:
    """The current revision of both databases; None for one that does not exist. Creates nothing."""
    revisions: dict[metadata.Database, str | None] = {}
    for name, database in databases_of(store_url, create=False).items():
        try:
            revisions[name] = current(database, name) if database.exists() else None
        finally:
            database.close()
    return revisions
