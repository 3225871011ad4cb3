from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import sqlalchemy as sa

from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey
from outrider.vocabulary import catalog
from store.factory import SqlMetricStore, open_metrics, urls_of
from store.sql.database import Database

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
POWER, ECC = SignalKey("hw_accel_power_watts"), SignalKey("hw_accel_ecc_uncorrectable_total")
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(4))


def cycle(at: datetime, power: float, gpus: tuple[EntityRef, ...] = GPUS) -> list[SampleBatch]:
    values = np.tile([power, 1.0], (len(gpus), 1))
    return [SampleBatch("dcgm", at, EntityKind.GPU, (POWER, ECC), gpus, values, np.zeros(values.shape, np.uint8))]


def rows(store_url: str, query: str) -> list[tuple[object, ...]]:
    database = Database(urls_of(store_url)[1], "metrics")
    try:
        with database.reading() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]
    finally:
        database.close()


def test_a_cycle_is_one_row_and_a_compacted_hour_one_row_per_signal(metrics: SqlMetricStore, store_url: str) -> None:
    for index in range(240):
        metrics.write(T0 + index * STEP, cycle(T0, float(index)))
    metrics.write(T0 + timedelta(hours=1), cycle(T0, 1.0))
    assert rows(store_url, "select count(*), sum(instants) from block") == [(241, 241)]
    assert metrics.compact(T0 + timedelta(hours=1, minutes=30)) == 1
    assert metrics.compact(T0 + timedelta(hours=1, minutes=30)) == 0
    result = rows(store_url, "select instants, count(*) from block group by 1 order by 1")
    assert result == [(1, 1), (240, 3)]  # power, ecc and the scrape offset
    window = metrics.read_windows(EntityKind.GPU, [POWER, ECC], T0, T0 + timedelta(hours=1), timedelta(minutes=10))
    assert window.values[2, :, 0].tolist() == [39.0, 79.0, 119.0, 159.0, 199.0, 239.0]
    assert window.values[2, :, 1].tolist() == [40.0] * 6


def test_a_cycle_written_into_a_compacted_hour_splits_it(metrics: SqlMetricStore, store_url: str) -> None:
    for index in range(240):
        metrics.write(T0 + index * STEP, cycle(T0, float(index)))
    metrics.compact(T0 + timedelta(hours=2))
    late = T0 + timedelta(minutes=30)
    metrics.write(late, cycle(T0, 5000.0, GPUS[:1]))
    window = metrics.read_windows(EntityKind.GPU, [POWER, ECC], late, late + STEP, STEP)
    assert window.entities == GPUS[:1]
    assert window.values.tolist() == [[[5000.0, 1.0]]]
    hour_window = metrics.read_windows(EntityKind.GPU, [ECC], T0, T0 + timedelta(hours=1), timedelta(hours=1))
    assert hour_window.values[:, 0, 0].tolist() == [240.0, 239.0, 239.0, 239.0]
    assert metrics.compact(T0 + timedelta(hours=2)) == 1
    after_compaction = metrics.read_windows(EntityKind.GPU, [ECC], T0, T0 + timedelta(hours=1), timedelta(hours=1))
    assert after_compaction.values.tolist() == hour_window.values.tolist()
    assert rows(store_url, "select count(*) from block") == [(3,)]


def test_history_is_written_atomically_and_may_be_rewritten(metrics: SqlMetricStore, store_url: str) -> None:
    times = T0.timestamp() + 600.0 * np.arange(6 * 24 * 3)  # three days at 10 min
    values = np.stack([np.tile(np.arange(times.size) % 144, (4, 1)), np.ones((4, times.size))], axis=-1).astype(float)
    values[1, 10] = np.nan
    assert metrics.write_block(EntityKind.GPU, times, [POWER, ECC], GPUS, values) == values.size - 2
    assert metrics.write_block(EntityKind.GPU, times, [POWER, ECC], GPUS, values) == values.size - 2
    assert rows(store_url, "select count(*), max(end_us - start_us) < 86400000000 from block") == [(6, 1)]
    window = metrics.read_windows(EntityKind.GPU, [POWER, ECC], T0, T0 + timedelta(days=3), timedelta(minutes=10))
    np.testing.assert_array_equal(window.values, values)
    assert window.status[1, 10].tolist() == [CellStatus.ABSENT] * 2
    day = metrics.read_windows(EntityKind.GPU, [ECC], T0, T0 + timedelta(days=3), timedelta(days=1))
    assert day.values[:, :, 0].tolist() == [[144.0] * 3, [143.0, 144.0, 144.0], [144.0] * 3, [144.0] * 3]


def test_histories_of_different_entities_coexist(metrics: SqlMetricStore) -> None:
    times = T0.timestamp() + 60.0 * np.arange(30)
    for index in (1, 0):
        values = np.full((2, 30, 1), float(index))
        metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[2 * index : 2 * index + 2], values)
    window = metrics.read_windows(EntityKind.GPU, [POWER], T0, T0 + timedelta(minutes=30), timedelta(minutes=5))
    assert window.entities == GPUS
    assert window.values[:, :, 0].tolist() == [[0.0] * 6] * 2 + [[1.0] * 6] * 2


def test_the_latest_table_has_a_column_per_signal_and_null_without_a_value(
    metrics: SqlMetricStore, store_url: str
) -> None:
    metrics.write(T0, cycle(T0, 100.0))
    values = np.array([[200.0, np.nan]])
    status = np.array([[0, CellStatus.STALE]], dtype=np.uint8)
    metrics.write(T0 + STEP, [SampleBatch("x", T0, EntityKind.GPU, (POWER, ECC), GPUS[:1], values, status)])
    query = f"select name, at, {POWER}, {ECC}, hw_accel_temperature_celsius, target_up from latest_gpu order by name"
    result = rows(store_url, query)
    assert result[0] == ("gpu-0", "2026-03-01T12:00:15Z", 200.0, None, None, None)
    assert result[1] == ("gpu-1", "2026-03-01T12:00:00Z", 100.0, 1.0, None, None)
    assert len(result) == 4


def test_a_signal_missing_from_a_cycle_is_null_in_the_latest_table(metrics: SqlMetricStore, store_url: str) -> None:
    metrics.write(T0, cycle(T0, 100.0))
    gpu, status = np.array([[7.0]]), np.zeros((1, 1), dtype=np.uint8)
    metrics.write(T0 + STEP, [SampleBatch("x", T0, EntityKind.GPU, (POWER,), GPUS[:1], gpu, status)])
    assert rows(store_url, f"select {POWER}, {ECC} from latest_gpu where name = 'gpu-0'") == [(7.0, None)]


def test_a_deleted_row_of_the_latest_table_returns_with_its_name(metrics: SqlMetricStore, store_url: str) -> None:
    batches = cycle(T0, 100.0)
    metrics.write(T0, batches)
    database = Database(urls_of(store_url)[1], "metrics")
    with database.writing() as connection:  # as maintenance does after raw retention
        connection.execute(sa.text("delete from latest_gpu"))
    database.close()
    metrics.write(T0 + STEP, batches)  # the same tuples of entities and keys: derived values are cached
    assert rows(store_url, "select name from latest_gpu order by 1") == [(gpu.name,) for gpu in GPUS]


def test_missing_columns_of_the_latest_tables_are_created(metrics: SqlMetricStore, store_url: str) -> None:
    metrics.close()
    database = Database(urls_of(store_url)[1], "metrics")
    with database.writing() as connection:
        connection.execute(sa.text("alter table latest_gpu drop column hw_accel_power_watts"))
    open_metrics(urls_of(store_url)[1]).close()
    with database.reading() as connection:
        columns = {column["name"] for column in sa.inspect(connection).get_columns("latest_gpu")}
    database.close()
    histograms = {signal.name for signal in catalog.signals().values() if signal.bounds}
    assert "hw_accel_power_watts" in columns
    assert not columns & histograms


def test_a_reopened_store_uses_the_same_entity_numbers(store_url: str) -> None:
    url = urls_of(store_url)[1]
    for index in range(3):
        store = open_metrics(url)
        store.write(T0 + index * STEP, cycle(T0, float(index), GPUS[: index + 1]))
        store.close()
    store = open_metrics(url)
    window = store.read_windows(EntityKind.GPU, [POWER], T0, T0 + timedelta(minutes=1), STEP)
    store.close()
    assert window.entities == GPUS[:3]
    np.testing.assert_array_equal(window.values[0, :, 0], [0.0, 1.0, 2.0, np.nan])
    assert rows(store_url, "select count(*) from entity") == [(3,)]


def test_a_failed_write_leaves_nothing_and_the_next_one_works(metrics: SqlMetricStore) -> None:
    broken = SampleBatch("x", T0, EntityKind.GPU, (POWER,), GPUS, np.zeros((3, 1)), np.zeros((3, 1), np.uint8))
    try:
        metrics.write(T0, [*cycle(T0, 1.0), broken])
    except ValueError:
        pass
    else:
        raise AssertionError("a batch of the wrong shape was accepted")
    assert metrics.entities(EntityKind.GPU) == ()
    assert metrics.write(T0, cycle(T0, 2.0)) == 8
    assert metrics.latest(EntityKind.GPU, [POWER]).values[:, 0, 0].tolist() == [2.0] * 4


def test_a_custom_signal_needs_no_migration(metrics: SqlMetricStore) -> None:
    key = SignalKey("acme_queue_depth")
    batch = SampleBatch(
        "x",
        T0,
        EntityKind.POOL,
        (key,),
        (EntityRef("c", EntityKind.POOL, None, "p"),),
        np.array([[3.0]]),
        np.zeros((1, 1), np.uint8),
    )
    metrics.write(T0, [batch])
    assert metrics.latest(EntityKind.POOL).values.tolist() == [[[3.0]]]
