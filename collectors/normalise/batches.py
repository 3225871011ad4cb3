"""Evaluated cells as ``SampleBatch``, with the signals of the target itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from collectors.mapping.entity_binding import own_entity
from collectors.mapping.model import TARGET_KEYS, Adapter
from collectors.normalise.counter_deltas import PreviousScrape
from collectors.normalise.disappearance import REMEMBER_SECONDS
from collectors.scrape.result import Scrape
from outrider.errors import CollectReason
from outrider.model import CellStatus, EntityKind, Floats, SampleBatch, SignalKey, Statuses, TrustVerdict
from outrider.vocabulary import catalog

_UP, _SECONDS, _SAMPLES, _CODE = TARGET_KEYS
_TRUST = SignalKey("target_trust_code")
WATCH_KEYS = (*TARGET_KEYS, _TRUST)
# target_failure_code of the catalog; a reset connection is an unexpected response of a host that is up.
_CODES = {
    CollectReason.REFUSED: 1.0,
    CollectReason.TIMEOUT: 2.0,
    CollectReason.DNS: 3.0,
    CollectReason.TLS: 4.0,
    CollectReason.HTTP_STATUS: 5.0,
    CollectReason.REDIRECT: 5.0,
    CollectReason.NOT_METRICS: 6.0,
    CollectReason.TRUNCATED: 6.0,
    CollectReason.TOO_LARGE: 6.0,
    CollectReason.TOO_MANY_SERIES: 6.0,
    CollectReason.RESET: 6.0,
}
_OTHER_CODE = 7.0
_NO_ENDPOINT = {401, 403, 404, 405, 501}  # no such path or no permission: health is unknown
_WATCHED = {key: column for column, key in enumerate(WATCH_KEYS)}


def batch_of(
    scrape: Scrape,
    past: PreviousScrape,
    kind: EntityKind,
    values: Floats,
    status: Statuses,
    interval: float | None,
    trust: TrustVerdict,
) -> SampleBatch:
    """Cells of one kind as a matrix, followed by ABSENT rows for entities that the page has lost."""
    assert past.compiled is not None
    assert past.binding is not None
    keys = past.adapter.keys[kind]
    first, rows, columns = past.compiled.shapes.get(kind, (0, 0, len(keys)))
    entities = (*past.binding.entities.get(kind, ()), *past.lost.of(kind))
    matrix = values[first : first + rows * columns].reshape(rows, columns)
    statuses = status[first : first + rows * columns].reshape(rows, columns)
    if len(entities) > rows:
        more = (len(entities) - rows, columns)
        matrix = np.concatenate((matrix, np.full(more, np.nan)))
        statuses = np.concatenate((statuses, np.full(more, CellStatus.ABSENT, dtype=np.uint8)))
    if kind in past.adapter.seen:
        column = past.adapter.columns[kind][SignalKey(past.adapter.seen[kind])]
        matrix[:, column] = np.arange(len(entities)) < rows
        statuses[:, column] = CellStatus.PRESENT
        # A part (a MIG instance) changes by configuration: only the device itself can be lost.
        parts = [row for row, entity in enumerate(past.compiled.places.get(kind, ())) if entity.instance is not None]
        matrix[parts, column], statuses[parts, column] = np.nan, CellStatus.ABSENT
    return SampleBatch(scrape.target.name, scrape.at, kind, keys, entities, matrix, statuses, interval, trust)


def absent_batches(scrape: Scrape, past: PreviousScrape) -> Iterator[SampleBatch]:
    """Every entity known from a target without values; always its own entity."""
    recent = past.at is not None and scrape.at.timestamp() - past.at <= REMEMBER_SECONDS
    for kind, keys in past.adapter.keys.items():
        bound = past.binding.entities.get(kind, ()) if past.binding and recent else ()
        own = (own_entity(past.adapter, scrape.target),) if kind is past.adapter.target else ()
        entities = tuple(dict.fromkeys((*bound, *past.lost.of(kind), *own)))
        if entities:
            shape = (len(entities), len(keys))
            status = np.full(shape, CellStatus.ABSENT, dtype=np.uint8)
            values = np.full(shape, np.nan)
            yield SampleBatch(
                scrape.target.name, scrape.at, kind, keys, entities, values, status, None, TrustVerdict.FAILED
            )


def watch_batch(
    scrape: Scrape, about: Mapping[SignalKey, float], interval: float | None, trust: TrustVerdict
) -> SampleBatch:
    """Signals of the target once more, on its monitoring entity."""
    batch = SampleBatch(
        scrape.target.name,
        scrape.at,
        EntityKind.WORKLOAD,
        WATCH_KEYS,
        (scrape.target.watcher,),
        np.full((1, len(WATCH_KEYS)), np.nan),
        np.full((1, len(WATCH_KEYS)), CellStatus.ABSENT, dtype=np.uint8),
        interval,
        trust,
    )
    known = {key: value for key, value in about.items() if key in _WATCHED}
    fill(batch, 0, {**known, _TRUST: trust.code} if known else {}, _WATCHED)
    return batch


def about_watch(scrape: Scrape, *, up: bool) -> dict[SignalKey, float]:
    """Signals of any attempt: up, duration, and failure code."""
    code = 0.0 if scrape.error is None else _CODES.get(scrape.error.reason, _OTHER_CODE)
    return {_UP: float(up), _SECONDS: scrape.duration_seconds, _CODE: code}


def about_target(scrape: Scrape, adapter: Adapter, *, samples: int | None = None) -> dict[SignalKey, float]:
    """The same with the page's size and the engine probe's results. Without ``samples`` the scrape failed."""
    up = float(samples is not None)
    values = about_watch(scrape, up=samples is not None)
    if samples is not None:
        values[_SAMPLES] = float(samples)
    if adapter.up:
        values[SignalKey(adapter.up)] = up
    is_health_known = scrape.health is not None or not scrape.target.health_guessed
    if adapter.health and scrape.probed and is_health_known and scrape.health not in _NO_ENDPOINT:
        values[SignalKey(adapter.health)] = float(scrape.health == 200)
    if adapter.load and scrape.load is not None:
        values[SignalKey(adapter.load)] = scrape.load
    return values


def fill_target(batch: SampleBatch, own_row: int, about: Mapping[SignalKey, float], past: PreviousScrape) -> None:
    """Fills the target's own row; up and health apply to each part of an engine alike."""
    columns = past.adapter.columns[batch.kind]
    fill(batch, own_row, about, columns)
    shared = {SignalKey(name) for name in (past.adapter.up, past.adapter.health) if name} & about.keys()
    bound = past.binding.entities[batch.kind] if past.binding else ()
    for row in past.binding.part_rows if past.binding and batch.entities[: len(bound)] == bound else ():
        fill(batch, row, {key: about[key] for key in shared}, columns)


def fill(batch: SampleBatch, row: int, about: Mapping[SignalKey, float], columns: Mapping[SignalKey, int]) -> None:
    """Sets cells of a row to PRESENT values. Values outside the signal's range are UNTRUSTED, as on a page."""
    for key, value in about.items():
        column, (least, most) = columns[key], catalog.signal(key.name).plausible
        sound = math.isfinite(value) and least <= value <= most
        batch.values[row, column] = value if sound else math.nan
        batch.status[row, column] = CellStatus.PRESENT if sound else CellStatus.UNTRUSTED
