"""Parsing of ``store.url`` and the two databases that it stands for."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from outrider.errors import StoreError

SQLITE = "sqlite"
POSTGRESQL = "postgresql"
_HINT = "Use sqlite:///path/to/file.db or postgresql://user@host:5432/database"


def urls_of(store_url: str) -> tuple[str, str]:
    """The two databases of a ``store.url``: (state, metrics).

    ``sqlite:///x.db`` keeps state in ``x.db`` and metrics in ``x-metrics.db`` next to it; a PostgreSQL
    database holds both. Raises StoreError for any other URL.
    """
    url = parsed(store_url)
    if url.get_backend_name() == POSTGRESQL:
        return store_url, store_url
    path = Path(str(url.database))
    metrics_path = path.with_name(f"{path.stem}-metrics{path.suffix}")
    return store_url, url.set(database=str(metrics_path)).render_as_string(hide_password=False)


def state_file(path: Path, area: str) -> Path:
    """The state file that belongs to a file of either area: the inverse of ``urls_of``."""
    return path if area == "state" else path.with_name(path.stem.removesuffix("-metrics") + path.suffix)


def parsed(text: str) -> sa.URL:
    """The parsed URL with the driver in use. Raises StoreError for an unsupported URL."""
    try:
        url = sa.make_url(text)
    except sa.exc.ArgumentError as error:
        raise StoreError(f"{text!r} is not a database URL.", hint=_HINT) from error
    backend = url.get_backend_name()
    if backend in (POSTGRESQL, "postgres"):
        if not url.database:
            raise StoreError("The database URL has no database name.", hint=_HINT)
        return url.set(drivername=f"{POSTGRESQL}+psycopg")
    if backend != SQLITE:
        raise StoreError(f"A store on {backend} is not supported.", hint=_HINT)
    if not url.database or url.database == ":memory:":
        raise StoreError(
            "A store needs a file: several processes read it.", hint="Set store.url to sqlite:///path/to/file.db"
        )
    return url
