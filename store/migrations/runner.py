"""Applies the Alembic revisions to one database, and refuses a database of a newer program."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from outrider.errors import SchemaTooNewError
from store.schema import comments, metadata
from store.schema.metadata import HEADS, VERSION_TABLES
from store.sql.database import Database
from store.sql.urls import urls_of

_MIGRATIONS = Path(__file__).parent
_UPGRADING = threading.Lock()  # Alembic keeps the context of a run in global state; SQLite's waiters take no turns


def databases_of(store_url: str, *, create: bool = True) -> dict[metadata.Database, Database]:
    """Both databases of a store, not connected yet. The caller closes them."""
    state_url, metrics_url = urls_of(store_url)
    return {
        "state": Database(state_url, "state", create=create),
        "metrics": Database(metrics_url, "metrics", create=create),
    }


def open_upgraded(url: str, name: metadata.Database) -> Database:
    """A database at the newest revision. Raises StoreError or SchemaTooNewError; closes the database then."""
    database = Database(url, name)
    try:
        upgrade_database(database, name)
    except BaseException:
        database.close()
        raise
    return database


def current(database: Database, name: metadata.Database) -> str | None:
    """The revision of a database; None before the first upgrade."""
    with database.reading() as connection:
        return current_on(connection, name)


def current_on(connection: sa.Connection, name: metadata.Database) -> str | None:
    """The revision that a connection sees; None before the first upgrade."""
    table = VERSION_TABLES[name]
    if not sa.inspect(connection).has_table(table):
        return None
    revision: str | None = connection.execute(sa.text(f"SELECT version_num FROM {table}")).scalar()  # noqa: S608 - a constant
    return revision


def upgrade_database(database: Database, name: metadata.Database, *, to: str = "head") -> None:
    """Upgrades one database to the newest revision, or to an older one that it has not reached (``to``).

    Of two processes or threads that call it at once, the second waits.
    """
    with _UPGRADING:
        if current(database, name) == HEADS[name]:
            return
        with database.writing() as connection:
            upgrade_on(connection, name, database.display_name, to=to)


def upgrade_on(connection: sa.Connection, name: metadata.Database, display_name: str, *, to: str = "head") -> None:
    """Upgrades inside the caller's transaction. Raises SchemaTooNewError."""
    revision = current_on(connection, name)
    if revision == HEADS[name]:
        return
    refuse_newer(name, revision, display_name)
    from alembic import command  # noqa: PLC0415

    config = _config(name)
    config.attributes.update(connection=connection, version_table=VERSION_TABLES[name])
    command.upgrade(config, to)
    if current_on(connection, name) == HEADS[name]:
        comments.write(connection, name)


def refuse_newer(name: metadata.Database, revision: str | None, display_name: str) -> None:
    """Raises SchemaTooNewError for a revision that this program does not know."""
    if revision is None or revision == HEADS[name] or revision in _known(name):
        return
    raise SchemaTooNewError(
        f"{display_name} was written by a newer outrider (revision {revision}; this one knows {HEADS[name]}).",
        hint="Start the newer version again, or restore a backup made before it: outrider db restore FILE --force",
    )


def _config(name: metadata.Database) -> Any:
    # Importing Alembic takes a third of a second, and it is needed once per release.
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", _escape(_MIGRATIONS))
    config.set_main_option("version_locations", _escape(_MIGRATIONS / "versions" / name))
    config.set_main_option("path_separator", "newline")
    return config


def _known(name: metadata.Database) -> set[str]:
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    return {script.revision for script in ScriptDirectory.from_config(_config(name)).walk_revisions()}


def _escape(path: Path) -> str:
    return str(path).replace("%", "%%")
