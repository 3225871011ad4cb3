"""Brings a database to the revision this program knows, and refuses a newer one."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from outrider.errors import SchemaTooNewError
from store import schema
from store.database import Database
from store.schema import HEADS, VERSION_TABLES
from store.urls import urls_of

_MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(store_url: str) -> dict[schema.Database, str]:
    """Create or upgrade both databases of a store; returns their revisions.

    Raises SchemaTooNewError when a newer program wrote one, StoreError when one cannot be written.
    """
    for name, database in _databases(store_url).items():
        try:
            upgrade_database(database, name)
        finally:
            database.close()
    return dict(HEADS)


def revision(store_url: str) -> dict[schema.Database, str | None]:
    """The revision of both databases as they are; None where there is none yet. Creates nothing."""
    found: dict[schema.Database, str | None] = {}
    for name, database in _databases(store_url, create=False).items():
        try:
            found[name] = current(database, name) if database.exists() else None
        finally:
            database.close()
    return found


def _databases(store_url: str, *, create: bool = True) -> dict[schema.Database, Database]:
    state_url, metrics_url = urls_of(store_url)
    return {
        "state": Database(state_url, "state", create=create),
        "metrics": Database(metrics_url, "metrics", create=create),
    }


def current(database: Database, name: schema.Database) -> str | None:
    """The revision a database is at."""
    with database.reading() as connection:
        return _current(connection, name)


def _current(connection: sa.Connection, name: schema.Database) -> str | None:
    table = VERSION_TABLES[name]
    if not sa.inspect(connection).has_table(table):
        return None
    found: str | None = connection.execute(sa.text(f"SELECT version_num FROM {table}")).scalar()  # noqa: S608 - a constant
    return found


def upgrade_database(database: Database, name: schema.Database) -> None:
    """Bring one database to the newest revision. Two processes may call it at once; the second waits."""
    if current(database, name) == HEADS[name]:
        return
    with database.writing() as connection:
        found = _current(connection, name)
        if found == HEADS[name]:
            return
        _run(connection, name, found, database.place)


def opened(url: str, name: schema.Database) -> Database:
    """A database at the newest revision. Raises StoreError or SchemaTooNewError, and leaves nothing open then."""
    database = Database(url, name)
    try:
        upgrade_database(database, name)
    except BaseException:
        database.close()
        raise
    return database


def _run(connection: sa.Connection, name: schema.Database, found: str | None, place: str) -> None:
    # Alembic takes a third of a second to import and is needed once a release.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", _escaped(_MIGRATIONS))
    config.set_main_option("version_locations", _escaped(_MIGRATIONS / "versions" / name))
    config.set_main_option("path_separator", "newline")
    config.attributes.update(connection=connection, version_table=VERSION_TABLES[name])
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaTooNewError(
            f"{place} was written by a newer outrider (revision {found}; this one knows {HEADS[name]}).",
            hint="Start the newer version again, or restore a backup made before the upgrade.",
        )
    command.upgrade(config, "head")


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
