"""Takes a backup of a store at work: one file, the same for SQLite and PostgreSQL, of one instant."""

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
"""Told a stage and the share of it that is done, 0 to 1."""
_PAGES_AT_ONCE = 256  # 4 MB
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Backup:
    """What was written."""

    file: Path
    bytes: int
    manifest: archive.Manifest


def backup(store_url: str, file: Path, *, program: str, now: datetime, force: bool, progress: Progress) -> Backup:
    """Write a backup. The store may be at work: writers wait for nothing.

    ``file`` is packed by zstd when its name ends so. It is written beside its name and renamed when it is
    whole and durable. Raises UsageError for a file that is there (without ``force``) or cannot be written,
    StoreError for a store that is not there, is damaged, is newer than this program, or a disk that is too small.
    """
    if file.exists() and not force:
        raise UsageError(f"{file} is there already.", hint="Name another file, or give --force to replace it.")
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
        f"{file} cannot be written: {error.strerror}.", hint="Name a file in a folder that exists and may be written."
    )


@contextmanager
def _part(file: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """The file under its passing name, and a folder beside it; it gets its own name when the block ends well."""
    part, folder = file.with_name(f"{file.name}.part"), file.with_name(f"{file.name}.parts")
    try:
        with part.open("ab") as handle:
            _claim(handle, part, file)
            try:
                handle.truncate(0)  # what one that was killed left behind
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(mode=0o700)
                part.chmod(0o600)  # a store names people, hosts and what they did
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
    """Raise UsageError when another process writes the same file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = part.exists() and part.stat().st_ino == os.fstat(handle.fileno()).st_ino
    except BlockingIOError:
        ours = False
    if not ours:
        raise UsageError(f"Another backup is writing {file}.", hint="Wait for it, or name another file.")


@contextmanager
def _databases(store_url: str) -> Iterator[dict[metadata.Database, Database]]:
    found = runner.databases_of(store_url, create=False)
    try:
        for database in found.values():
            if not database.exists():
                raise StoreError(
                    f"There is no store at {database.place}.",
                    hint="Check store.url, or run outrider where its file is.",
                )
        yield found
    finally:
        for database in found.values():
            database.close()


def _revisions(databases: dict[metadata.Database, Database]) -> dict[metadata.Database, str]:
    found: dict[metadata.Database, str] = {}
    for name, database in databases.items():
        revision = runner.current(database, name)
        if revision is None:
            raise StoreError(f"There is no store in {database.place}.", hint="Check store.url.")
        runner.refuse_newer(name, revision, database.place)
        found[name] = revision
    return found


def _need_room(databases: dict[metadata.Database, Database], file: Path) -> None:
    """The copies and the file made of them lie on one disk until the copies go."""
    needed = _SPARE_BYTES
    for name, database in databases.items():
        with database.reading() as connection:
            needed += 2 * introspection.size(connection, name)
    need_room(file.parent, needed, "Free space there, or write the backup to another disk.")


def need_room(folder: Path, needed: int, hint: str) -> None:
    """Raise StoreError when a disk has less than so many bytes."""
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
    """Pages as they are, of one instant: each copy is made inside a read transaction that is held until its end.

    So a writer never makes the copy begin anew (without the transaction, one that commits every 20 ms made it
    begin anew for ever), and never waits for it (it writes to the WAL). Decisions
    are taken first: values of a cycle are written before what was decided upon them, and a copy has both.
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
        target.execute("PRAGMA synchronous=OFF")  # whoever is killed here begins anew
        pages.backup(
            target, pages=_PAGES_AT_ONCE, progress=lambda _, left, total: progress(1 - left / total if total else 1.0)
        )
        target.execute("PRAGMA journal_mode=DELETE")  # one file, that can be read wherever it lies
        (said,) = target.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        if "full" in str(error):
            raise StoreError(f"The disk of {path.parent.parent} is full.", hint="Free space there.") from error
        found = database.sentence(error)
        if not isinstance(found, StoreDamagedError):
            raise found from error
        said = str(error)
    finally:
        target.close()
    if said != "ok":
        raise StoreDamagedError(
            f"{database.place} is damaged ({said.strip().splitlines()[-1]}); no backup was written.",
            hint="`outrider db check` says more; restore an older backup: outrider db restore FILE --force",
        )


# --- PostgreSQL -----------------------------------------------------------------------------------


def _from_server(
    databases: dict[metadata.Database, Database],
    revisions: dict[metadata.Database, str],
    folder: Path,
    progress: Progress,
) -> dict[metadata.Database, str]:
    """Rows, of one instant: both areas are read in one REPEATABLE READ transaction."""
    with databases["state"].reading() as source:
        for name, member in archive.MEMBERS.items():
            if runner.current_on(source, name) != revisions[name]:
                raise StoreError(f"{databases[name].place} was upgraded just now.", hint="Take the backup again.")
            path = folder / member
            made = copying.file_database(path, name)
            try:
                runner.upgrade_database(made, name, to=revisions[name])
            finally:
                made.close()
            with copying.new_file(path) as target:
                copying.copy(source, target, name, partial(progress, name))
    return revisions
