"""The history of the database goes to the server that keeps the values from now on."""

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
    """Copy [start, until) from ``store.url`` to ``store.metrics``, and say what came over.

    A platform may run on the server meanwhile: nothing here decides. Raises UsageError without a server or a
    span, StoreUnavailableError when the server does not answer.
    """
    remote = remote_of(settings)
    if remote is None:
        raise UsageError("there is no server to copy to", hint="name one under store.metrics")
    if start >= until:
        raise UsageError("the span to copy is empty", hint="--since must lie before --until")
    url = factory.urls_of(settings.store.url)[1]
    source, target = factory.open_metrics(url), PrometheusMetricStore(remote, url)
    before = Counter(source.condition().refused)
    try:
        found = backfill.copy_history(source, target, start, until, settings.collect.interval, progress)
        refused = Counter(source.condition().refused) - before
    finally:
        target.close()
        source.close()
    return {
        "from": rfc3339(start),
        "to": rfc3339(found.until),
        "values": found.values,
        "events": found.events,
        "refused": dict(refused),
    }
