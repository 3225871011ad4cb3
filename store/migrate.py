"""Brings a database to the revision this program knows, and refuses a newer one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from outrider.errors import SchemaTooNewError
from store.schema import comments, metadata
from store.schema.metadata import HEADS, VERSION_TABLES
from store.sql.database import Database
from store.sql.urls import urls_of
from store.tsdb import hourly, latest

_MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(store_url: str) -> dict[metadata.Database, str]:
    """Create or upgrade both databases of a store, tables that follow the catalogue included; returns their revisions.

    Raises SchemaTooNewError when a newer program wrote one, StoreError when one cannot be written.
    """
    for name, database in databases(store_url).items():
        try:
            upgrade_database(database, name)
            create_wide(database, name)
        finally:
            database.close()
    return dict(HEADS)


def create_wide(database: Database, name: metadata.Database) -> None:
    """Make the tables that follow the signal catalogue, and columns of signals that are new in it."""
    if name == "metrics":
        latest.create(database)
        hourly.create(database)


def create_wide_on(connection: sa.Connection) -> None:
    """The same inside the caller's transaction."""
    for statement in latest.missing(connection):
        connection.exec_driver_sql(statement)
    for made in hourly.missing(connection):
        connection.execute(made)


def revision(store_url: str) -> dict[metadata.Database, str | None]:
    """The revision of both databases as they are; None where there is none yet. Creates nothing."""
    found: dict[metadata.Database, str | None] = {}
    for name, database in databases(store_url, create=False).items():
        try:
            found[name] = current(database, name) if database.exists() else None
        finally:
            database.close()
    return found


def databases(store_url: str, *, create: bool = True) -> dict[metadata.Database, Database]:
    """Both databases of a store, not opened yet; closing them stays with the caller."""
    state_url, metrics_url = urls_of(store_url)
    return {
        "state": Database(state_url, "state", create=create),
        "metrics": Database(metrics_url, "metrics", create=create),
    }


def current(database: Database, name: metadata.Database) -> str | None:
    """The revision a database is at."""
    with database.reading() as connection:
        return current_on(connection, name)


def current_on(connection: sa.Connection, name: metadata.Database) -> str | None:
    """The same, as a connection sees it."""
    table = VERSION_TABLES[name]
    if not sa.inspect(connection).has_table(table):
        return None
    found: str | None = connection.execute(sa.text(f"SELECT version_num FROM {table}")).scalar()  # noqa: S608 - a constant
    return found


def upgrade_database(database: Database, name: metadata.Database, *, to: str = "head") -> None:
    """Bring one database to the newest revision, or to an older one that it has not reached (``to``).

    Two processes may call it at once; the second waits.
    """
    if current(database, name) == HEADS[name]:
        return
    with database.writing() as connection:
        upgrade_on(connection, name, database.place, to=to)


def upgrade_on(connection: sa.Connection, name: metadata.Database, place: str, *, to: str = "head") -> None:
    """The same inside the caller's transaction. Raises SchemaTooNewError."""
    found = current_on(connection, name)
    if found == HEADS[name]:
        return
    refuse_newer(name, found, place)
    from alembic import command  # noqa: PLC0415

    config = _config(name)
    config.attributes.update(connection=connection, version_table=VERSION_TABLES[name])
    command.upgrade(config, to)
    if current_on(connection, name) == HEADS[name]:
        comments.write(connection, name)


def refuse_newer(name: metadata.Database, found: str | None, place: str) -> None:
    """Raise SchemaTooNewError for a revision that this program does not know."""
    if found is None or found == HEADS[name] or found in _known(name):
        return
    raise SchemaTooNewError(
        f"{place} was written by a newer outrider (revision {found}; this one knows {HEADS[name]}).",
        hint="Start the newer version again, or restore a backup made before it: outrider db restore FILE --force",
    )


def opened(url: str, name: metadata.Database) -> Database:
    """A database at the newest revision. Raises StoreError or SchemaTooNewError, and leaves nothing open then."""
    database = Database(url, name)
    try:
        upgrade_database(database, name)
    except BaseException:
        database.close()
        raise
    return database


def _config(name: metadata.Database) -> Any:
    # Alembic takes a third of a second to import and is needed once a release.
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", _escaped(_MIGRATIONS))
    config.set_main_option("version_locations", _escaped(_MIGRATIONS / "versions" / name))
    config.set_main_option("path_separator", "newline")
    return config


def _known(name: metadata.Database) -> set[str]:
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    return {script.revision for script in ScriptDirectory.from_config(_config(name)).walk_revisions()}


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
