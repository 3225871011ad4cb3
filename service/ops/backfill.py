"""History of an existing Prometheus into the store, span by span, so that baselines need not wait for days.

Raw samples go through the same evaluator as live ones. Every span is one transaction for each kind of
entity: a run that was interrupted is run again, and what it wrote before is replaced by the same.
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

_One = TypeVar("_One", EntityRef, SignalKey, int)
SPAN = 3 * LOOK_BACK  # written at once


def run(settings: Settings, start: datetime, until: datetime, progress: Callable[[str, float], None]) -> dict[str, Any]:
    """Fill the store of a configuration from its Prometheus, and say what came.

    Raises UsageError without a Prometheus or a span, UnavailableError when an engine works on the store or
    the server does not answer.
    """
    prometheus = settings.collect.prometheus
    if prometheus is None:
        raise UsageError("there is no Prometheus to read history from", hint="name one under collect.prometheus.url")
    if start >= until:
        raise UsageError("the span to fill is empty", hint="--since must lie before --until")
    with leading(settings), wiring_stores.stores(settings) as (_, store):
        source = prometheus_source(prometheus, settings.cluster, since=start)
        found = asyncio.run(_filled(source, store, start, until, settings.collect.interval, progress))
    return {
        "from": rfc3339(found.start),
        "to": rfc3339(found.until),
        "targets": len(found.targets),
        "values": found.values,
        "events": found.events,
    }


async def _filled(source: PrometheusSource, *how: Any) -> Filled:
    try:
        return await backfill(source, *how)
    finally:
        await source.close()


@dataclass(slots=True)
class Filled:
    """What a back-fill brought."""

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
) -> Filled:
    """Read [start, until) and write it on a grid of ``interval``. ``source`` must begin at ``start``.

    Raises UnavailableError when the server stops answering; what was written until then stays.
    """
    found, waiting = Filled(start, start), list[SampleBatch]()

    def write(at: datetime) -> None:
        found.values += sum(_write(store, kind, waiting, interval) for kind in EntityKind)
        found.until = at
        waiting.clear()

    try:
        async for at, collected in source.history(until):
            if collected is not None:
                waiting += collected.batches
                found.targets.update(target.name for target in source.targets)
                if collected.events:
                    store.write(at, (), collected.events)
                    found.events += len(collected.events)
            if at - found.until >= SPAN or at == until:
                write(at)
            progress("backfill", (at - start) / (until - start))
    except CollectError as error:
        raise UnavailableError(
            f"the history could not be read beyond {found.until:%Y-%m-%d %H:%M}Z: {error.message}",
            hint="run the same command again: it goes on where the store has nothing",
        ) from error
    return found


def _write(store: SqlMetricStore, kind: EntityKind, batches: Iterable[SampleBatch], interval: timedelta) -> int:
    """One kind of entity as a block: gauges are the last value of a step, increases its sum."""
    own = [batch for batch in batches if batch.kind is kind]
    if not own:
        return 0
    seconds = interval.total_seconds()
    entities = _numbered(entity for batch in own for entity in batch.entities)
    keys = _numbered(key for batch in own for key in batch.keys)
    slots = _numbered(sorted({int(batch.scraped_at.timestamp() // seconds) for batch in own}))
    shape = (len(entities), len(slots), len(keys))
    values, status = np.full(shape, np.nan), np.full(shape, CellStatus.ABSENT, dtype=np.uint8)
    for batch in sorted(own, key=lambda one: one.scraped_at):
        slot = slots[int(batch.scraped_at.timestamp() // seconds)]
        rows = np.array([entities[entity] for entity in batch.entities], dtype=np.intp)
        columns = np.array([keys[key] for key in batch.keys], dtype=np.intp)
        _put(values, status, (rows[:, None], slot, columns[None, :]), batch)
    times = np.array([slot * seconds for slot in slots])
    return store.write_block(kind, times, list(keys), list(entities), values, status)


def _put(values: np.ndarray, status: np.ndarray, place: tuple[np.ndarray, int, np.ndarray], batch: SampleBatch) -> None:
    """Add a batch to its step; a cell that has a value already loses it to a better or later one only."""
    held, held_status = values[place], status[place]
    adds = np.array([_is_increase(key) for key in batch.keys])
    both = adds & (held_status == CellStatus.PRESENT) & (batch.status == CellStatus.PRESENT)
    better = batch.status <= held_status
    values[place] = np.where(both, held + batch.values, np.where(better, batch.values, held))
    status[place] = np.where(better, batch.status, held_status)


def _is_increase(key: SignalKey) -> bool:
    if key.bucket is not None:
        return True
    return key.name in catalog.signals() and catalog.signal(key.name).kind is SignalKind.DELTA


def _numbered(found: Iterable[_One]) -> dict[_One, int]:
    return {one: number for number, one in enumerate(dict.fromkeys(found))}
