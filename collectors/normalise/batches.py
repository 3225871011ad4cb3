"""Evaluated cells to ``SampleBatch``, with what is said about the target itself."""

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
# target_failure_code of the catalogue; a reset connection is an odd answer of a host that is there.
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
_NO_DOOR = {401, 403, 404, 405, 501}  # whoever answers has no such path, or tells strangers nothing: no word on health
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
    """The cells of one kind as a matrix; below them ABSENT rows for entities that the page has lost."""
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
        # A part (a MIG instance) comes and goes by configuration: only the device itself can be lost.
        parts = [row for row, place in enumerate(past.compiled.places.get(kind, ())) if place.instance is not None]
        matrix[parts, column], statuses[parts, column] = np.nan, CellStatus.ABSENT
    return SampleBatch(scrape.target.name, scrape.at, kind, keys, entities, matrix, statuses, interval, trust)


def absent_batches(scrape: Scrape, past: PreviousScrape) -> Iterator[SampleBatch]:
    """Every entity known from a target without any value; its own entity always."""
    recent = past.at is not None and scrape.at.timestamp() - past.at <= REMEMBER_SECONDS
    for kind, keys in past.adapter.keys.items():
        known = past.binding.entities.get(kind, ()) if past.binding and recent else ()
        own = (own_entity(past.adapter, scrape.target),) if kind is past.adapter.target else ()
        entities = tuple(dict.fromkeys((*known, *past.lost.of(kind), *own)))
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
    """What is said of the target once more, on its monitoring entity."""
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
    """What any attempt says about what it read: up, duration, and why it failed."""
    code = 0.0 if scrape.error is None else _CODES.get(scrape.error.reason, _OTHER_CODE)
    return {_UP: float(up), _SECONDS: scrape.duration_seconds, _CODE: code}


def about_target(scrape: Scrape, adapter: Adapter, *, samples: int | None = None) -> dict[SignalKey, float]:
    """The same with the page's size and the engine probe's answers. No ``samples``: the scrape failed."""
    up = float(samples is not None)
    found = about_watch(scrape, up=samples is not None)
    if samples is not None:
        found[_SAMPLES] = float(samples)
    if adapter.up:
        found[SignalKey(adapter.up)] = up
    told = scrape.health is not None or not scrape.target.health_guessed
    if adapter.health and scrape.probed and told and scrape.health not in _NO_DOOR:
        found[SignalKey(adapter.health)] = float(scrape.health == 200)
    if adapter.load and scrape.load is not None:
        found[SignalKey(adapter.load)] = scrape.load
    return found


def fill_target(batch: SampleBatch, own_row: int, about: Mapping[SignalKey, float], past: PreviousScrape) -> None:
    """Say on the target's own row what is known of it; up and health hold for each part of an engine alike."""
    columns = past.adapter.columns[batch.kind]
    fill(batch, own_row, about, columns)
    shared = {SignalKey(name) for name in (past.adapter.up, past.adapter.health) if name} & about.keys()
    known = past.binding.entities[batch.kind] if past.binding else ()
    for row in past.binding.part_rows if past.binding and batch.entities[: len(known)] == known else ():
        fill(batch, row, {key: about[key] for key in shared}, columns)


def fill(batch: SampleBatch, row: int, about: Mapping[SignalKey, float], columns: Mapping[SignalKey, int]) -> None:
    """Set cells of a row to PRESENT values; what is no number of its signal is UNTRUSTED, as on a page."""
    for key, value in about.items():
        column, (least, most) = columns[key], catalog.signal(key.name).plausible
        sound = math.isfinite(value) and least <= value <= most
        batch.values[row, column] = value if sound else math.nan
        batch.status[row, column] = CellStatus.PRESENT if sound else CellStatus.UNTRUSTED
