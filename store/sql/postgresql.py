"""PostgreSQL backend: one database for state and metrics; writers of each area queue at an advisory lock.

A reader uses one snapshot (REPEATABLE READ). A writer first takes the lock of its area, so that the rows it read
cannot change before it writes: the same guarantee as ``BEGIN IMMEDIATE`` on SQLite.
"""

from __future__ import annotations

import hashlib

import sqlalchemy as sa

from outrider.errors import StoreDamagedError, StoreError, StoreUnavailableError
from outrider.text import install_hints
from store.sql.backend import BUSY_TIMEOUT, DatabaseHandle

_CONNECT_SECONDS = 5
_DEAD_AFTER_MS = 15_000  # for bytes that a lost server does not acknowledge; the kernel alone waits 15 min
_UNAVAILABLE = ("08", "57P")  # SQLSTATE classes: connection exceptions, operator intervention (shutdown, starting up)

_DAMAGE = ("XX001", "XX002")
_ERRORS = {  # SQLSTATE (postgresql.org/docs/current/errcodes-appendix.html): message, hint
    "53100": ("The disk of {database} is full; this write was rolled back.",
              "Free space on the database server, then try again."),
    "53300": ("{database} has no free connection.", "Raise max_connections there, or stop other clients."),
    "25006": ("{database} cannot be written: it is read-only.",
              "Point store.url at the primary server, not at a standby."),
    "42501": ("The user of {database} lacks a privilege.", "Make that user the database owner, or grant it CREATE."),
    "55P03": ("Another program has locked {database} for more than 10 s.",
              "Find the open transaction in pg_stat_activity and end it."),
    "XX001": ("{database} is damaged: a table page cannot be read.",
              "Restore a backup: outrider db restore FILE --force"),
    "XX002": ("{database} is damaged: an index cannot be read.",
              "Run REINDEX DATABASE there; if that fails, restore a backup: outrider db restore FILE --force"),
}  # fmt: skip
_CONNECTION_ERRORS = (  # messages of the server or libpq before a connection exists
    ("password authentication failed", "Check the user and the password of store.url, or set PGPASSFILE."),
    ("no password supplied", "Put the password into store.url, or set PGPASSFILE."),
    ("does not exist", "Create it on the server: createdb -O USER NAME; outrider creates the tables."),
    ("no pg_hba.conf entry", "Allow this user and host in pg_hba.conf of the server."),
)


def lock_key(name: str) -> int:
    """A 63-bit key of an advisory lock. Advisory locks are per database."""
    return int.from_bytes(hashlib.sha256(f"outrider {name}".encode()).digest()[:8], "big") >> 1


def writer_key(area: str) -> int:
    """The key of the writer lock of an area."""
    return lock_key(f"writer of {area}")


def open_server(url: sa.URL, area: str) -> DatabaseHandle:
    """Connections to a database on a server; opens none yet. Raises StoreError without the driver."""
    timeout_ms = int(BUSY_TIMEOUT.total_seconds() * 1000)
    arguments = {
        "connect_timeout": _CONNECT_SECONDS,
        "tcp_user_timeout": _DEAD_AFTER_MS,
        "keepalives_idle": 10,
        "application_name": "outrider",
        "options": f"-c lock_timeout={timeout_ms} -c timezone=UTC {url.query.get('options', '')}".strip(),
    }
    display_name = f"database {url.database} at {url.host or 'the local socket'}{f':{url.port}' if url.port else ''}"
    try:
        pool = sa.create_engine(
            url.difference_update_query(["options"]), connect_args=arguments, pool_pre_ping=True, pool_size=5,
            max_overflow=20,
        )  # fmt: skip
    except ModuleNotFoundError as error:
        raise StoreError(
            "PostgreSQL needs the driver psycopg, which is not installed.",
            hint=install_hints.how("postgresql"),
        ) from error
    readers = pool.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return DatabaseHandle(
        pool, readers, pool, display_name, _translate, lambda: _vacuum(pool), writer_lock=writer_key(area)
    )


def _vacuum(pool: sa.Engine) -> None:
    """Runs VACUUM (ANALYZE) at once."""
    with pool.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.exec_driver_sql("VACUUM (ANALYZE)")


def _translate(error: sa.exc.DBAPIError, display_name: str) -> StoreError | None:
    code: str | None = getattr(error.orig, "sqlstate", None)
    message = str(error.orig)
    if code in _ERRORS:
        sentence, hint = _ERRORS[code]
        message_text = sentence.format(database=display_name)
        kind = StoreDamagedError if code in _DAMAGE else StoreUnavailableError
        return kind(message_text[0].upper() + message_text[1:], hint=hint)
    if error.connection_invalidated or code is None or code.startswith(_UNAVAILABLE):
        remedy = next((hint for words, hint in _CONNECTION_ERRORS if words in message), None)
        if remedy is not None:
            return StoreUnavailableError(
                f"The {display_name} refuses the connection: {_first_line(message)}.", hint=remedy
            )
        if isinstance(error, sa.exc.OperationalError) or error.connection_invalidated:
            return StoreUnavailableError(
                f"The {display_name} does not answer: {_first_line(message)}.",
                hint="Start the server, or check host, port and network; outrider reconnects by itself.",
            )
    return None


def _first_line(message: str) -> str:
    """The first line, without libpq's advice and SQLAlchemy's SQL."""
    lines = message.strip().splitlines()
    return lines[0].strip().removeprefix("connection failed: ").rstrip(".") if lines else "no reason given"
