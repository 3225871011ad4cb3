"""Outages of a real PostgreSQL: acknowledged writes stay, interrupted ones leave nothing, and writing resumes."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import StoreError, StoreUnavailableError
from outrider.model import EntityKind, EntityRef, SampleBatch, SignalKey
from store.factory import open_metrics, open_state
from store.sql.database import Database
from store.sql.postgresql import lock_key
from tests.support import postgres

T0 = datetime(2026, 3, 1, tzinfo=UTC)
POWER = SignalKey("hw_accel_power_watts")
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(50))
RECORD = AuditRecord(T0, AuditEvent.PAUSED, "x", "y")


def batch(number: int) -> SampleBatch:
    values = np.full((len(GPUS), 1), float(number))
    return SampleBatch("dcgm", T0, EntityKind.GPU, (POWER,), GPUS, values, np.zeros(values.shape, np.uint8))


@pytest.mark.slow
def test_acknowledged_writes_survive_crashes_of_the_server(postgres_url: str, postgres_server: postgres.Server) -> None:
    store = open_metrics(postgres_url)
    acknowledged: list[int] = []
    failed: list[int] = []
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            try:
                store.write(T0 + timedelta(seconds=number), [batch(number)])
            except StoreUnavailableError:
                failed.append(number)
                stop.wait(0.05)
                continue
            acknowledged.append(number)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            stop.wait(0.4)
            postgres_server.stop("immediate")
            postgres_server.start()
        stop.wait(0.4)
    finally:
        stop.set()
        writer.join()
    assert failed, "the server was unavailable for a while"
    window = store.read_windows(
        EntityKind.GPU, [POWER], T0, T0 + timedelta(seconds=len(acknowledged)), timedelta(seconds=1)
    )
    store.close()
    np.testing.assert_array_equal(window.values[:, :, 0], np.tile(np.arange(len(acknowledged)), (len(GPUS), 1)))


def test_a_transaction_interrupted_by_the_server_leaves_nothing(
    postgres_url: str, postgres_server: postgres.Server
) -> None:
    state = open_state(postgres_url)
    database = Database(postgres_url)
    terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outrider'"

    def terminate_while_writing() -> None:
        with database.writing() as connection:
            connection.exec_driver_sql("INSERT INTO flag (name, value) VALUES ('a', 'b')")
            postgres_server.sql(terminate)
            connection.exec_driver_sql("INSERT INTO flag (name, value) VALUES ('c', 'd')")

    with pytest.raises(StoreUnavailableError, match="does not answer"):
        terminate_while_writing()
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT * FROM flag WHERE name IN ('a', 'c')").all() == []
    state.append_audit([RECORD])
    assert state.audit() == (RECORD,)
    database.close()
    state.close()


def test_a_missing_and_a_read_only_database_are_errors(postgres_url: str, postgres_server: postgres.Server) -> None:
    with pytest.raises(StoreError, match="refuses the connection") as caught:
        open_state(postgres_server.url("nowhere"))
    assert "createdb" in caught.value.hint
    open_state(postgres_url).close()
    database = Database(postgres_url)
    with pytest.raises(StoreError, match="read-only") as caught, database.reading() as connection:
        connection.exec_driver_sql("INSERT INTO flag (name, value) VALUES ('a', 'b')")
    assert "primary" in caught.value.hint
    database.close()


def test_a_lock_held_too_long_is_an_error(postgres_url: str) -> None:
    state = open_state(f"{postgres_url}?options=-clock_timeout%3D200")
    other = Database(postgres_url)
    with other.writing():
        with pytest.raises(StoreError, match="Another program has locked"):
            state.append_audit([RECORD])
        assert state.audit() == ()  # readers do not wait
    state.append_audit([RECORD])
    assert state.audit() == (RECORD,)
    other.close()
    state.close()


def test_state_and_metrics_of_one_server_do_not_wait_for_each_other(postgres_url: str) -> None:
    assert lock_key("writer of state") != lock_key("writer of metrics")
    store = open_metrics(postgres_url)
    other = Database(postgres_url, "state")
    with other.writing():
        assert store.write(T0, [batch(1)]) == len(GPUS)
    other.close()
    store.close()
