"""Some hours of a fleet for maintenance tests, written to stores and read on every grid."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey, Statistic, Window
from outrider.ports import MetricStore
from outrider.vocabulary import catalog

START = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)  # over midnight
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
EVERY = timedelta(minutes=3)
HOURS = 4
END = START + HOURS * HOUR
NEXT_DAYS = datetime(2026, 3, 3, 1, 0, tzinfo=UTC)  # both days are over

POWER, ECC = SignalKey("hw_accel_power_watts"), SignalKey("hw_accel_ecc_uncorrectable_total")
FAULT, ENERGY = SignalKey("hw_accel_fault_code"), SignalKey("hw_accel_energy_joules_total")
QUEUE = SignalKey("acme_queue_depth")  # a signal outside the catalog
TTFT = catalog.signal("engine_ttft_seconds")
OWN = SignalKey("engine_e2e_seconds", quantile=0.99)  # a quantile that a source computed
GPU_KEYS = (POWER, ECC, FAULT, ENERGY, QUEUE)
REPLICA_KEYS = (*TTFT.bucket_keys, OWN)
GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(6))
REPLICAS = tuple(EntityRef("prod", EntityKind.REPLICA, "llm", f"r-{index}") for index in range(4))
REQUESTS = {
    EntityKind.GPU: (GPUS, GPU_KEYS),
    EntityKind.REPLICA: (
        REPLICAS, (SignalKey(TTFT.name, quantile=0.9), TTFT.bucket_keys[4], TTFT.bucket_keys[-1], OWN)
    ),
}  # fmt: skip


def cycle(at: datetime) -> list[SampleBatch]:
    """Batches that depend only on the timestamp: random values, gaps of every status, entities that come and go."""
    random = np.random.default_rng(int(at.timestamp()))
    hour = (at - START) // HOUR
    batches = []
    for kind, keys, all_entities in (
        (EntityKind.GPU, GPU_KEYS, GPUS),
        (EntityKind.REPLICA, REPLICA_KEYS, REPLICAS),
    ):
        entities = tuple(entity for index, entity in enumerate(all_entities) if index < 2 or (index + hour) % 3)
        shape = (len(entities), len(keys))
        values = np.round(random.normal(100.0, 30.0, shape)) / 4
        counted = [index for index, key in enumerate(keys) if key in (ECC, ENERGY) or key.bucket is not None]
        values[:, counted] = random.poisson(0.4, (shape[0], len(counted))) * 3
        status = np.where(random.random(shape) < 0.2, random.integers(1, 7, shape), 0).astype(np.uint8)
        values[(status != CellStatus.PRESENT) & (status != CellStatus.BELOW_FIRST_BUCKET)] = np.nan
        batches.append(SampleBatch("t", at, kind, keys, entities, values, status))
    return batches


def instants(start: datetime = START, end: datetime = END) -> list[datetime]:
    return [start + number * EVERY for number in range((end - start) // EVERY)]


def fill(*stores: MetricStore, start: datetime = START, end: datetime = END) -> None:
    for at in instants(start, end):
        for store in stores:
            store.write(at, cycle(at))


STEPS = (EVERY, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR)


def read_all(
    store: MetricStore, step: timedelta, statistic: Statistic, start: datetime = START, end: datetime = END
) -> list[Window]:
    return [
        store.read_windows(kind, keys, start, end, step, entities, statistic=statistic)
        for kind, (entities, keys) in REQUESTS.items()
    ]


def assert_same_reads(
    store: MetricStore,
    truth: MetricStore,
    steps: Sequence[timedelta] = STEPS,
    start: datetime = START,
    end: datetime = END,
    statistics: Sequence[Statistic] = tuple(Statistic),
) -> None:
    """Asserts equal reads on every grid: sums and last values exactly, means to float32."""
    for step in steps:
        for statistic in statistics:
            for window, expected in zip(
                read_all(store, step, statistic, start, end), read_all(truth, step, statistic, start, end), strict=True
            ):
                message = f"{window.kind} {step} {statistic}"
                np.testing.assert_array_equal(window.status, expected.status, message)
                if statistic is Statistic.MEAN:
                    np.testing.assert_allclose(window.values, expected.values, rtol=1e-6, err_msg=message)
                else:
                    np.testing.assert_array_equal(window.values, expected.values, message)
