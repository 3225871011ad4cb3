"""One SQLite database: pooled connections, short transactions, errors in one clear sentence.

WAL lets readers and the one writer work side by side; ``synchronous=FULL`` makes a commit durable
when it returns. Writes begin with ``BEGIN IMMEDIATE``, so that two writers queue (up to
``BUSY_TIMEOUT``) where a lock upgrade in mid-transaction would fail at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from outrider.errors import StoreError

BUSY_TIMEOUT = timedelta(seconds=10)
_PAGE_BYTES = 16_384  # blocks are tens of kilobytes: four times fewer pages than by default
_SQLITE = "sqlite"

_COMPLAINTS = (  # what SQLite says, what we say, what to do
    ("disk is full", "The disk that holds {path} is full; nothing of this write was kept.",
     "Free space there, or point store.url at another disk."),
    ("readonly", "{path} cannot be written.",
     "Give the user that runs outrider write access to the file and to its folder."),
    ("not a database", "{path} is not a SQLite database.",
     "Point store.url at another file, or restore a backup."),
    ("malformed", "{path} is damaged.", "Restore a backup, or move the file away and start anew."),
    ("disk i/o error", "The disk that holds {path} fails to read or write.",
     "Look at the kernel's log for disk errors; restore a backup on another disk."),
    ("unable to open", "{path} cannot be opened.", "Check that its folder exists and may be written."),
    ("locked", "Another program has held {path} for more than 10 s.",
     "Stop it (a backup or a shell with an open transaction), then try again."),
)  # fmt: skip


def urls_of(store_url: str) -> tuple[str, str]:
    """The two databases of one ``store.url``: (state, metrics).

    ``sqlite:///x.db`` keeps state in ``x.db`` and metrics in ``x-metrics.db`` beside it. Raises
    StoreError for anything but an SQLite file.
    """
    url = _parse(store_url)
    path = Path(str(url.database))
    beside = path.with_name(f"{path.stem}-metrics{path.suffix}")
    return store_url, url.set(database=str(beside)).render_as_string(hide_password=False)


def _parse(text: str) -> sa.URL:
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError as error:
        raise StoreError(f"{text!r} is not a database URL.", hint="Write it as sqlite:///path/to/file.db") from error
    if url.get_backend_name() != _SQLITE:
        raise StoreError(
            f"A store on {url.get_backend_name()} is not supported yet.",
            hint="Set store.url to sqlite:///path/to/file.db",
        )
    if not url.database or url.database == ":memory:":
        raise StoreError(
            "A store needs a file: several processes read it.", hint="Set store.url to sqlite:///path/to/file.db"
        )
    return url


class Database:
    """Connections to one database. Threads may share it; ``close`` releases every connection."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Opens nothing yet but makes the folder (``create``). Raises StoreError when it cannot be made."""
        parsed = _parse(url)
        self.path = Path(str(parsed.database))
        if create:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreError(
                    f"The folder {self.path.parent} cannot be made: {error.strerror}.",
                    hint="Make it yourself, or point store.url elsewhere.",
                ) from error
        arguments = {"timeout": BUSY_TIMEOUT.total_seconds(), "check_same_thread": False}
        self._engine = sa.create_engine(parsed, connect_args=arguments, pool_size=5, max_overflow=20)
        sa.event.listen(self._engine, "connect", _on_connect)
        sa.event.listen(self._engine, "begin", _on_begin)
        self._writers = self._engine.execution_options(immediate=True)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection that sees one instant of the database."""
        with self._sentences(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A connection whose changes become visible and durable together when the block ends."""
        with self._sentences(), self._writers.begin() as connection:
            yield connection

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            said = str(error.orig)
            for word, sentence, hint in _COMPLAINTS:
                if word in said.lower():
                    raise StoreError(sentence.format(path=self.path), hint=hint) from error
            raise StoreError(f"{self.path} refused: {said}.", hint="Run `outrider db check`.") from error

    @property
    def checked_out(self) -> int:
        """Connections in use at this moment."""
        return int(self._engine.pool.checkedout())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Release every connection."""
        self._engine.dispose()


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver starts no transactions of its own; _on_begin does
    for pragma in (
        f"page_size={_PAGE_BYTES}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "temp_store=MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: sa.Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
