"""One database: pooled connections, short transactions, errors in one clear sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from outrider.errors import StoreError
from store.backend import Opened
from store.postgresql import open_server
from store.sqlite import open_file
from store.urls import POSTGRESQL, parsed

_LOCK = sa.text("SELECT pg_advisory_xact_lock(:key)")


class Database:
    """Connections to one database. Threads may share it; ``close`` releases every connection."""

    def __init__(self, url: str, area: str = "state", *, create: bool = True) -> None:
        """Opens nothing yet but makes the folder of a file (``create``). Raises StoreError when it cannot be made.

        ``area`` is what the database is opened for, ``state`` or ``metrics``: on a server that holds
        both, writers of one do not wait for those of the other.
        """
        where = parsed(url)
        server = where.get_backend_name() == POSTGRESQL
        self._opened: Opened = open_server(where, area) if server else open_file(where, create=create)
        self.place = self._opened.place
        self.file = self._opened.file

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection that sees one instant of the database."""
        with self._sentences(), self._opened.readers.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A connection whose changes become visible and durable together when the block ends; one at a time."""
        with self._sentences(), self._opened.writers.begin() as connection:
            if self._opened.writer_lock is not None:
                connection.execute(_LOCK, {"key": self._opened.writer_lock})
            yield connection

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            found = self._opened.sentence(error, self.place)
            if found is None:
                said = str(error.orig).strip()
                found = StoreError(f"{self.place} refused: {said}.", hint="Run `outrider db check`.")
            raise found from error
        except sa.exc.TimeoutError as error:
            raise StoreError(
                f"Too many connections to {self.place} are in use.", hint="Try again; fewer readers at once help."
            ) from error

    def vacuum(self) -> None:
        """Rebuild the file (or let the server look for dead rows), outside of any transaction."""
        with self._sentences():
            self._opened.vacuum()

    def exists(self) -> bool:
        """False for a file that is not there yet. A server is asked only when it is read."""
        return self.file is None or self.file.exists()

    @property
    def checked_out(self) -> int:
        """Connections in use at this moment."""
        return int(self._opened.pool.pool.checkedout())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Release every connection."""
        self._opened.pool.dispose()
