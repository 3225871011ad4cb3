"""SQLite backend: one file, WAL, durable commits, queued writers.

WAL lets readers run beside the one writer; ``synchronous=FULL`` makes a commit durable when it returns. Writes start
with ``BEGIN IMMEDIATE``: two writers queue for up to ``BUSY_TIMEOUT``, instead of failing on a lock upgrade.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from outrider.errors import StoreDamagedError, StoreError, StoreUnavailableError
from store.sql.backend import BUSY_TIMEOUT, DatabaseHandle

_PAGE_BYTES = 16_384  # blocks are tens of kilobytes: a quarter of the pages that the default needs

_WAL_BYTES = 64 << 20

_INCREMENTAL_VACUUM = "auto_vacuum=INCREMENTAL"
_ON_CONNECT = (
    f"page_size={_PAGE_BYTES}",
    _INCREMENTAL_VACUUM,  # only takes effect in a new file, before its first table
    "journal_mode=WAL",
    f"journal_size_limit={_WAL_BYTES}",  # truncates a WAL that a long reader let grow
    "synchronous=FULL",
    "foreign_keys=ON",
    "temp_store=MEMORY",
)


_DAMAGE = ("not a database", "malformed", "disk i/o error")
_ERRORS = (  # message of SQLite, our message, hint
    ("disk is full", "The disk that holds {path} is full; this write was rolled back.",
     "Free space there, or point store.url at another disk."),
    ("readonly", "{path} cannot be written.",
     "Give the user that runs outrider write access to the file and to its folder."),
    ("not a database", "{path} is not a SQLite database.",
     "Point store.url at another file; if it was the store, restore a backup: outrider db restore FILE --force"),
    ("malformed", "{path} is damaged.",
     "`outrider db check --deep` lists what is damaged; restore a backup: outrider db restore FILE --force"),
    ("disk i/o error", "The disk that holds {path} fails to read or write.",
     "Check the kernel log for disk errors; point store.url at another disk, then outrider db restore FILE"),
    ("unable to open", "{path} cannot be opened.", "Check that its folder exists and is writable."),
    ("locked", "Another program has locked {path} for more than 10 s.",
     "Stop it (a backup or a shell with an open transaction), then try again."),
)  # fmt: skip


def open_file(url: sa.URL, *, create: bool) -> DatabaseHandle:
    """Connections to a file; only creates its folder (``create``). Raises StoreError."""
    path = Path(str(url.database))
    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The folder {path.parent} cannot be created: {error.strerror}.",
                hint="Create it, or point store.url elsewhere.",
            ) from error
    arguments = {"timeout": BUSY_TIMEOUT.total_seconds(), "check_same_thread": False}
    engine = sa.create_engine(url, connect_args=arguments, pool_size=5, max_overflow=20)
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _on_begin)
    writers = engine.execution_options(immediate=True)
    return DatabaseHandle(engine, engine, writers, str(path), _translate, lambda: _vacuum(engine), file=path)


def _vacuum(engine: sa.Engine) -> None:
    """Rebuilds the file, with incremental vacuum enabled from then on."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(f"PRAGMA {_INCREMENTAL_VACUUM}")
        connection.cursor().execute("VACUUM")
    except sqlite3.Error as error:
        raise sa.exc.DBAPIError("VACUUM", None, error) from error
    finally:
        connection.close()


def _translate(error: sa.exc.DBAPIError, display_name: str) -> StoreError | None:
    message = str(error.orig).lower()
    for word, sentence, hint in _ERRORS:
        if word in message:
            kind = StoreDamagedError if word in _DAMAGE else StoreUnavailableError
            return kind(sentence.format(path=display_name), hint=hint)
    return None


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver must not start transactions; _on_begin does
    for pragma in _ON_CONNECT:
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: sa.Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
