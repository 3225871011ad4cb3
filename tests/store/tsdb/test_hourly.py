"""``hourly_<kind>``: hourly values of entities in plain SQL."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.clock import rfc3339
from outrider.model import EntityKind, SampleBatch, SignalKey, Statistic
from outrider.vocabulary import catalog
from store.factory import SqlMetricStore, open_metrics, urls_of
from store.memory import MemoryMetricStore
from store.sql.database import Database
from store.tsdb import hourly
from store.tsdb.retention import Retention
from tests.store import aged_store
from tests.store.aged_store import GPUS, HOUR, NEXT_DAYS, REPLICAS, START, TTFT, fill

KEEPS = Retention(raw=timedelta(days=3))


def rows(store_url: str, query: str) -> list[sa.Row[tuple[object, ...]]]:
    database = Database(urls_of(store_url)[1], "metrics")
    try:
        with database.reading() as connection:
            return list(connection.execute(sa.text(query)))
    finally:
        database.close()


def assert_close(values: list[object], expected: np.ndarray) -> None:
    numbers = np.array([np.nan if value is None else value for value in values], dtype=float)
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)


@pytest.mark.slow
def test_an_hourly_row_equals_a_read_of_the_hour(metrics: SqlMetricStore, store_url: str) -> None:
    truth = MemoryMetricStore()
    fill(metrics, truth)
    metrics.maintain(NEXT_DAYS, KEEPS)
    expected_windows = {
        (kind, statistic): truth.read_windows(kind, keys, START, aged_store.END, HOUR, entities, statistic=statistic)
        for kind, (entities, keys) in aged_store.REQUESTS.items()
        for statistic in Statistic
    }
    for hour in range(aged_store.HOURS):
        at = rfc3339(START + hour * HOUR)
        rows_by_name = {row.name: row for row in rows(store_url, f"SELECT * FROM hourly_gpu WHERE at = '{at}'")}
        members = [row for row, gpu in enumerate(GPUS) if gpu.name in rows_by_name]
        for column, statistic, key in (
            ("hw_accel_power_watts", Statistic.MEAN, 0),
            ("hw_accel_power_watts_max", Statistic.MAX, 0),
            ("hw_accel_ecc_uncorrectable_total", Statistic.LAST, 1),
            ("hw_accel_fault_code", Statistic.LAST, 2),
            ("hw_accel_fault_code_max", Statistic.MAX, 2),
        ):
            window = expected_windows[EntityKind.GPU, statistic]
            expected = np.where(window.status[members, hour, key] > 2, np.nan, window.values[members, hour, key])
            assert_close([getattr(rows_by_name[GPUS[row].name], column) for row in members], expected)
    median = truth.read_windows(
        EntityKind.REPLICA, [SignalKey(TTFT.name, quantile=0.5), *TTFT.bucket_keys[:-1]], START, START + HOUR, HOUR,
        REPLICAS,
    )  # fmt: skip
    query = (
        f"SELECT name, {TTFT.name}_p50 p50, {TTFT.name}_count many FROM hourly_replica WHERE at = '{rfc3339(START)}'"
    )
    rows_by_name = {row.name: row for row in rows(store_url, query)}
    members = [row for row, replica in enumerate(REPLICAS) if replica.name in rows_by_name]
    assert_close([rows_by_name[REPLICAS[row].name].p50 for row in members], median.values[members, 0, 0])
    assert_close(
        [rows_by_name[REPLICAS[row].name].many for row in members], np.nansum(median.values[members, 0, 1:], axis=1)
    )


def test_an_hour_with_late_values_is_rewritten(metrics: SqlMetricStore, store_url: str) -> None:
    fill(metrics, end=START + HOUR)
    metrics.maintain(NEXT_DAYS, KEEPS)
    at = START + timedelta(minutes=1)
    values = np.array([[5000.0]])
    late = SampleBatch("x", at, EntityKind.GPU, (aged_store.POWER,), GPUS[:1], values, np.zeros((1, 1), np.uint8))
    metrics.write(at, [late])
    metrics.maintain(NEXT_DAYS, KEEPS)
    highest = rows(store_url, "SELECT max(hw_accel_power_watts_max), count(*) FROM hourly_gpu")
    ((highest_power, row_count),) = highest
    ((names,),) = rows(store_url, "SELECT count(DISTINCT name) FROM hourly_gpu")
    assert highest_power == 5000.0
    assert row_count == names, "one row per entity"


@pytest.mark.slow
def test_hours_beyond_retention_are_deleted(metrics: SqlMetricStore, store_url: str) -> None:
    fill(metrics)
    keeps = Retention(raw=timedelta(days=3), hourly_tables=NEXT_DAYS - START - 2 * HOUR)
    metrics.maintain(NEXT_DAYS, keeps)
    assert rows(store_url, "SELECT min(at) FROM hourly_gpu")[0][0] == rfc3339(START + 2 * HOUR)
    metrics.maintain(NEXT_DAYS + HOUR, keeps)
    assert rows(store_url, "SELECT min(at) FROM hourly_replica")[0][0] == rfc3339(START + 3 * HOUR)


def test_missing_tables_and_columns_are_created(metrics: SqlMetricStore, store_url: str) -> None:
    metrics.close()
    database = Database(urls_of(store_url)[1], "metrics")
    with database.writing() as connection:
        connection.execute(sa.text("ALTER TABLE hourly_gpu DROP COLUMN hw_accel_power_watts_max"))
        connection.execute(sa.text("DROP TABLE hourly_pod"))
    open_metrics(urls_of(store_url)[1]).close()
    with database.reading() as connection:
        columns = {column["name"] for column in sa.inspect(connection).get_columns("hourly_gpu")}
        assert sa.inspect(connection).has_table("hourly_pod")
    database.close()
    assert "hw_accel_power_watts_max" in columns


@pytest.mark.parametrize("kind", EntityKind)
def test_columns_follow_the_direction_of_their_signal(kind: EntityKind) -> None:
    cells = {cell.name: cell for cell in hourly.cells(kind)}
    assert len(cells) == len(hourly.cells(kind))
    assert all(len(name) < 64 for name in cells), "PostgreSQL truncates longer names"
    for name, cell in cells.items():
        assert name in (cell.signal.name, f"{cell.signal.name}_{cell.statistic}")
        assert (cell.statistic == "max") <= (cell.signal.good in ("lower", "range"))
    assert not {signal.name for signal in catalog.signals().values() if signal.bounds} & set(cells)
