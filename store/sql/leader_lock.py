"""Leader lock of a store on PostgreSQL: a session-level advisory lock that ends with its session."""

from __future__ import annotations

from threading import RLock

import sqlalchemy as sa

from outrider.errors import StoreError
from store.sql.postgresql import lock_key, open_server
from store.sql.urls import parsed

_KEY = lock_key("engine")
_TAKE = sa.text("SELECT pg_try_advisory_lock(:key)")
_PING = sa.text("SELECT 1")
_HOLDER = sa.text(
    "SELECT a.pid, coalesce(host(a.client_addr), 'its own host') FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND (l.classid::bigint << 32) + l.objid::bigint = :key"
)


class AdvisoryLease:
    """Holds the lock while its connection lives; the server releases it if the process or the network dies."""

    def __init__(self, url: str) -> None:
        """Opens no connection. Raises StoreError without the driver."""
        self._server = open_server(parsed(url), "lease")
        self._connection: sa.Connection | None = None
        self._mutex = RLock()  # a connection is not thread-safe

    def take(self) -> bool:
        """Takes the lock; False if another session holds it. Raises StoreUnavailableError."""
        with self._mutex:
            self.release()
            return self._try()

    def _try(self) -> bool:
        try:
            connection = self._server.pool.connect().execution_options(isolation_level="AUTOCOMMIT")
            if connection.execute(_TAKE, {"key": _KEY}).scalar():
                self._connection = connection
                return True
            connection.close()
        except sa.exc.DBAPIError as error:
            raise self._translated(error) from error
        return False

    def holder(self) -> str:
        """The session that holds the lock, for display; empty if it is free."""
        try:
            with self._server.readers.connect() as connection:
                row = connection.execute(_HOLDER, {"key": _KEY}).first()
        except sa.exc.DBAPIError as error:
            raise self._translated(error) from error
        return "" if row is None else f"session {row[0]} from {row[1]}"

    def held(self) -> bool:
        """True while the session with the lock lives."""
        with self._mutex:
            if self._connection is None:
                return False
            try:
                self._connection.execute(_PING)
            except sa.exc.DBAPIError:
                self.release()
                return False
            return True

    def release(self) -> None:
        """Ends all sessions, and with them the lock."""
        with self._mutex:
            if self._connection is not None:
                self._connection.invalidate()  # a pooled session would keep the lock
                self._connection.close()
                self._connection = None
            self._server.pool.dispose()
            self._server.readers.dispose()

    def _translated(self, error: sa.exc.DBAPIError) -> StoreError:
        translated = self._server.translate(error, self._server.display_name)
        return translated or StoreError(
            f"{self._server.display_name} rejected the statement: {error.orig}.", hint="Run `outrider db check`."
        )
