"""First and last time of entities, and the number of updates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, SampleBatch, SignalKey
from store.factory import SqlMetricStore
from store.schema.column_types import micros

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP, MINUTE = timedelta(seconds=15), timedelta(minutes=1)
POWER = SignalKey("hw_accel_power_watts")
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(3))


def cycle(gpus: tuple[EntityRef, ...] = GPUS) -> list[SampleBatch]:
    values = np.ones((len(gpus), 1))
    return [SampleBatch("dcgm", T0, EntityKind.GPU, (POWER,), gpus, values, np.zeros(values.shape, np.uint8))]


def spans(store: SqlMetricStore) -> dict[str, tuple[float, float]]:
    """First and last time of each entity, in minutes after T0."""
    with store._database.reading() as connection:
        spans_of_entities = connection.execute(sa.text("SELECT key, first_seen_us, last_seen_us FROM entity")).all()
    return {
        key.rsplit("/", 1)[-1]: ((first - micros(T0)) / 6e7, (last - micros(T0)) / 6e7)
        for key, first, last in spans_of_entities
    }


@contextmanager
def updates(store: SqlMetricStore) -> Iterator[list[str]]:
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE entity"):
            statements.append(statement)

    sa.event.listen(store._database._opened.pool, "before_cursor_execute", note)
    yield statements
    sa.event.remove(store._database._opened.pool, "before_cursor_execute", note)


def test_a_new_entity_has_its_time_at_once(metrics: SqlMetricStore) -> None:
    metrics.write(T0, cycle(GPUS[:2]))
    metrics.write(T0 + MINUTE, cycle())
    assert spans(metrics) == {"gpu-0": (0, 0), "gpu-1": (0, 0), "gpu-2": (1, 1)}


def test_the_last_time_is_updated_every_ten_minutes_and_exact_for_entities_that_left(metrics: SqlMetricStore) -> None:
    all_gpus, two_gpus = cycle(), cycle(GPUS[:2])
    with updates(metrics) as written:
        for index in range(60 * 4):
            metrics.write(T0 + index * STEP, all_gpus if index < 50 else two_gpus)
    spans_of_entities = spans(metrics)
    assert spans_of_entities["gpu-2"] == (0, 49 * 0.25)
    assert spans_of_entities["gpu-0"] == spans_of_entities["gpu-1"]
    assert spans_of_entities["gpu-0"][1] >= 60 - 0.25 - 10
    assert len(written) <= 2 * 6, "one or two updates in ten minutes, whatever the number of cycles"


def test_a_late_cycle_moves_the_first_time_of_an_entity(metrics: SqlMetricStore) -> None:
    metrics.write(T0, cycle())
    metrics.write(T0 - 30 * MINUTE, cycle())
    for index in range(1, 50):
        metrics.write(T0 + index * STEP, cycle())
    assert spans(metrics)["gpu-0"] == (-30, pytest.approx(11, abs=1.5))


def test_history_extends_the_span_of_an_entity(metrics: SqlMetricStore) -> None:
    metrics.write(T0, cycle())
    times = np.array([(T0 + number * 60 * MINUTE).timestamp() for number in (-48, -47, -46)])
    metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[:1], np.ones((1, 3, 1)))
    spans_of_entities = spans(metrics)
    assert spans_of_entities["gpu-0"] == (-48 * 60, 0)
    assert spans_of_entities["gpu-1"] == (0, 0)


def test_a_failed_write_updates_no_other_entity(metrics: SqlMetricStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rolled-back numbers are assigned again: pending updates under them must be dropped."""
    with monkeypatch.context() as patched:
        patched.setattr("store.tsdb.blocks.write_tail", lambda *_: (_ for _ in ()).throw(StoreError("cut off")))
        with pytest.raises(StoreError, match="cut off"):
            metrics.write(T0 - 60 * MINUTE, cycle(GPUS[1:]))
    for index in range(50):
        metrics.write(T0 + index * STEP, cycle(GPUS[:1]))
    assert set(spans(metrics)) == {"gpu-0"}
    assert spans(metrics)["gpu-0"][0] == 0
