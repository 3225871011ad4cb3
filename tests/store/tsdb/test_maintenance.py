"""Maintenance changes the storage format but no read, wherever it is interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.model import CellStatus, EntityKind, Statistic
from store.factory import SqlMetricStore, open_metrics
from store.memory import MemoryMetricStore
from store.tsdb.retention import DeletionReason, Retention
from store.tsdb.tiers import Work
from tests.store import aged_store
from tests.store.aged_store import EVERY, GPU_KEYS, GPUS, HOUR, MINUTE, NEXT_DAYS, POWER, START, assert_same_reads, fill
from tests.store.maintenance_cases import KEEPS, batch, rows, tiers


@pytest.mark.slow
def test_every_tier_gives_the_same_reads(metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore) -> None:
    fill(metrics)
    assert_same_reads(metrics, truth)
    during = metrics.maintain(START + 3 * HOUR + 5 * MINUTE, KEEPS)  # the first day is over
    hours = {Work.COMPACT: 6, Work.TEN_MINUTES: 6, Work.ONE_HOUR: 6}
    assert during.done == {**hours, Work.MERGE_TEN_MINUTES: 2, Work.MERGE_HOURS: 2}
    assert_same_reads(metrics, truth)
    done = metrics.maintain(NEXT_DAYS, KEEPS)
    hours = {Work.COMPACT: 2, Work.TEN_MINUTES: 2, Work.ONE_HOUR: 2}
    assert done.done == {**hours, Work.MERGE_TEN_MINUTES: 2, Work.MERGE_HOURS: 2}
    assert_same_reads(metrics, truth)
    assert rows(store_url, "SELECT count(*) FROM hidden") == rows(store_url, "SELECT count(*) FROM due") == [(0,)]
    # a day has one row per signal and fold: five GPU signals; buckets and quantiles of replicas
    assert tiers(store_url) == {"raw": 4 * (6 + 3), "10m": 2 * (5 + 2), "1h": 2 * (5 + 2)}
    assert not metrics.maintain(NEXT_DAYS, KEEPS), "no work is left"


@pytest.mark.slow
def test_a_span_that_ends_inside_an_hour_equals_raw_values(metrics: SqlMetricStore, truth: MemoryMetricStore) -> None:
    fill(metrics)
    metrics.maintain(NEXT_DAYS, KEEPS)
    for late in (MINUTE, 10 * MINUTE, 25 * MINUTE):
        assert_same_reads(metrics, truth, (10 * MINUTE, HOUR), START, START + 2 * HOUR + late)
        assert_same_reads(metrics, truth, (10 * MINUTE, HOUR), START + late, START + 3 * HOUR)


@pytest.mark.slow
def test_roll_ups_replace_deleted_raw_values(metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore) -> None:
    fill(metrics)
    report = metrics.maintain(NEXT_DAYS, Retention(raw=NEXT_DAYS - START - 3 * HOUR))
    assert report.deletions.rows.pop(("cohort", DeletionReason.UNUSED)) > 0
    assert report.deletions.rows == {("raw", DeletionReason.AGE): 3 * 9, ("latest", DeletionReason.AGE): 2}
    assert_same_reads(metrics, truth, (10 * MINUTE, 30 * MINUTE, HOUR))
    ecc = metrics.read_windows(EntityKind.GPU, [GPU_KEYS[1]], START, START + HOUR, 5 * MINUTE, GPUS)
    assert np.flatnonzero((ecc.status[:, :, 0] != CellStatus.ABSENT).any(axis=0)).tolist() == [0, 2, 4, 6, 8, 10]
    expected = truth.read_windows(EntityKind.GPU, [GPU_KEYS[1]], START, START + HOUR, HOUR, GPUS)
    np.testing.assert_array_equal(np.nansum(ecc.values, axis=1), np.nan_to_num(expected.values[:, 0]))
    assert_same_reads(metrics, truth, (EVERY,), START + 3 * HOUR)
    metrics.maintain(NEXT_DAYS, Retention(raw=HOUR, ten_minutes=HOUR))
    assert set(tiers(store_url)) == {"1h"}
    assert_same_reads(metrics, truth, (HOUR, 3 * HOUR))
    metrics.maintain(NEXT_DAYS + timedelta(days=3), Retention(raw=HOUR, ten_minutes=HOUR, hours=2 * HOUR))
    assert tiers(store_url) == {}


@contextmanager
def interrupt_after(store: SqlMetricStore, after: int) -> Iterator[list[int]]:
    """Lets every write transaction fail after the first ``after`` ones, as after a kill."""
    transactions = [0]
    writing = store._database.writing

    @contextmanager
    def writing_or_fail() -> Iterator[sa.Connection]:
        transactions[0] += 1
        if transactions[0] > after:
            raise InterruptedError
        with writing() as connection:
            yield connection

    store._database.writing = writing_or_fail  # type: ignore[method-assign]
    try:
        yield transactions
    finally:
        store._database.writing = writing  # type: ignore[method-assign]


@pytest.mark.slow
def test_maintenance_resumes_after_an_interruption_at_any_transaction(tmp_path: Path) -> None:
    start = START + HOUR  # an hour of each day
    retention = Retention(raw=NEXT_DAYS - start - HOUR, hourly_tables=timedelta(days=9))
    first, truth = tmp_path / "first.db", MemoryMetricStore()
    store = open_metrics(f"sqlite:///{first}")
    fill(store, truth, start=start, end=start + 2 * HOUR)
    store.close()
    after = 0

    def unchanged() -> None:
        assert_same_reads(store, truth, (10 * MINUTE,), start, start + 2 * HOUR, (Statistic.MEAN,))

    while True:
        copy = tmp_path / f"copy-{after}.db"
        shutil.copy(first, copy)
        store = open_metrics(f"sqlite:///{copy}")
        finished = False
        with interrupt_after(store, after):
            try:
                store.maintain(NEXT_DAYS, retention)
                finished = True
            except InterruptedError:
                pass
        unchanged()
        store.close()
        store = open_metrics(f"sqlite:///{copy}")
        store.maintain(NEXT_DAYS, retention)
        unchanged()
        with store._database.reading() as connection:
            remaining = connection.execute(sa.text("SELECT (SELECT count(*) FROM hidden), (SELECT count(*) FROM due)"))
            assert tuple(remaining.one()) == (0, 0)
            stored = connection.execute(sa.text("SELECT tier, count(*) FROM block GROUP BY tier"))
            assert {row.tier: row[1] for row in stored} == {"raw": 9, "10m": 14, "1h": 14}
        store.close()
        copy.unlink()
        if finished:
            break
        after += 1 + after // 6  # later transactions are alike: larger steps
    assert after > 20


@pytest.mark.slow
def test_late_cycles_are_rolled_up_again(metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore) -> None:
    fill(metrics)
    metrics.maintain(NEXT_DAYS, KEEPS)
    late = [START + timedelta(minutes=1), START + HOUR + timedelta(minutes=1), START + 3 * HOUR + timedelta(minutes=31)]
    for number, at in enumerate(late):
        for store in (metrics, truth):
            store.write(at, batch(at, 5000.0 + number))
    rewritten = START + HOUR + 3 * MINUTE  # a second write of a stored timestamp
    for store in (metrics, truth):
        store.write(rewritten, batch(rewritten, 7000.0))
    assert_same_reads(metrics, truth)
    done = metrics.maintain(NEXT_DAYS, KEEPS)
    assert done.done[Work.TEN_MINUTES] == done.done[Work.ONE_HOUR] == 3
    assert done.done[Work.MERGE_TEN_MINUTES] == 2
    assert_same_reads(metrics, truth)
    assert tiers(store_url) == {"raw": 4 * 9, "10m": 2 * 7, "1h": 2 * 7}


@pytest.mark.slow
def test_late_values_after_the_raw_cut_fill_gaps_and_others_are_rejected(
    metrics: SqlMetricStore, store_url: str
) -> None:
    fill(metrics)
    retention = Retention(raw=timedelta(hours=2))
    metrics.maintain(NEXT_DAYS, retention)
    before = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, 10 * MINUTE, GPUS)
    newcomer = START + 15 * MINUTE
    missing = [index for index in range(len(GPUS)) if np.isnan(before.values[index, 1, 0])]
    present = [index for index in range(len(GPUS)) if not np.isnan(before.values[index, 1, 0])]
    assert missing
    assert present
    assert metrics.write(newcomer, batch(newcomer, 77.0, (*missing, *present))) == len(GPUS)
    assert metrics.maintain(NEXT_DAYS, retention).refused == 0, "the first run lets late values settle"
    report = metrics.maintain(NEXT_DAYS, retention)
    assert report.refused == len(present)
    assert metrics.condition().refused == {"rolled_up_already": len(present)}
    for step, index in ((10 * MINUTE, 1), (HOUR, 0)):
        after = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, step, GPUS)
        assert after.values[missing, index, 0].tolist() == [77.0] * len(missing)
    after = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, 10 * MINUTE, GPUS)
    np.testing.assert_array_equal(after.values[present], before.values[present])
    others = [0, 2, 3, 4, 5]
    np.testing.assert_array_equal(after.values[:, others], before.values[:, others])
    assert "raw" not in tiers(store_url)
    metrics.write(newcomer, batch(newcomer, 78.0, (*missing, *present)))
    assert metrics.prune(NEXT_DAYS, retention).refused == len(GPUS), "filled spans are not filled twice"


@pytest.mark.slow
def test_values_older_than_all_retention_are_rejected_on_write(metrics: SqlMetricStore) -> None:
    fill(metrics)
    retention = Retention(raw=HOUR, ten_minutes=HOUR, hours=HOUR)
    metrics.maintain(NEXT_DAYS + timedelta(days=2), retention)
    assert metrics.write(START, batch(START, 1.0)) == 0
    assert metrics.condition().refused == {"older_than_kept": 2}
    assert metrics.write(NEXT_DAYS + timedelta(days=2), batch(START, 1.0)) == 2


def test_the_first_history_of_a_kind_is_accepted_at_any_age(metrics: SqlMetricStore, store_url: str) -> None:
    times = START.timestamp() + 300.0 * np.arange(12 * 24 * 5)
    values = np.tile(np.arange(times.size, dtype=float)[None, :, None] % 97, (2, 1, 1))
    metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[:2], values)
    end = START + timedelta(days=5)
    report = metrics.maintain(end + timedelta(minutes=1), Retention())
    assert report.done[Work.TEN_MINUTES] == report.done[Work.ONE_HOUR] == 120 - 1, "the newest hour is not settled"
    assert report.done[Work.MERGE_TEN_MINUTES] == 5
    window = metrics.read_windows(EntityKind.GPU, [POWER], START, end, 10 * MINUTE)
    np.testing.assert_array_equal(window.values[:, :, 0], values[:, 1::2, 0])
    assert rows(store_url, "SELECT min(start_us) >= 1772571600000000 - 86400000000 FROM block WHERE tier = 'raw'")[0][0]


def test_maintenance_stops_on_request(metrics: SqlMetricStore) -> None:
    fill(metrics, end=START + 2 * HOUR)
    answers = iter([False, True])
    report = metrics.maintain(NEXT_DAYS, KEEPS, stop=lambda: next(answers))
    assert (report.complete, report.done) == (False, {Work.COMPACT: 1})
    assert metrics.maintain(NEXT_DAYS, KEEPS).complete


@pytest.mark.slow
def test_history_before_the_cut_is_readable_before_its_roll_up(metrics: SqlMetricStore) -> None:
    fill(metrics)
    metrics.maintain(NEXT_DAYS, Retention(raw=HOUR))
    long_ago = START - timedelta(days=2)
    times = long_ago.timestamp() + 60.0 * np.arange(30)
    metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[:1], np.arange(30.0).reshape(1, 30, 1))
    for _ in range(3):
        window = metrics.read_windows(EntityKind.GPU, [POWER], long_ago, long_ago + HOUR, 10 * MINUTE, GPUS[:1])
        assert window.values[0, :3, 0].tolist() == [9.0, 19.0, 29.0]
        metrics.maintain(NEXT_DAYS, Retention(raw=HOUR))


def test_the_longest_transaction_is_reported(metrics: SqlMetricStore) -> None:
    assert metrics.longest_maintenance_seconds == 0.0
    fill(metrics, end=START + HOUR)
    metrics.maintain(NEXT_DAYS, KEEPS)
    assert metrics.longest_maintenance_seconds > 0.0


def test_the_test_data_spans_two_days() -> None:
    assert aged_store.START.day != aged_store.END.day
