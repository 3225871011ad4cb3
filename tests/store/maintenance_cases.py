"""Helpers of the maintenance tests: batches, table queries, and a query after each write transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import numpy as np
import sqlalchemy as sa

from outrider.model import EntityKind, EntityRef, SampleBatch
from store.factory import SqlMetricStore, urls_of
from store.sql.database import Database
from store.tsdb.retention import Retention
from tests.store.aged_store import GPUS, POWER

KEEPS = Retention(raw=timedelta(days=3))


def rows(store_url: str, query: str) -> list[tuple[object, ...]]:
    database = Database(urls_of(store_url)[1], "metrics")
    try:
        with database.reading() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]
    finally:
        database.close()


def tiers(store_url: str) -> dict[object, object]:
    counts = "SELECT tier, count(*) FROM block WHERE id NOT IN (SELECT block_id FROM hidden) GROUP BY tier"
    return dict(rows(store_url, counts))  # type: ignore[arg-type]


def batch(at: object, power: float, names: tuple[int, ...] = (0, 1)) -> list[SampleBatch]:
    values = np.full((len(names), 1), power)
    entities = tuple(GPUS[name] for name in names)
    return [SampleBatch("late", at, EntityKind.GPU, (POWER,), entities, values, np.zeros(values.shape, np.uint8))]  # type: ignore[arg-type]


MANY = tuple(EntityRef("prod", EntityKind.GPU, None, f"many-{number:03}") for number in range(400))


def write_many(metrics: SqlMetricStore, at: datetime, power: float, entities: tuple[EntityRef, ...] = MANY) -> None:
    values = np.full((len(entities), 1), power)
    sample_batch = SampleBatch("x", at, EntityKind.GPU, (POWER,), entities, values, np.zeros(values.shape, np.uint8))
    metrics.write(at, [sample_batch])


@contextmanager
def counts_after_writes(store: SqlMetricStore, query: str) -> Iterator[list[dict[object, object]]]:
    """Records the result of a two-column query after each write transaction."""
    counts: list[dict[object, object]] = []
    writing = store._database.writing

    @contextmanager
    def writing_and_counting() -> Iterator[sa.Connection]:
        with writing() as connection:
            yield connection
        with store._database.reading() as connection:
            counts.append({row[0]: row[1] for row in connection.execute(sa.text(query))})

    store._database.writing = writing_and_counting  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        store._database.writing = writing  # type: ignore[method-assign]
