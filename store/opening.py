"""Opens the metric store that the configuration asks for."""

from __future__ import annotations

from store.remote.metric_store import PrometheusMetricStore, Remote
from store.tsdb.metric_store import SqlMetricStore


def open_metrics(url: str, remote: Remote | None = None) -> SqlMetricStore:
    """Values on a server where one is given, else in the database at the second URL of ``urls_of``, upgraded.

    Raises StoreError or SchemaTooNewError; a server is not asked yet.
    """
    return SqlMetricStore(url) if remote is None else PrometheusMetricStore(remote, url)
