"""What the tests of upkeep share: batches, looks into the tables, and a watch over transactions."""

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
    seen = "SELECT tier, count(*) FROM block WHERE id NOT IN (SELECT block_id FROM hidden) GROUP BY tier"
    return dict(rows(store_url, seen))  # type: ignore[arg-type]


def batch(at: object, power: float, names: tuple[int, ...] = (0, 1)) -> list[SampleBatch]:
    values = np.full((len(names), 1), power)
    entities = tuple(GPUS[name] for name in names)
    return [SampleBatch("late", at, EntityKind.GPU, (POWER,), entities, values, np.zeros(values.shape, np.uint8))]  # type: ignore[arg-type]


MANY = tuple(EntityRef("prod", EntityKind.GPU, None, f"many-{number:03}") for number in range(400))


def write_many(metrics: SqlMetricStore, at: datetime, power: float, entities: tuple[EntityRef, ...] = MANY) -> None:
    values = np.full((len(entities), 1), power)
    found = SampleBatch("x", at, EntityKind.GPU, (POWER,), entities, values, np.zeros(values.shape, np.uint8))
    metrics.write(at, [found])


@contextmanager
def watched(store: SqlMetricStore, query: str) -> Iterator[list[dict[object, object]]]:
    """What a query of two columns says after each write transaction."""
    seen: list[dict[object, object]] = []
    writing = store._database.writing

    @contextmanager
    def looked_at() -> Iterator[sa.Connection]:
        with writing() as connection:
            yield connection
        with store._database.reading() as connection:
            seen.append({row[0]: row[1] for row in connection.execute(sa.text(query))})

    store._database.writing = looked_at  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        store._database.writing = writing  # type: ignore[method-assign]
