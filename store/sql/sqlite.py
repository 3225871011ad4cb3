"""SQLite: one file, WAL, durable commits, writers that queue.

WAL lets readers and the one writer work side by side; ``synchronous=FULL`` makes a commit durable
when it returns. Writes begin with ``BEGIN IMMEDIATE``, so that two writers queue (up to
``BUSY_TIMEOUT``) where a lock upgrade in mid-transaction would fail at once.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from outrider.errors import StoreDamagedError, StoreError, StoreUnavailableError
from store.sql.backend import BUSY_TIMEOUT, DatabaseHandle

_PAGE_BYTES = 16_384  # blocks are tens of kilobytes: four times fewer pages than by default

_WAL_BYTES = 64 << 20

_SHRINKS = "auto_vacuum=INCREMENTAL"
_ON_CONNECT = (
    f"page_size={_PAGE_BYTES}",
    _SHRINKS,  # takes effect in a new file alone, before its first table
    "journal_mode=WAL",
    f"journal_size_limit={_WAL_BYTES}",  # of one that a long reader let grow, the rest is cut off
    "synchronous=FULL",
    "foreign_keys=ON",
    "temp_store=MEMORY",
)


_DAMAGE = ("not a database", "malformed", "disk i/o error")
_COMPLAINTS = (  # what SQLite says, what we say, what to do
    ("disk is full", "The disk that holds {path} is full; nothing of this write was kept.",
     "Free space there, or point store.url at another disk."),
    ("readonly", "{path} cannot be written.",
     "Give the user that runs outrider write access to the file and to its folder."),
    ("not a database", "{path} is not a SQLite database.",
     "Point store.url at another file; if it was the store, restore a backup: outrider db restore FILE --force"),
    ("malformed", "{path} is damaged.",
     "`outrider db check --deep` names what is damaged; restore a backup: outrider db restore FILE --force"),
    ("disk i/o error", "The disk that holds {path} fails to read or write.",
     "Look at the kernel's log for disk errors; point store.url at another disk, then outrider db restore FILE"),
    ("unable to open", "{path} cannot be opened.", "Check that its folder exists and may be written."),
    ("locked", "Another program has held {path} for more than 10 s.",
     "Stop it (a backup or a shell with an open transaction), then try again."),
)  # fmt: skip


def open_file(url: sa.URL, *, create: bool) -> DatabaseHandle:
    """Connections to a file; opens nothing yet but makes its folder (``create``). Raises StoreError."""
    path = Path(str(url.database))
    if create:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The folder {path.parent} cannot be made: {error.strerror}.",
                hint="Make it yourself, or point store.url elsewhere.",
            ) from error
    arguments = {"timeout": BUSY_TIMEOUT.total_seconds(), "check_same_thread": False}
    engine = sa.create_engine(url, connect_args=arguments, pool_size=5, max_overflow=20)
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _on_begin)
    writers = engine.execution_options(immediate=True)
    return DatabaseHandle(engine, engine, writers, str(path), _sentence, lambda: _vacuum(engine), file=path)


def _vacuum(engine: sa.Engine) -> None:
    """Rebuild the file; from then on it can give room back bit by bit, also one made before it could."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute(f"PRAGMA {_SHRINKS}")
        connection.cursor().execute("VACUUM")
    except sqlite3.Error as error:
        raise sa.exc.DBAPIError("VACUUM", None, error) from error
    finally:
        connection.close()


def _sentence(error: sa.exc.DBAPIError, place: str) -> StoreError | None:
    said = str(error.orig).lower()
    for word, sentence, hint in _COMPLAINTS:
        if word in said:
            kind = StoreDamagedError if word in _DAMAGE else StoreUnavailableError
            return kind(sentence.format(path=place), hint=hint)
    return None


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver starts no transactions of its own; _on_begin does
    for pragma in _ON_CONNECT:
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: sa.Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
