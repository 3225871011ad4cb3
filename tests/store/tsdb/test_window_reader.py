"""Reads equal a plain loop over the cells, whatever the storage format."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey, Window
from outrider.vocabulary import catalog
from store.factory import open_metrics, urls_of
from store.memory import MemoryMetricStore

START = datetime(2026, 3, 1, 11, 58, tzinfo=UTC)
ENTITIES = tuple(EntityRef("prod", EntityKind.REPLICA, "llm", name) for name in ("r-2", "r-10", "r-1"))
GAUGE, DELTA = SignalKey("engine_requests_running"), SignalKey("engine_preemptions_total")
TTFT = catalog.signal("engine_ttft_seconds")
P90 = SignalKey(TTFT.name, quantile=0.9)
BUCKETS = TTFT.bucket_keys[:-1]
REQUESTED = (GAUGE, P90, BUCKETS[3])

cell = st.tuples(st.integers(0, 50).map(float), st.sampled_from([0, 0, 0, 1, 3, 4, 5]))
cycles = st.lists(
    st.tuples(st.integers(0, 40), st.lists(cell, min_size=6, max_size=6), st.sets(st.integers(0, 2), min_size=1)),
    min_size=1,
    max_size=12,
    unique_by=lambda cycle: cycle[0],
)


def cycle_of(at: datetime, cells: list[tuple[float, int]], members: set[int]) -> list[SampleBatch]:
    """One batch per entity; buckets 3 and 9 vary, the others are 0."""
    keys = (GAUGE, *BUCKETS)
    batches = []
    for order, member in enumerate(sorted(members)):
        (gauge, gauge_status), (low, low_status) = cells[2 * order % 6], cells[(2 * order + 1) % 6]
        values = np.zeros((1, len(keys)))
        status = np.full((1, len(keys)), low_status, dtype=np.uint8)
        values[0, 0], status[0, 0] = gauge, gauge_status
        values[0, 4], values[0, 10] = low, gauge
        values[status != CellStatus.PRESENT] = np.nan
        batches.append(SampleBatch(f"t{member}", at, EntityKind.REPLICA, keys, (ENTITIES[member],), values, status))
    return batches


def read_by_loop(written: dict[datetime, list[SampleBatch]], start: datetime, end: datetime, step: timedelta) -> Window:
    """``read_windows`` as a plain loop."""
    steps = -(-(end - start) // step)
    inside = {at: batches for at, batches in written.items() if start <= at < end}
    present = {batch.entities[0] for batches in inside.values() for batch in batches}
    entities = tuple(sorted(present, key=lambda entity: entity.key))
    shape = (len(entities), steps, 1 + len(BUCKETS))
    values, status = np.full(shape, np.nan), np.full(shape, CellStatus.ABSENT, dtype=np.uint8)
    for at in sorted(inside):
        for batch in inside[at]:
            row, column = entities.index(batch.entities[0]), (at - start) // step
            for column_index in range(1 + len(BUCKETS)):
                value, new, old = (
                    batch.values[0, column_index],
                    batch.status[0, column_index],
                    status[row, column, column_index],
                )
                if new == CellStatus.PRESENT:
                    add = values[row, column, column_index] if column_index and old == CellStatus.PRESENT else 0.0
                    values[row, column, column_index], status[row, column, column_index] = value + add, new
                elif old != CellStatus.PRESENT and new != CellStatus.ABSENT:
                    status[row, column, column_index] = new
    quantiles, below = catalog.bucket_quantile(values[..., 1:], TTFT.bounds, 0.9)
    seen = (status[..., 1:] == CellStatus.PRESENT).any(axis=-1)
    counted = np.where(below > 0, CellStatus.BELOW_FIRST_BUCKET, np.where(np.isnan(quantiles), CellStatus.UNDEFINED, 0))
    out = np.stack([values[..., 0], quantiles, values[..., 4]], axis=-1)
    marks = np.stack([status[..., 0], np.where(seen, counted, status[..., 1]), status[..., 4]], axis=-1)
    times = np.array([(start + index * step).timestamp() for index in range(steps)])
    return Window(EntityKind.REPLICA, entities, times, REQUESTED, out, marks.astype(np.uint8), step)


def same(window: Window, expected: Window) -> None:
    """Asserts equal windows; entities of the same hour outside the span may be present, all ABSENT."""
    rows = [window.entities.index(entity) for entity in expected.entities]
    others = [row for row in range(len(window.entities)) if row not in rows]
    assert rows == sorted(rows)
    assert (window.status[others] == CellStatus.ABSENT).all()
    np.testing.assert_allclose(window.times, expected.times)
    np.testing.assert_array_equal(window.status[rows], expected.status)
    np.testing.assert_allclose(window.values[rows], expected.values)


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cycles, st.sampled_from([15, 60, 300]), st.integers(-2, 20))
def test_every_store_equals_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[int, list[tuple[float, int]], set[int]]],
    step: int,
    first: int,
) -> None:
    folder: Path = tmp_path_factory.mktemp("read")
    written = {
        START + timedelta(seconds=15 * at): cycle_of(START + timedelta(seconds=15 * at), cells, members)
        for at, cells, members in drawn
    }
    start = START + timedelta(seconds=15 * first)
    span = (start, start + timedelta(minutes=7), timedelta(seconds=step))
    expected = read_by_loop(written, *span)
    disk, memory = open_metrics(urls_of(f"sqlite:///{folder}/x.db")[1]), MemoryMetricStore()
    try:
        for at, batches in written.items():
            assert disk.write(at, batches) == memory.write(at, batches)
        same(memory.read_windows(EntityKind.REPLICA, REQUESTED, *span), expected)
        same(disk.read_windows(EntityKind.REPLICA, REQUESTED, *span), expected)
        disk.compact(START + timedelta(hours=3))
        same(disk.read_windows(EntityKind.REPLICA, REQUESTED, *span), expected)
        last_timestamp = max(written)
        disk.write(last_timestamp, written[last_timestamp])
        same(disk.read_windows(EntityKind.REPLICA, REQUESTED, *span), expected)
    finally:
        disk.close()
