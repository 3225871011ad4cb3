"""Opens the stores on SQLite, PostgreSQL and a Prometheus-compatible server, for ``service``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.migrate import revision, upgrade
from store.sql.leader_lock import AdvisoryLease
from store.sql.urls import POSTGRESQL, parsed, urls_of
from store.state.change_log import SqlChangeLog
from store.state.ingest_buffer import SqlIngestBuffer
from store.state.sql_state import SqlStateStore
from store.tsdb.metric_store import SqlMetricStore

if TYPE_CHECKING:
    from store.remote.client import Remote

__all__ = [
    "SqlChangeLog",
    "SqlIngestBuffer",
    "SqlMetricStore",
    "SqlStateStore",
    "on_server",
    "open_change_log",
    "open_ingest_buffer",
    "open_lease",
    "open_metrics",
    "open_state",
    "revision",
    "upgrade",
    "urls_of",
]


def on_server(url: str) -> bool:
    """True for a store on a PostgreSQL server, False for one in files. Raises StoreError for any other URL."""
    return parsed(url).get_backend_name() == POSTGRESQL


def open_lease(url: str) -> AdvisoryLease:
    """The leader lock of a store on PostgreSQL. Raises StoreError."""
    return AdvisoryLease(url)


def open_metrics(url: str, remote: Remote | None = None) -> SqlMetricStore:
    """The metric store: values on the ``remote`` server if given, else in the database at ``url``, upgraded.

    ``url`` is the second one of ``urls_of``. Raises StoreError or SchemaTooNewError; sends no request to the server.
    """
    if remote is None:
        return SqlMetricStore(url)
    from store.remote.metric_store import PrometheusMetricStore  # noqa: PLC0415 - most stores need no HTTP client

    return PrometheusMetricStore(remote, url)


def open_state(url: str) -> SqlStateStore:
    """The state store at the first URL of ``urls_of``, upgraded. Raises StoreError or SchemaTooNewError."""
    return SqlStateStore(url)


def open_ingest_buffer(url: str) -> SqlIngestBuffer:
    """The ingest buffer in the state database. Raises StoreError or SchemaTooNewError."""
    return SqlIngestBuffer(url)


def open_change_log(url: str) -> SqlChangeLog:
    """The change log in the state database, at the first URL of ``urls_of``. Raises StoreError or SchemaTooNewError."""
    return SqlChangeLog(url)
