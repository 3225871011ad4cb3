"""Online backup of a store: one consistent file, the same for SQLite and PostgreSQL."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import IO

import sqlalchemy as sa

from outrider.errors import StoreDamagedError, StoreError, UsageError
from outrider.vocabulary.units import format_value
from store.admin import archive, copying, introspection
from store.migrations import runner
from store.schema import metadata
from store.sql.atomic_swap import sync_folder
from store.sql.database import Database
from store.sql.urls import POSTGRESQL, SQLITE, parsed

Progress = Callable[[str, float], None]
"""Receives a stage name and the completed share, 0 to 1."""
_PAGES_AT_ONCE = 256  # 4 MB
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Backup:
    """Result of a backup."""

    file: Path
    bytes: int
    manifest: archive.Manifest


def backup(store_url: str, file: Path, *, program: str, now: datetime, force: bool, progress: Progress) -> Backup:
    """Writes a backup of a store in use. Writers never wait for it.

    ``file`` is zstd-compressed if its suffix says so. It is written under a temporary name and renamed once complete
    and durable. Raises UsageError for a file that exists (without ``force``) or cannot be written. Raises StoreError
    for a store that is missing, damaged or newer than this program, or a disk that is too small.
    """
    if file.exists() and not force:
        raise UsageError(f"{file} already exists.", hint="Name another file, or give --force to replace it.")
    on_server = parsed(store_url).get_backend_name() == POSTGRESQL
    with _part(file) as (part, folder), _databases(store_url) as databases:
        revisions = _revisions(databases)
        _need_room(databases, file)
        copied = (_from_server if on_server else _from_files)(databases, revisions, folder, progress)
        members = {name: archive.member_of(folder / name) for name in archive.MEMBERS.values()}
        manifest = archive.Manifest(program, POSTGRESQL if on_server else SQLITE, now, copied, members)
        packed = file.suffix in (".zst", ".tzst")
        archive.pack(part, manifest, folder, partial(progress, "pack"), packed=packed)
    return Backup(file, file.stat().st_size, manifest)


def _unwritable(file: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{file} cannot be written: {error.strerror}.", hint="Name a file in a folder that exists and is writable."
    )


@contextmanager
def _part(file: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """The temporary file and a temporary folder next to it. Renames the file when the block succeeds."""
    part, folder = file.with_name(f"{file.name}.part"), file.with_name(f"{file.name}.parts")
    try:
        with part.open("ab") as handle:
            _claim(handle, part, file)
            try:
                handle.truncate(0)  # left behind by a killed run
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(mode=0o700)
                part.chmod(0o600)  # a store contains names of people and hosts
                yield handle, folder
                handle.flush()
                os.fsync(handle.fileno())
                shutil.rmtree(folder)
                part.replace(file)
                sync_folder(file.parent)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise _unwritable(file, error) from error


def _claim(handle: IO[bytes], part: Path, file: Path) -> None:
    """Raises UsageError if another process writes the same file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = part.exists() and part.stat().st_ino == os.fstat(handle.fileno()).st_ino
    except BlockingIOError:
        ours = False
    if not ours:
        raise UsageError(f"Another backup is writing {file}.", hint="Wait for it, or name another file.")


@contextmanager
def _databases(store_url: str) -> Iterator[dict[metadata.Database, Database]]:
    databases = runner.databases_of(store_url, create=False)
    try:
        for database in databases.values():
            if not database.exists():
                raise StoreError(
                    f"No store found at {database.display_name}.",
                    hint="Check store.url, or run outrider in the folder of the file.",
                )
        yield databases
    finally:
        for database in databases.values():
            database.close()


def _revisions(databases: dict[metadata.Database, Database]) -> dict[metadata.Database, str]:
    revisions: dict[metadata.Database, str] = {}
    for name, database in databases.items():
        revision = runner.current(database, name)
        if revision is None:
            raise StoreError(f"No store found in {database.display_name}.", hint="Check store.url.")
        runner.refuse_newer(name, revision, database.display_name)
        revisions[name] = revision
    return revisions


def _need_room(databases: dict[metadata.Database, Database], file: Path) -> None:
    """Checks for twice the size of the databases: the copies and the file made from them coexist."""
    needed = _SPARE_BYTES
    for name, database in databases.items():
        with database.reading() as connection:
            needed += 2 * introspection.size(connection, name)
    need_room(file.parent, needed, "Free space there, or write the backup to another disk.")


def need_room(folder: Path, needed: int, hint: str) -> None:
    """Raises StoreError if a disk has fewer free bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StoreError(
            f"The disk of {folder.resolve()} has {format_value(free, 'bytes')} free; "
            f"this needs {format_value(needed, 'bytes')}.",
            hint=hint,
        )


# --- SQLite ---------------------------------------------------------------------------------------


def _from_files(
    databases: dict[metadata.Database, Database], _: dict[metadata.Database, str], folder: Path, progress: Progress
) -> dict[metadata.Database, str]:
    """Copies pages inside one read transaction per database, held until the copy ends.

    Without that transaction every commit restarts the copy; a commit every 20 ms restarts it forever. A writer never
    waits: it writes to the WAL. The state database is copied first. A cycle writes values before decisions, so that
    the backup has the values of every decision.
    """
    revisions: dict[metadata.Database, str] = {}
    with ExitStack() as stack:
        connections = {name: stack.enter_context(database.reading()) for name, database in databases.items()}
        for name in archive.MEMBERS:
            revision = runner.current_on(connections[name], name)  # the first read fixes the instant
            revisions[name] = revision or ""
        for name, member in archive.MEMBERS.items():
            _copy_pages(databases[name], connections[name], folder / member, partial(progress, name))
    return revisions


def _copy_pages(database: Database, source: sa.Connection, path: Path, progress: Callable[[float], None]) -> None:
    pages: sqlite3.Connection = source.connection.driver_connection  # type: ignore[assignment]
    target = sqlite3.connect(path, isolation_level=None)
    try:
        target.execute("PRAGMA synchronous=OFF")  # a killed copy is started again from scratch
        pages.backup(
            target, pages=_PAGES_AT_ONCE, progress=lambda _, left, total: progress(1 - left / total if total else 1.0)
        )
        target.execute("PRAGMA journal_mode=DELETE")  # a single file, readable anywhere
        (message,) = target.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        if "full" in str(error):
            raise StoreError(f"The disk of {path.parent.parent} is full.", hint="Free space there.") from error
        result = database.translate(error)
        if not isinstance(result, StoreDamagedError):
            raise result from error
        message = str(error)
    finally:
        target.close()
    if message != "ok":
        raise StoreDamagedError(
            f"{database.display_name} is damaged ({message.strip().splitlines()[-1]}); no backup was written.",
            hint="Run `outrider db check` for details; restore an older backup: outrider db restore FILE --force",
        )


# --- PostgreSQL -----------------------------------------------------------------------------------


def _from_server(
    databases: dict[metadata.Database, Database],
    revisions: dict[metadata.Database, str],
    folder: Path,
    progress: Progress,
) -> dict[metadata.Database, str]:
    """Copies rows of both databases in one REPEATABLE READ transaction."""
    with databases["state"].reading() as source:
        for name, member in archive.MEMBERS.items():
            if runner.current_on(source, name) != revisions[name]:
                raise StoreError(
                    f"{databases[name].display_name} was upgraded during the backup.", hint="Take the backup again."
                )
            path = folder / member
            new_database = copying.file_database(path, name)
            try:
                runner.upgrade_database(new_database, name, to=revisions[name])
            finally:
                new_database.close()
            with copying.new_file(path) as target:
                copying.copy(source, target, name, partial(progress, name))
    return revisions
