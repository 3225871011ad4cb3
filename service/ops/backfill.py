"""Imports the history of an existing Prometheus into the store, span by span, so that baselines exist at once.

Raw samples go through the same evaluator as live ones. Every span is one transaction per entity kind. An interrupted
run can be repeated: it writes the same values again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from collectors.prometheus.source import LOOK_BACK, PrometheusSource
from outrider.clock import rfc3339
from outrider.errors import CollectError, UnavailableError, UsageError
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey, SignalKind
from outrider.vocabulary import catalog
from service.config.settings import Settings
from service.runtime.leader import leading
from service.sources.factory import prometheus_source
from service.wiring import stores as wiring_stores
from store.tsdb.metric_store import SqlMetricStore

_Item = TypeVar("_Item", EntityRef, SignalKey, int)
SPAN = 3 * LOOK_BACK  # per transaction


def run(settings: Settings, start: datetime, until: datetime, progress: Callable[[str, float], None]) -> dict[str, Any]:
    """Imports history from the configured Prometheus. Returns the JSON of ``outrider collect backfill``.

    Raises UsageError without a Prometheus or with an empty span, UnavailableError if an engine uses the store or the
    server does not respond.
    """
    prometheus = settings.collect.prometheus
    if prometheus is None:
        raise UsageError("no Prometheus is configured to read history from", hint="set collect.prometheus.url")
    if start >= until:
        raise UsageError("the span to import is empty", hint="--since must be before --until")
    with leading(settings), wiring_stores.stores(settings) as (_, store):
        source = prometheus_source(prometheus, settings.cluster, since=start)
        imported = asyncio.run(_import(source, store, start, until, settings.collect.interval, progress))
    return {
        "from": rfc3339(imported.start),
        "to": rfc3339(imported.until),
        "targets": len(imported.targets),
        "values": imported.values,
        "events": imported.events,
    }


async def _import(source: PrometheusSource, *arguments: Any) -> ImportStats:
    try:
        return await backfill(source, *arguments)
    finally:
        await source.close()


@dataclass(slots=True)
class ImportStats:
    """Counts of an import, and its span so far."""

    start: datetime
    until: datetime
    values: int = 0
    events: int = 0
    targets: set[str] = field(default_factory=set)


async def backfill(
    source: PrometheusSource,
    store: SqlMetricStore,
    start: datetime,
    until: datetime,
    interval: timedelta,
    progress: Callable[[str, float], None],
) -> ImportStats:
    """Reads [start, until) and writes it on a grid of ``interval``. ``source`` must begin at ``start``.

    Raises UnavailableError if the server stops responding. Values written before remain.
    """
    stats, pending = ImportStats(start, start), list[SampleBatch]()

    def write(at: datetime) -> None:
        stats.values += sum(_write(store, kind, pending, interval) for kind in EntityKind)
        stats.until = at
        pending.clear()

    try:
        async for at, collected in source.history(until):
            if collected is not None:
                pending += collected.batches
                stats.targets.update(target.name for target in source.targets)
                if collected.events:
                    store.write(at, (), collected.events)
                    stats.events += len(collected.events)
            if at - stats.until >= SPAN or at == until:
                write(at)
            progress("backfill", (at - start) / (until - start))
    except CollectError as error:
        raise UnavailableError(
            f"the history could not be read beyond {stats.until:%Y-%m-%d %H:%M}Z: {error.message}",
            hint="run the same command again; it can be repeated safely",
        ) from error
    return stats


def _write(store: SqlMetricStore, kind: EntityKind, batches: Iterable[SampleBatch], interval: timedelta) -> int:
    """Writes one entity kind as a block: the last value of a step for gauges, the sum for increases."""
    own = [batch for batch in batches if batch.kind is kind]
    if not own:
        return 0
    seconds = interval.total_seconds()
    entities = _numbered(entity for batch in own for entity in batch.entities)
    keys = _numbered(key for batch in own for key in batch.keys)
    slots = _numbered(sorted({int(batch.scraped_at.timestamp() // seconds) for batch in own}))
    shape = (len(entities), len(slots), len(keys))
    values, status = np.full(shape, np.nan), np.full(shape, CellStatus.ABSENT, dtype=np.uint8)
    for batch in sorted(own, key=lambda batch: batch.scraped_at):
        slot = slots[int(batch.scraped_at.timestamp() // seconds)]
        rows = np.array([entities[entity] for entity in batch.entities], dtype=np.intp)
        columns = np.array([keys[key] for key in batch.keys], dtype=np.intp)
        _put(values, status, (rows[:, None], slot, columns[None, :]), batch)
    times = np.array([slot * seconds for slot in slots])
    return store.write_block(kind, times, list(keys), list(entities), values, status)


def _put(values: np.ndarray, status: np.ndarray, index: tuple[np.ndarray, int, np.ndarray], batch: SampleBatch) -> None:
    """Adds a batch to its step. A later value replaces an earlier one, unless its status is worse."""
    previous, previous_status = values[index], status[index]
    is_sum = np.array([_is_increase(key) for key in batch.keys])
    both = is_sum & (previous_status == CellStatus.PRESENT) & (batch.status == CellStatus.PRESENT)
    better = batch.status <= previous_status
    values[index] = np.where(both, previous + batch.values, np.where(better, batch.values, previous))
    status[index] = np.where(better, batch.status, previous_status)


def _is_increase(key: SignalKey) -> bool:
    if key.bucket is not None:
        return True
    return key.name in catalog.signals() and catalog.signal(key.name).kind is SignalKind.DELTA


def _numbered(items: Iterable[_Item]) -> dict[_Item, int]:
    return {item: number for number, item in enumerate(dict.fromkeys(items))}
