"""Retention by age and by size, and release of free space."""

from __future__ import annotations

import contextlib
import itertools
from datetime import timedelta
from pathlib import Path

import pytest

from outrider.model import EntityKind, Event, EventKind
from store.factory import SqlMetricStore, open_metrics, urls_of
from store.memory import MemoryMetricStore
from store.tsdb import disk_usage, hourly, retention
from store.tsdb.retention import DeletionReason, Retention
from tests.store.aged_store import GPUS, HOUR, MINUTE, NEXT_DAYS, POWER, START, assert_same_reads, fill
from tests.store.maintenance_cases import KEEPS, MANY, batch, counts_after_writes, rows, tiers, write_many


@pytest.mark.slow
def test_retention_by_size_deletes_the_oldest_raw_values_first_then_coarser_ones(
    metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.tsdb.retention._SLACK", 0.0)
    fill(metrics)
    metrics.maintain(NEXT_DAYS, KEEPS)
    with metrics._database.reading() as connection:
        used = disk_usage.measure(connection).used
    report = metrics.maintain(NEXT_DAYS, Retention(raw=timedelta(days=3), size_bytes=used - 1000))
    assert set(report.deletions.rows) - {("cohort", DeletionReason.UNUSED)} == {("raw", DeletionReason.SIZE)}
    assert_same_reads(metrics, truth, (10 * MINUTE, HOUR))
    report = metrics.maintain(NEXT_DAYS, Retention(raw=timedelta(days=3), size_bytes=1))
    report.deletions.rows.pop(("cohort", DeletionReason.UNUSED), None)
    assert {item for item, _ in report.deletions.rows} == {"raw", "hourly", "10m", "1h"}
    assert {reason for _, reason in report.deletions.rows} == {DeletionReason.SIZE}
    assert tiers(store_url) == {}


@pytest.mark.slow
def test_values_without_a_roll_up_are_deleted_last_and_counted(metrics: SqlMetricStore, store_url: str) -> None:
    fill(metrics)
    now = START + 4 * HOUR + MINUTE  # the last hour is not settled, and not rolled up
    report = metrics.maintain(now, Retention(size_bytes=1))
    assert report.deletions.rows["raw", DeletionReason.SIZE_NOTHING_ELSE_LEFT] > 0
    assert "10m" not in tiers(store_url)
    metrics.write(now, batch(now, 1.0))
    metrics.maintain(now + MINUTE, Retention(size_bytes=1))
    assert metrics.latest(EntityKind.GPU, [POWER]).values.size == 2, "the current hour stays"


@pytest.mark.slow
def test_retention_by_age_keeps_values_without_a_roll_up(metrics: SqlMetricStore, store_url: str) -> None:
    fill(metrics, end=START + 2 * HOUR)
    report = metrics.maintain(START + 2 * HOUR + MINUTE, Retention(raw=MINUTE))
    assert report.deletions.kept[DeletionReason.NOT_ROLLED_UP] == 2, "the second hour of both kinds is not settled"
    assert tiers(store_url)["raw"] == 2 * 20


def test_maintenance_shrinks_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_usage, "_SPARE_BYTES", 0)
    monkeypatch.setattr(disk_usage, "_SPARE_RATIO", 0.0)
    path = tmp_path / "m.db"
    store = open_metrics(f"sqlite:///{path}")
    fill(store)
    with store._database.reading() as connection:
        full = disk_usage.measure(connection)
    report = store.maintain(NEXT_DAYS, Retention(raw=HOUR, ten_minutes=HOUR))
    with store._database.reading() as connection:
        after = disk_usage.measure(connection)
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    store.close()
    assert report.released_bytes > 0
    assert after.free == 0
    assert path.stat().st_size == after.used < full.used


@pytest.mark.slow
def test_vacuum_enables_shrinking_of_an_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truth: MemoryMetricStore
) -> None:
    path = tmp_path / "old.db"
    with monkeypatch.context() as patch:
        patch.setattr("store.sql.sqlite._ON_CONNECT", ("journal_mode=WAL", "foreign_keys=ON"))
        store = open_metrics(f"sqlite:///{path}")
        fill(store)
        store.close()
    store = open_metrics(f"sqlite:///{path}")
    assert not shrinks(store)
    assert store.maintain(NEXT_DAYS, KEEPS).released_bytes == 0
    assert_same_reads(store, truth, (10 * MINUTE, HOUR))
    store.prune(NEXT_DAYS, KEEPS, vacuum=True)
    assert shrinks(store)
    assert_same_reads(store, truth, (10 * MINUTE, HOUR))
    store.close()


def shrinks(store: SqlMetricStore) -> bool:
    with store._database.reading() as connection:
        return disk_usage.shrinks(connection)


@pytest.mark.slow
def test_prune_runs_vacuum_on_a_server(metrics: SqlMetricStore, truth: MemoryMetricStore) -> None:
    fill(metrics)
    metrics.prune(NEXT_DAYS, KEEPS, vacuum=True)
    assert_same_reads(metrics, truth, (10 * MINUTE, HOUR))


BY_HOUR = "SELECT at, count(*) FROM hourly_gpu GROUP BY at"


def test_an_hour_of_the_hourly_tables_appears_and_disappears_in_one_transaction(
    metrics: SqlMetricStore, store_url: str
) -> None:
    write_many(metrics, START, 1.0)
    write_many(metrics, START + HOUR, 1.0)
    with counts_after_writes(metrics, BY_HOUR) as counts_by_transaction:
        metrics.maintain(START + 3 * HOUR, KEEPS)
        write_many(metrics, START + MINUTE, 9.0)
        metrics.maintain(START + 3 * HOUR, KEEPS)
        metrics.maintain(START + 3 * HOUR, Retention(raw=timedelta(days=3), hourly_tables=HOUR))
    assert {rows for counts in counts_by_transaction for rows in counts.values()} == {400}
    assert [len(counts) for counts in counts_by_transaction][-1] == 0
    assert 2 in [len(counts) for counts in counts_by_transaction]


def test_a_large_hour_is_rewritten_and_deleted_in_parts(
    metrics: SqlMetricStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hourly, "ROWS_AT_ONCE", 150)
    write_many(metrics, START, 1.0, MANY[:350])
    metrics.maintain(START + 2 * HOUR, KEEPS)
    write_many(metrics, START + MINUTE, 9.0)
    with counts_after_writes(metrics, BY_HOUR) as counts_by_transaction:
        metrics.maintain(START + 2 * HOUR, KEEPS)
        columns = "SELECT count(*), count(DISTINCT name), max(hw_accel_power_watts), min(hw_accel_power_watts)"
        assert rows(store_url, f"{columns} FROM hourly_gpu") == [(400, 400, 9.0, 5.0)]
        metrics.maintain(START + 9 * HOUR, Retention(raw=timedelta(days=3), hourly_tables=HOUR))
    counts = [next(iter(counts.values()), 0) for counts in counts_by_transaction]
    assert counts[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 150  # type: ignore[operator,type-var]
    assert min(counts[: counts.index(400)]) == 350, "the previous rows stay until they are replaced"


def test_events_are_deleted_in_batches(metrics: SqlMetricStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_ROWS_AT_ONCE", 3)
    times = [START + number * MINUTE for number in range(10)]
    events = [Event(f"e{n}", EventKind.LOG, GPUS[0], at, "log", "oom", {}, f"k{n}") for n, at in enumerate(times)]
    metrics.write(START, [], events)
    with counts_after_writes(metrics, "SELECT 'event', count(*) FROM event") as counts_by_transaction:
        report = metrics.maintain(START + 7 * MINUTE + timedelta(days=400))
    counts = [counts["event"] for counts in counts_by_transaction]
    assert report.deletions.rows["event", DeletionReason.AGE] == 7
    assert counts[-1] == 3
    assert max(before - after for before, after in itertools.pairwise([10, *counts])) <= 3  # type: ignore[operator,type-var]


@pytest.mark.slow
def test_retention_by_size_deletes_no_more_hourly_rows_than_needed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.tsdb.retention._SLACK", 0.0)
    store_url, metrics = postgres_url, open_metrics(urls_of(postgres_url)[1])  # the pages of a file are too coarse
    fill(metrics)
    metrics.maintain(NEXT_DAYS, KEEPS)
    rolled = {tier: row_count for tier, row_count in tiers(store_url).items() if tier != "raw"}
    used = [measured(metrics).used]
    hours = dict(rows(store_url, "SELECT at, count(*) FROM hourly_gpu GROUP BY at"))  # type: ignore[arg-type]
    ((raw, row_count),) = rows(store_url, "SELECT sum(length(payload)), count(*) FROM block WHERE tier = 'raw'")
    limit = used[0] - int(raw) - disk_usage._ROW_BYTES * int(row_count) - 500  # type: ignore[call-overload]
    report = metrics.maintain(NEXT_DAYS + timedelta(days=1), Retention(raw=timedelta(days=3), size_bytes=limit))
    assert report.deletions.rows["raw", DeletionReason.SIZE] == row_count
    remaining = rows(store_url, "SELECT at, count(*) FROM hourly_gpu GROUP BY at")
    assert remaining == [(max(hours), hours[max(hours)])], "the first day is deleted, which is enough"
    assert tiers(store_url) == rolled
    assert measured(metrics).used <= limit
    metrics.close()


@pytest.mark.slow
def test_retention_by_size_stops_if_deleting_hourly_rows_frees_no_space(
    metrics: SqlMetricStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(metrics)
    metrics.maintain(NEXT_DAYS, KEEPS)
    monkeypatch.setattr(disk_usage, "measure", lambda *_, **__: disk_usage.Space(1000, 0))
    metrics.maintain(NEXT_DAYS + timedelta(days=1), Retention(raw=timedelta(days=3), size_bytes=10))
    ((remaining,),) = rows(store_url, "SELECT count(DISTINCT at) FROM hourly_gpu")
    assert remaining == 1


def measured(store: SqlMetricStore) -> disk_usage.Space:
    with store._database.reading() as connection:
        return disk_usage.measure(connection, exact=True)


def test_the_estimated_size_on_a_server_equals_the_exact_one(postgres_url: str) -> None:
    metrics = open_metrics(urls_of(postgres_url)[1])
    fill(metrics)
    metrics.prune(NEXT_DAYS, KEEPS, vacuum=True)
    with metrics._database.reading() as connection:
        assert disk_usage.measure(connection) == disk_usage.measure(connection, exact=True)
    metrics.close()


def test_the_size_of_the_wal_is_limited(tmp_path: Path) -> None:
    with contextlib.closing(open_metrics(f"sqlite:///{tmp_path}/m.db")) as store:
        with store._database.reading() as connection:
            limit = connection.exec_driver_sql("PRAGMA journal_size_limit").scalar_one()
        assert limit == 64 << 20
