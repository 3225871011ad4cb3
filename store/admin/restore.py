"""Restores a backup into SQLite files or a PostgreSQL database, whatever its source was.

The backup is unpacked, verified and upgraded in a temporary folder first. The store then changes in one step:
files are swapped (``store.sql.atomic_swap``), or one transaction empties and fills the tables.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from outrider.errors import SchemaTooNewError, StoreDamagedError, StoreError, UsageError
from store.admin import archive, copying, introspection
from store.admin.backup import Progress, need_room
from store.migrations import runner
from store.schema import metadata
from store.sql import atomic_swap
from store.sql.database import Database
from store.sql.urls import POSTGRESQL, parsed
from store.state import retention
from store.tsdb import wide_tables

_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore, with the files that hold the previous store."""

    manifest: archive.Manifest
    revisions: Mapping[metadata.Database, str]
    moved_aside: tuple[Path, ...] = ()


def restore(store_url: str, file: Path, *, now: datetime, force: bool, progress: Progress) -> RestoreResult:
    """Replaces a store by a backup. No engine may run on it: the caller holds its lock.

    On PostgreSQL the previous contents are lost; on SQLite the files are moved aside. A store with rows needs
    ``force``. A kill leaves either the old or the new store. Raises UsageError for an incomplete backup file or a store
    with rows, SchemaTooNewError, StoreError.
    """
    manifest = archive.manifest_of(file)
    for name, revision in manifest.revisions.items():
        _refuse_newer(name, revision, file)
    on_server = parsed(store_url).get_backend_name() == POSTGRESQL
    databases = runner.databases_of(store_url)
    try:
        if on_server:
            return _onto_server(databases, file, manifest, progress, force=force)
        return _into_files(databases, file, manifest, progress, force=force, now=now)
    except OSError as error:
        raise StoreError(
            f"The backup cannot be restored: {error.filename or file}: {error.strerror}.",
            hint="Fix this and try again; the store was not changed.",
        ) from error
    finally:
        for database in databases.values():
            database.close()


def _refuse_newer(name: metadata.Database, revision: str, file: Path) -> None:
    try:
        runner.refuse_newer(name, revision, str(file))
    except SchemaTooNewError as error:
        raise SchemaTooNewError(
            error.message, hint="Restore it with that version of outrider, or a newer one."
        ) from error


def _unpack(file: Path, folder: Path, progress: Progress) -> None:
    """Extracts the members into a folder, upgraded, durable, one file each."""
    archive.unpack(file, folder, partial(progress, "unpack"))
    for name, member in archive.MEMBERS.items():
        database = copying.file_database(folder / member, name)
        try:
            runner.upgrade_database(database, name)
            if name == "metrics":
                wide_tables.create(database)
        finally:
            database.close()
        _settle(folder / member)
        with (folder / member).open("rb") as written:
            os.fsync(written.fileno())


# --- SQLite ---------------------------------------------------------------------------------------


def _into_files(
    databases: dict[metadata.Database, Database], file: Path, manifest: archive.Manifest, progress: Progress, *,
    force: bool, now: datetime,
) -> RestoreResult:  # fmt: skip
    files = {name: database.file for name, database in databases.items() if database.file is not None}
    filled = {name: _has_rows(database) for name, database in databases.items()}
    _need_force(force or not any(filled.values()), databases["state"].display_name)
    for database in databases.values():
        database.close()
    for path in files.values():
        if atomic_swap.in_use(path):
            raise StoreError(
                f"Another program has {path} open.", hint="Stop outrider and every shell on that file, then try again."
            )
        _settle(path)
    state = files["state"]
    folder = state.with_name(f".{state.name}.restore")
    shutil.rmtree(folder, ignore_errors=True)  # left behind by a killed run
    try:
        folder.mkdir(mode=0o700)
        need_room(folder, manifest.bytes + _SPARE_BYTES, "Free disk space: the old files stay until you delete them.")
        _unpack(file, folder, progress)
        mark = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
        moves = []
        for name, path in files.items():
            ready = path.with_name(f"{path.name}.restored")
            (folder / archive.MEMBERS[name]).replace(ready)
            moves.append(atomic_swap.Move(ready.name, path.name, _free(path, mark) if filled[name] else None))
        atomic_swap.swap(state, moves)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    aside = tuple(state.with_name(move.aside) for move in moves if move.aside is not None)
    return RestoreResult(manifest, dict(metadata.HEADS), aside)


def _free(path: Path, mark: str) -> str:
    """An unused file name for the previous file."""
    names = (
        f"{path.name}.before-{mark}{more}" for more in itertools.chain([""], (f"-{n}" for n in itertools.count(2)))
    )
    return next(name for name in names if not path.with_name(name).exists())


def _has_rows(database: Database) -> bool:
    """False if every table of a file is empty. An unreadable file counts as filled."""
    if not database.exists():
        return False
    try:
        with database.reading() as connection:
            names = sa.inspect(connection).get_table_names()
            tables = [sa.table(name) for name in names if name not in metadata.VERSION_TABLES.values()]
            return any(_has_row(connection, table) for table in tables)
    except StoreDamagedError:
        return True


def _settle(path: Path) -> None:
    """Merges the WAL into its file. A damaged file keeps its WAL."""
    if not path.exists():
        return
    with suppress(sqlite3.Error):
        plain = sqlite3.connect(path, isolation_level=None, timeout=1.0)
        try:
            plain.execute("PRAGMA journal_mode=DELETE")
        finally:
            plain.close()


def _need_force(allowed: bool, display_name: str) -> None:
    if not allowed:
        raise UsageError(
            f"The store in {display_name} is not empty.",
            hint="Give --force to put the backup in its place (SQLite files are moved aside, PostgreSQL tables are "
            "emptied), or point store.url elsewhere.",
        )


# --- PostgreSQL -----------------------------------------------------------------------------------


def _onto_server(
    databases: dict[metadata.Database, Database], file: Path, manifest: archive.Manifest, progress: Progress, *,
    force: bool,
) -> RestoreResult:  # fmt: skip
    display_name = databases["state"].display_name
    with databases["state"].reading() as connection:
        _refuse_unknown(connection, display_name)
        _need_force(force or not _any_rows(connection), display_name)
    with tempfile.TemporaryDirectory(prefix="outrider-restore-") as temporary:
        folder = Path(temporary)
        need_room(
            folder, manifest.bytes + _SPARE_BYTES, "Free space there, or set TMPDIR to a folder on a larger disk."
        )
        _unpack(file, folder, progress)
        with databases["state"].writing(everything=True) as connection:
            _refuse_unknown(connection, display_name)
            _need_force(force or not _any_rows(connection), display_name)  # written meanwhile by another process
            for name in archive.MEMBERS:
                runner.upgrade_on(connection, name, display_name)
            wide_tables.create_on(connection)
            _fill(connection, folder, progress)
    return RestoreResult(manifest, dict(metadata.HEADS))


def _refuse_unknown(connection: sa.Connection, display_name: str) -> None:
    for name in archive.MEMBERS:
        try:
            runner.refuse_newer(name, runner.current_on(connection, name), display_name)
        except SchemaTooNewError as error:
            raise SchemaTooNewError(
                error.message,
                hint="A backup of an older version needs an empty database: create one with createdb, point store.url "
                "to it, and restore there.",
            ) from error


def _any_rows(connection: sa.Connection) -> bool:
    return any(_has_row(connection, table) for name in archive.MEMBERS for table in introspection.of(connection, name))


def _has_row(connection: sa.Connection, table: sa.FromClause) -> bool:
    return connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None


def _fill(connection: sa.Connection, folder: Path, progress: Progress) -> None:
    with retention.allowing_deletes(connection):
        for name in archive.MEMBERS:
            for table in introspection.of(connection, name):
                if _has_row(connection, table) and table.name != metadata.flag.name:
                    connection.exec_driver_sql(f"TRUNCATE {_quoted(connection, table)} CASCADE")
    connection.execute(sa.delete(metadata.flag))
    for name, member in archive.MEMBERS.items():
        source = copying.file_database(folder / member, name)
        try:
            with source.reading() as rows:
                copied = copying.copy(rows, connection, name, partial(progress, name))
        finally:
            source.close()
        for table in introspection.of(connection, name):
            if copied.get(table.name):
                connection.exec_driver_sql(f"ANALYZE {_quoted(connection, table)}")


def _quoted(connection: sa.Connection, table: sa.Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)
