"""History and the split of a compacted hour are packed outside write transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.errors import StoreError
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey
from store.factory import SqlMetricStore
from store.schema import metadata
from store.tsdb import atomic_replace, blocks, late_writes
from store.tsdb.atomic_replace import Access
from store.tsdb.chunk_codec import BULK_LEVEL, encode
from store.tsdb.late_writes import Split

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
KEYS = (SignalKey("hw_accel_power_watts"), SignalKey("hw_accel_ecc_uncorrectable_total"))
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(4))
TIMES = T0.timestamp() + 15.0 * np.arange(240)
VALUES = np.arange(4 * 240 * 2, dtype=float).reshape(4, 240, 2)


@pytest.fixture
def packed_under_lock(metrics: SqlMetricStore, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each packed long row: True if a write transaction was open."""
    writing_of_store, under_lock, depth = metrics._database.writing, [], 0

    @contextmanager
    def writing(**options: Any) -> Iterator[sa.Connection]:
        nonlocal depth
        with writing_of_store(**options) as connection:
            depth += 1
            try:
                yield connection
            finally:
                depth -= 1

    def encode_and_note(*arguments: Any, level: int) -> bytes:
        if level == BULK_LEVEL:
            under_lock.append(depth > 0)
        return encode(*arguments, level=level)

    monkeypatch.setattr(metrics._database, "writing", writing)
    for module in (blocks, late_writes):
        monkeypatch.setattr(module, "encode", encode_and_note)
    return under_lock


def put_hour(metrics: SqlMetricStore, values: np.ndarray = VALUES) -> None:
    metrics.write_block(EntityKind.GPU, TIMES, KEYS, GPUS, values)


def write_late(metrics: SqlMetricStore, value: float) -> None:
    """Writes a cycle with a timestamp between two of the hour."""
    at = T0 + 100 * STEP + timedelta(seconds=7)
    cells = np.full((len(GPUS), len(KEYS)), value)
    metrics.write(at, [SampleBatch("x", at, EntityKind.GPU, KEYS, GPUS, cells, np.zeros(cells.shape, np.uint8))])


def read(metrics: SqlMetricStore, step: timedelta = STEP) -> np.ndarray:
    window = metrics.read_windows(EntityKind.GPU, KEYS, T0, T0 + timedelta(hours=1), step, GPUS)
    assert (window.status == CellStatus.PRESENT).all()
    return window.values


def count_blocks(metrics: SqlMetricStore) -> tuple[int, int]:
    with metrics._database.reading() as connection:
        all_blocks, hidden = (
            sa.select(sa.func.count()).select_from(table) for table in (metadata.block, metadata.hidden)
        )
        return connection.execute(all_blocks).scalar_one(), connection.execute(hidden).scalar_one()


def test_history_is_packed_outside_write_transactions(metrics: SqlMetricStore, packed_under_lock: list[bool]) -> None:
    put_hour(metrics)
    put_hour(metrics, VALUES + 1)
    assert packed_under_lock == [False] * 4
    np.testing.assert_array_equal(read(metrics), VALUES + 1)
    assert count_blocks(metrics) == (2, 0)


def test_rows_are_split_for_a_late_cycle_outside_its_transaction(
    metrics: SqlMetricStore, packed_under_lock: list[bool]
) -> None:
    put_hour(metrics)
    packed_under_lock.clear()
    write_late(metrics, 5.0)
    write_late(metrics, 7.0)
    assert packed_under_lock == [False] * 4
    expected = VALUES.copy()
    expected[:, 100, 0] = 7.0
    expected[:, 100, 1] += 7.0
    np.testing.assert_array_equal(read(metrics), expected)
    assert count_blocks(metrics) == (5, 0)


def test_rows_that_changed_since_preparation_are_split_again(
    metrics: SqlMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_hour(metrics)
    prepare = late_writes.prepare

    def outdated(*arguments: Any) -> dict[int, Split]:
        return {number: Split(b"as it was", ()) for number in prepare(*arguments)}

    monkeypatch.setattr(late_writes, "prepare", outdated)
    write_late(metrics, 7.0)
    np.testing.assert_array_equal(read(metrics)[:, :100], VALUES[:, :100])
    np.testing.assert_array_equal(read(metrics)[:, 101:], VALUES[:, 101:])


def test_history_is_written_again_after_maintenance_deleted_it(
    metrics: SqlMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, times = atomic_replace.stage, 0

    def stage_and_purge(access: Access, drafts: Sequence[blocks.Draft]) -> list[int]:
        nonlocal times
        times += 1
        ids = stage(access, drafts)
        if times < 3:
            atomic_replace.purge(access)
        return ids

    monkeypatch.setattr(atomic_replace, "stage", stage_and_purge)
    put_hour(metrics)
    np.testing.assert_array_equal(read(metrics), VALUES)
    assert (times, count_blocks(metrics)) == (3, (2, 0))
    times = -9
    with pytest.raises(StoreError, match="interfered in every attempt"):
        put_hour(metrics, VALUES + 1)
    np.testing.assert_array_equal(read(metrics), VALUES)
