"""Flattens collected batches to the list of signals that the command line prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from collectors.normalise.cumulative import CumulativeQuantile
from outrider.clock import rfc3339
from outrider.documents import serialization
from outrider.model import CellStatus, EntityRef, SampleBatch, SignalKey, SignalKind
from outrider.ports import Collected
from outrider.vocabulary import catalog

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def signals(collected: Collected, *, with_instant: bool = False) -> list[dict[str, Any]]:
    """Returns every value of a collection: gauges and deltas unchanged, histograms as quantiles."""
    return [row for batch in collected.batches for row in _rows(batch, with_instant=with_instant)]


def untrusted(collected: Collected) -> list[dict[str, Any]]:
    """Returns a row without a value for each untrusted cell, with the reason ``untrusted``."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for batch in collected.batches:
        for row, index in np.argwhere(batch.status == CellStatus.UNTRUSTED):
            entity, key = batch.entities[row], batch.keys[index]
            rows[entity, key.name, key.quantile] = {**without_value(entity, key.name, "untrusted"), **_statistic(key)}
    return list(rows.values())


def without_value(entity: EntityRef, name: str, reason: str) -> dict[str, Any]:
    """Returns the row of a signal without a value."""
    signal = catalog.signals().get(name)
    unit = signal.unit if signal else ""
    return {"entity": serialization.entity(entity), "signal": name, "value": None, "unit": unit, "reason": reason}


def newest(collected: Collected) -> Collected:
    """Keeps only the newest scrape of each source. Prometheus delivers the last two, so that increases are known."""
    last: dict[str, datetime] = {}
    for batch in collected.batches:
        last[batch.source] = max(batch.scraped_at, last.get(batch.source, batch.scraped_at))
    batches = tuple(batch for batch in collected.batches if batch.scraped_at == last[batch.source])
    return replace(collected, batches=batches)


def _rows(batch: SampleBatch, *, with_instant: bool) -> Iterator[dict[str, Any]]:
    plain = [(index, key) for index, key in enumerate(batch.keys) if key.bucket is None]
    histograms = dict.fromkeys(key.name for key in batch.keys if key.bucket is not None)
    for row, entity in enumerate(batch.entities):
        head: dict[str, Any] = {"at": rfc3339(batch.scraped_at)} if with_instant else {}
        head["entity"] = serialization.entity(entity)
        for index, key in plain:
            if batch.status[row, index] in (CellStatus.PRESENT, CellStatus.BELOW_FIRST_BUCKET):
                yield {**head, **_value(key.name, float(batch.values[row, index])), **_statistic(key)}
        for name in histograms:
            yield from ({**head, **quantile} for quantile in _quantiles(batch, row, name))


def since_start(quantile: CumulativeQuantile) -> dict[str, Any]:
    """Returns the row of a quantile since the process start, from a single page."""
    row = {
        "entity": serialization.entity(quantile.entity),
        **_value(quantile.signal, quantile.value),
        "quantile": quantile.quantile,
    }
    return {**row, **_bound(below=quantile.below, above=quantile.above), "since": "start"}


def _statistic(key: SignalKey) -> dict[str, Any]:
    """Returns the quantile that the source computed, or that it publishes only the mean."""
    if key.quantile is not None:
        return {"quantile": key.quantile}
    if key.bucket is not None:
        return {}
    signal = catalog.signals().get(key.name)
    return {"statistic": "mean"} if signal is not None and signal.kind is SignalKind.HISTOGRAM else {}


def _value(name: str, value: float) -> dict[str, Any]:
    signal = catalog.signals().get(name)
    return {"signal": name, "value": serialization.finite(value), "unit": signal.unit if signal else ""}


def _quantiles(batch: SampleBatch, row: int, name: str) -> Iterable[dict[str, Any]]:
    signal = catalog.signal(name)
    columns = [batch.keys.index(key) for key in signal.bucket_keys[:-1] if key in batch.keys]
    if len(columns) != len(signal.bounds) + 1 or signal.kind is not SignalKind.HISTOGRAM:
        return
    increments = np.nan_to_num(batch.values[row, columns])
    for quantile in QUANTILES:
        values, below = catalog.bucket_quantile(increments[None, :], signal.bounds, quantile)
        if not np.isnan(values[0]):
            fields = {**_value(name, float(values[0])), "quantile": quantile}
            above = catalog.above_last_bucket(increments[None, :], quantile)
            yield {**fields, **_bound(below=bool(below[0]), above=bool(above[0]))}


def _bound(*, below: bool, above: bool) -> dict[str, bool]:
    """Marks a value that is a bound of the buckets instead of the quantile."""
    return {"below_first_bucket": True} if below else {"above_last_bucket": True} if above else {}
