"""Copies history from the database to the server of ``store.metrics``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

from outrider.clock import rfc3339
from outrider.errors import UsageError
from service.config.settings import Settings
from service.wiring.stores import remote_of
from store import factory
from store.remote import backfill
from store.remote.metric_store import PrometheusMetricStore


def run(settings: Settings, start: datetime, until: datetime, progress: Callable[[str, float], None]) -> dict[str, Any]:
    """Copies [start, until) from ``store.url`` to ``store.metrics``. Returns the JSON of the command.

    An engine may use the server meanwhile. Raises UsageError without a server or with an empty span,
    StoreUnavailableError if the server does not respond.
    """
    remote = remote_of(settings)
    if remote is None:
        raise UsageError("no server is configured to copy to", hint="set store.metrics")
    if start >= until:
        raise UsageError("the span to copy is empty", hint="--since must be before --until")
    url = factory.urls_of(settings.store.url)[1]
    source, target = factory.open_metrics(url), PrometheusMetricStore(remote, url)
    before = Counter(source.condition().refused)
    try:
        copied = backfill.copy_history(source, target, start, until, settings.collect.interval, progress)
        refused = Counter(source.condition().refused) - before
    finally:
        target.close()
        source.close()
    return {
        "from": rfc3339(start),
        "to": rfc3339(copied.until),
        "values": copied.values,
        "events": copied.events,
        "refused": dict(refused),
    }
