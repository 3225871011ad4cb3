"""Entities that left are deleted from ``latest_<kind>`` and from the dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.model import EntityKind, EntityRef, SampleBatch, SignalKey
from store.admin import integrity
from store.factory import SqlMetricStore, open_metrics, open_state, urls_of
from store.tsdb.retention import DeletionReason, Retention
from tests.store import full_store

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP, DAY = timedelta(minutes=1), timedelta(days=1)
READY = SignalKey("pod_restarts_total")
KEEPS = Retention(timedelta(hours=2), timedelta(hours=4), timedelta(hours=6), timedelta(hours=6))
OLD = tuple(EntityRef("prod", EntityKind.POD, "llm", f"old-{index}") for index in range(700))
LIVE = tuple(EntityRef("prod", EntityKind.POD, "llm", f"live-{index}") for index in range(3))


def put(store: SqlMetricStore, at: datetime, pods: tuple[EntityRef, ...], value: float = 1.0) -> None:
    cells = np.full((len(pods), 1), value)
    store.write(at, [SampleBatch("x", at, EntityKind.POD, (READY,), pods, cells, np.zeros(cells.shape, np.uint8))])


@pytest.fixture
def other(store_url: str) -> Iterator[SqlMetricStore]:
    """Another process's handle on the same database."""
    store = open_metrics(urls_of(store_url)[1])
    yield store
    store.close()


def latest(store: SqlMetricStore) -> set[str]:
    with store._database.reading() as connection:
        return set(connection.scalars(sa.text("SELECT name FROM latest_pod")))


def values(store: SqlMetricStore, at: datetime, pods: tuple[EntityRef, ...]) -> list[float]:
    result: list[float] = store.read_windows(EntityKind.POD, [READY], at, at + STEP, STEP, pods).values.ravel().tolist()
    return result


def names(pods: tuple[EntityRef, ...]) -> set[str]:
    return {pod.name for pod in pods}


def test_rows_of_latest_are_deleted_after_raw_retention(metrics: SqlMetricStore) -> None:
    put(metrics, T0, OLD)
    put(metrics, T0 + timedelta(hours=1), LIVE)
    assert latest(metrics) == names((*OLD, *LIVE))
    report = metrics.maintain(T0 + timedelta(hours=2, minutes=1), KEEPS)
    assert report.deletions.rows["latest", DeletionReason.AGE] == len(OLD)
    assert latest(metrics) == names(LIVE)
    assert set(metrics.entities(EntityKind.POD)) == {*OLD, *LIVE}, "roll-ups still refer to them"


def test_entities_are_deleted_when_no_tier_refers_to_them(metrics: SqlMetricStore, other: SqlMetricStore) -> None:
    put(metrics, T0, OLD)
    put(metrics, T0 + STEP, LIVE)
    assert set(other.entities(EntityKind.POD)) == {*OLD, *LIVE}
    now = T0 + 4 * DAY
    metrics.maintain(now, KEEPS)
    put(metrics, now - STEP, LIVE[:2], 2.0)  # a new list: the newest one is kept, with its entities
    put(metrics, now - STEP, LIVE, 2.0)
    report = metrics.maintain(now, KEEPS)
    assert report.deletions.rows["entity", DeletionReason.UNUSED] == len(OLD)
    for store in (metrics, other):
        assert store.entities(EntityKind.POD) == LIVE
        assert values(store, now - STEP, LIVE) == [2.0] * 3
    assert ("entity", DeletionReason.UNUSED) not in metrics.maintain(now, KEEPS).deletions.rows


@pytest.mark.slow
@pytest.mark.parametrize("in_another_process", [False, True])
def test_a_returning_entity_gets_a_new_number(
    metrics: SqlMetricStore, other: SqlMetricStore, store_url: str, in_another_process: bool
) -> None:
    """The writer and the reader cache deleted numbers: no value may be written under them."""
    put(metrics, T0, OLD)
    assert len(other.entities(EntityKind.POD)) == len(OLD)
    now = T0 + 4 * DAY
    metrics.maintain(now, KEEPS)
    put(metrics, now - STEP, LIVE[:2])
    put(metrics, now - STEP, LIVE)
    (other if in_another_process else metrics).maintain(now, KEEPS)
    put(metrics, now, (*OLD[:2], *LIVE), 3.0)
    times = now.timestamp() + 60.0 * np.arange(1, 3)
    metrics.write_block(EntityKind.POD, times, [READY], OLD[5:6], np.full((1, 2, 1), 4.0))
    for store in (metrics, other):
        assert store.entities(EntityKind.POD) == tuple(sorted((*OLD[:2], OLD[5], *LIVE), key=lambda pod: pod.key))
        assert values(store, now, (OLD[1], *LIVE)) == [3.0] * 4
        assert values(store, now + STEP, OLD[5:6]) == [4.0]
    open_state(urls_of(store_url)[0]).close()
    assert [report.problems for report in integrity.check(store_url, deep=True, progress=full_store.quiet)] == [[], []]


def test_history_keeps_its_entities_while_it_is_written(metrics: SqlMetricStore, other: SqlMetricStore) -> None:
    """Old history: its entities were last seen before all retained tiers, but a row refers to them."""
    put(metrics, T0 + 30 * DAY, LIVE)
    times = T0.timestamp() + 60.0 * np.arange(3)
    metrics.write_block(EntityKind.POD, times, [READY], OLD[:4], np.ones((4, 3, 1)))
    other.maintain(T0 + 2 * timedelta(hours=1), KEEPS)
    assert set(other.entities(EntityKind.POD)) == {*OLD[:4], *LIVE}
    assert values(other, T0, OLD[:4]) == [1.0] * 4
