"""Evaluated cells to ``SampleBatch``, with what is said about the target itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from collectors.adapter import TARGET_KEYS, Adapter
from collectors.change import Past
from collectors.places import own_entity
from collectors.scraped import Scrape
from outrider.model import CellStatus, EntityKind, Floats, SampleBatch, SignalKey, Statuses, TrustVerdict

REMEMBER_SECONDS = 15 * 60.0
_UP, _SECONDS, _SAMPLES = TARGET_KEYS
_WATCHED = {key: column for column, key in enumerate(TARGET_KEYS)}


def batch_of(
    scrape: Scrape,
    past: Past,
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
    entities = (*past.binding.entities.get(kind, ()), *past.lost.get(kind, ()))
    matrix = values[first : first + rows * columns].reshape(rows, columns)
    statuses = status[first : first + rows * columns].reshape(rows, columns)
    if len(entities) > rows:
        more = (len(entities) - rows, columns)
        matrix = np.concatenate((matrix, np.full(more, np.nan)))
        statuses = np.concatenate((statuses, np.full(more, CellStatus.ABSENT, dtype=np.uint8)))
    return SampleBatch(scrape.target.name, scrape.at, kind, keys, entities, matrix, statuses, interval, trust)


def absent_batches(scrape: Scrape, past: Past) -> Iterator[SampleBatch]:
    """Every entity known from a target without any value; its own entity always."""
    recent = past.at is not None and scrape.at.timestamp() - past.at <= REMEMBER_SECONDS
    for kind, keys in past.adapter.keys.items():
        known = past.binding.entities.get(kind, ()) if past.binding and recent else ()
        own = (own_entity(past.adapter, scrape.target),) if kind is past.adapter.target else ()
        entities = tuple(dict.fromkeys((*known, *past.lost.get(kind, ()), *own)))
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
        TARGET_KEYS,
        (scrape.target.watcher,),
        np.full((1, len(TARGET_KEYS)), np.nan),
        np.full((1, len(TARGET_KEYS)), CellStatus.ABSENT, dtype=np.uint8),
        interval,
        trust,
    )
    fill(batch, 0, {key: value for key, value in about.items() if key in _WATCHED}, _WATCHED)
    return batch


def about_target(scrape: Scrape, adapter: Adapter, *, samples: int | None = None) -> dict[SignalKey, float]:
    """What a scrape says about its target: up, duration, size, and the engine probe's answers."""
    up = float(samples is not None)
    found = {_UP: up, _SECONDS: scrape.duration_seconds}
    if samples is not None:
        found[_SAMPLES] = float(samples)
    if adapter.up:
        found[SignalKey(adapter.up)] = up
    if adapter.health and scrape.probed:
        found[SignalKey(adapter.health)] = float(scrape.health == 200)
    if adapter.load and scrape.load is not None:
        found[SignalKey(adapter.load)] = scrape.load
    return found


def fill_target(batch: SampleBatch, own_row: int, about: Mapping[SignalKey, float], past: Past) -> None:
    """Say on the target's own row what is known of it; up and health hold for each part of an engine alike."""
    columns = past.adapter.columns[batch.kind]
    fill(batch, own_row, about, columns)
    shared = {SignalKey(name) for name in (past.adapter.up, past.adapter.health) if name} & about.keys()
    known = past.binding.entities[batch.kind] if past.binding else ()
    for row in past.binding.part_rows if past.binding and batch.entities[: len(known)] == known else ():
        fill(batch, row, {key: about[key] for key in shared}, columns)


def fill(batch: SampleBatch, row: int, about: Mapping[SignalKey, float], columns: Mapping[SignalKey, int]) -> None:
    """Set cells of a row to PRESENT values."""
    for key, value in about.items():
        column = columns[key]
        batch.values[row, column] = value
        batch.status[row, column] = CellStatus.PRESENT
