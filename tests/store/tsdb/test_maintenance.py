"""Upkeep changes what is stored and no answer, wherever it is cut off."""

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
def test_every_tier_gives_the_same_answers(metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore) -> None:
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
    # a day has one row for what is rolled up alike: five signals of GPUs; buckets and quantiles of replicas
    assert tiers(store_url) == {"raw": 4 * (6 + 3), "10m": 2 * (5 + 2), "1h": 2 * (5 + 2)}
    assert not metrics.maintain(NEXT_DAYS, KEEPS), "nothing is left to do"


@pytest.mark.slow
def test_a_span_that_ends_inside_an_hour_equals_raw_values(metrics: SqlMetricStore, truth: MemoryMetricStore) -> None:
    fill(metrics)
    metrics.maintain(NEXT_DAYS, KEEPS)
    for late in (MINUTE, 10 * MINUTE, 25 * MINUTE):
        assert_same_reads(metrics, truth, (10 * MINUTE, HOUR), START, START + 2 * HOUR + late)
        assert_same_reads(metrics, truth, (10 * MINUTE, HOUR), START + late, START + 3 * HOUR)


@pytest.mark.slow
def test_old_raw_values_go_and_roll_ups_answer(
    metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore
) -> None:
    fill(metrics)
    found = metrics.maintain(NEXT_DAYS, Retention(raw=NEXT_DAYS - START - 3 * HOUR))
    assert found.deletions.rows.pop(("cohort", DeletionReason.UNUSED)) > 0
    assert found.deletions.rows == {("raw", DeletionReason.AGE): 3 * 9, ("latest", DeletionReason.AGE): 2}
    assert_same_reads(metrics, truth, (10 * MINUTE, 30 * MINUTE, HOUR))
    ecc = metrics.read_windows(EntityKind.GPU, [GPU_KEYS[1]], START, START + HOUR, 5 * MINUTE, GPUS)
    assert np.flatnonzero((ecc.status[:, :, 0] != CellStatus.ABSENT).any(axis=0)).tolist() == [0, 2, 4, 6, 8, 10]
    known = truth.read_windows(EntityKind.GPU, [GPU_KEYS[1]], START, START + HOUR, HOUR, GPUS)
    np.testing.assert_array_equal(np.nansum(ecc.values, axis=1), np.nan_to_num(known.values[:, 0]))
    assert_same_reads(metrics, truth, (EVERY,), START + 3 * HOUR)
    metrics.maintain(NEXT_DAYS, Retention(raw=HOUR, ten_minutes=HOUR))
    assert set(tiers(store_url)) == {"1h"}
    assert_same_reads(metrics, truth, (HOUR, 3 * HOUR))
    metrics.maintain(NEXT_DAYS + timedelta(days=3), Retention(raw=HOUR, ten_minutes=HOUR, hours=2 * HOUR))
    assert tiers(store_url) == {}


@contextmanager
def cut_off(store: SqlMetricStore, after: int) -> Iterator[list[int]]:
    """Every write transaction after so many fails before it begins, as after a kill."""
    begun = [0]
    writing = store._database.writing

    @contextmanager
    def counted() -> Iterator[sa.Connection]:
        begun[0] += 1
        if begun[0] > after:
            raise InterruptedError
        with writing() as connection:
            yield connection

    store._database.writing = counted  # type: ignore[method-assign]
    try:
        yield begun
    finally:
        store._database.writing = writing  # type: ignore[method-assign]


@pytest.mark.slow
def test_cut_off_after_any_transaction_it_goes_on_where_it_was(tmp_path: Path) -> None:
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
        with cut_off(store, after):
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
            left = connection.execute(sa.text("SELECT (SELECT count(*) FROM hidden), (SELECT count(*) FROM due)"))
            assert tuple(left.one()) == (0, 0)
            stored = connection.execute(sa.text("SELECT tier, count(*) FROM block GROUP BY tier"))
            assert {row.tier: row[1] for row in stored} == {"raw": 9, "10m": 14, "1h": 14}
        store.close()
        copy.unlink()
        if finished:
            break
        after += 1 + after // 6  # the later ones, which are alike, in wider steps
    assert after > 20


@pytest.mark.slow
def test_late_cycles_are_rolled_up_again(metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore) -> None:
    fill(metrics)
    metrics.maintain(NEXT_DAYS, KEEPS)
    late = [START + timedelta(minutes=1), START + HOUR + timedelta(minutes=1), START + 3 * HOUR + timedelta(minutes=31)]
    for number, at in enumerate(late):
        for store in (metrics, truth):
            store.write(at, batch(at, 5000.0 + number))
    again = START + HOUR + 3 * MINUTE  # and a second write of an instant that is there
    for store in (metrics, truth):
        store.write(again, batch(again, 7000.0))
    assert_same_reads(metrics, truth)
    done = metrics.maintain(NEXT_DAYS, KEEPS)
    assert done.done[Work.TEN_MINUTES] == done.done[Work.ONE_HOUR] == 3
    assert done.done[Work.MERGE_TEN_MINUTES] == 2
    assert_same_reads(metrics, truth)
    assert tiers(store_url) == {"raw": 4 * 9, "10m": 2 * 7, "1h": 2 * 7}


def test_what_comes_after_raw_values_are_gone_fills_gaps_and_the_rest_is_counted(
    metrics: SqlMetricStore, store_url: str
) -> None:
    fill(metrics)
    retention = Retention(raw=timedelta(hours=2))
    metrics.maintain(NEXT_DAYS, retention)
    before = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, 10 * MINUTE, GPUS)
    newcomer = START + 15 * MINUTE
    gone = [place for place in range(len(GPUS)) if np.isnan(before.values[place, 1, 0])]
    there = [place for place in range(len(GPUS)) if not np.isnan(before.values[place, 1, 0])]
    assert gone
    assert there
    assert metrics.write(newcomer, batch(newcomer, 77.0, (*gone, *there))) == len(GPUS)
    assert metrics.maintain(NEXT_DAYS, retention).refused == 0, "the first run lets late values settle"
    found = metrics.maintain(NEXT_DAYS, retention)
    assert found.refused == len(there)
    assert metrics.condition().refused == {"rolled_up_already": len(there)}
    for step, place in ((10 * MINUTE, 1), (HOUR, 0)):
        after = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, step, GPUS)
        assert after.values[gone, place, 0].tolist() == [77.0] * len(gone)
    after = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, 10 * MINUTE, GPUS)
    np.testing.assert_array_equal(after.values[there], before.values[there])
    others = [0, 2, 3, 4, 5]
    np.testing.assert_array_equal(after.values[:, others], before.values[:, others])
    assert "raw" not in tiers(store_url)
    metrics.write(newcomer, batch(newcomer, 78.0, (*gone, *there)))
    assert metrics.prune(NEXT_DAYS, retention).refused == len(GPUS), "what was filled in is not counted twice"


def test_values_older_than_all_that_is_kept_are_refused_at_once(metrics: SqlMetricStore) -> None:
    fill(metrics)
    nothing = Retention(raw=HOUR, ten_minutes=HOUR, hours=HOUR)
    metrics.maintain(NEXT_DAYS + timedelta(days=2), nothing)
    assert metrics.write(START, batch(START, 1.0)) == 0
    assert metrics.condition().refused == {"older_than_kept": 2}
    assert metrics.write(NEXT_DAYS + timedelta(days=2), batch(START, 1.0)) == 2


def test_a_first_history_of_a_kind_lands_whatever_its_age(metrics: SqlMetricStore, store_url: str) -> None:
    times = START.timestamp() + 300.0 * np.arange(12 * 24 * 5)
    values = np.tile(np.arange(times.size, dtype=float)[None, :, None] % 97, (2, 1, 1))
    metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[:2], values)
    end = START + timedelta(days=5)
    found = metrics.maintain(end + timedelta(minutes=1), Retention())
    assert found.done[Work.TEN_MINUTES] == found.done[Work.ONE_HOUR] == 120 - 1, "the newest hour is to settle"
    assert found.done[Work.MERGE_TEN_MINUTES] == 5
    window = metrics.read_windows(EntityKind.GPU, [POWER], START, end, 10 * MINUTE)
    np.testing.assert_array_equal(window.values[:, :, 0], values[:, 1::2, 0])
    assert rows(store_url, "SELECT min(start_us) >= 1772571600000000 - 86400000000 FROM block WHERE tier = 'raw'")[0][0]


def test_it_stops_on_request(metrics: SqlMetricStore) -> None:
    fill(metrics, end=START + 2 * HOUR)
    answers = iter([False, True])
    found = metrics.maintain(NEXT_DAYS, KEEPS, stop=lambda: next(answers))
    assert (found.complete, found.done) == (False, {Work.COMPACT: 1})
    assert metrics.maintain(NEXT_DAYS, KEEPS).complete


def test_a_history_from_before_the_cut_is_seen_before_it_is_rolled_up(metrics: SqlMetricStore) -> None:
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


def test_the_helper_covers_both_days() -> None:
    assert aged_store.START.day != aged_store.END.day
