"""One database: pooled connections, short transactions, clear error messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from outrider.errors import StoreError
from store.sql import atomic_swap
from store.sql.backend import DatabaseHandle
from store.sql.postgresql import open_server, writer_key
from store.sql.sqlite import open_file
from store.sql.urls import POSTGRESQL, parsed, state_file

_LOCK = sa.text("SELECT pg_advisory_xact_lock(:key)")


class Database:
    """Connections to one database. Threads may share it; ``close`` releases every connection."""

    def __init__(self, url: str, area: str = "state", *, create: bool = True) -> None:
        """Opens no connection. Creates the folder of a file (``create``) and completes an interrupted restore.

        Raises StoreError if it cannot. ``area`` is ``state`` or ``metrics``: on a server that holds both, writers of
        one area do not wait for writers of the other.
        """
        address = parsed(url)
        server = address.get_backend_name() == POSTGRESQL
        self._opened: DatabaseHandle = open_server(address, area) if server else open_file(address, create=create)
        self.display_name = self._opened.display_name
        self.file = self._opened.file
        if self.file is not None:
            atomic_swap.finish(state_file(self.file, area))

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A connection that reads one snapshot of the database."""
        with self._translating(), self._opened.readers.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, *, everything: bool = False) -> Iterator[sa.Connection]:
        """A connection whose changes become visible and durable together when the block ends. One at a time.

        ``everything`` also blocks writers of the other area on the same server.
        """
        with self._translating(), self._opened.writers.begin() as connection:
            if self._opened.writer_lock is not None:
                areas = sorted(map(writer_key, ("state", "metrics"))) if everything else [self._opened.writer_lock]
                for key in areas:
                    connection.execute(_LOCK, {"key": key})
            yield connection

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise self._translated(error) from error
        except sa.exc.TimeoutError as error:
            raise StoreError(
                f"Too many connections to {self.display_name} are in use.",
                hint="Try again, with fewer concurrent readers.",
            ) from error

    def vacuum(self) -> None:
        """Rebuilds the file, or runs VACUUM on a server, outside any transaction."""
        with self._translating():
            self._opened.vacuum()

    def _translated(self, error: sa.exc.DBAPIError) -> StoreError:
        translated = self._opened.translate(error, self.display_name)
        if translated is None:
            message = str(error.orig).strip()
            translated = StoreError(
                f"{self.display_name} rejected the statement: {message}.", hint="Run `outrider db check`."
            )
        return translated

    def translate(self, error: Exception) -> StoreError:
        """The StoreError for a driver error, for code that calls the driver directly."""
        return self._translated(sa.exc.DBAPIError(None, None, error))

    def exists(self) -> bool:
        """False for a missing file. True for a server, which is contacted only on reads."""
        return self.file is None or self.file.exists()

    @property
    def checked_out(self) -> int:
        """Connections in use."""
        return int(self._opened.pool.pool.checkedout())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Releases every connection."""
        self._opened.pool.dispose()
