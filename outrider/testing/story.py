"""A small fleet with history, a plan and a newly lost GPU, as model objects.

For tests of code that reads the stores: ``Story(...).fill(state, metrics)`` writes through the ports.
2 services, 8 nodes, 64 GPUs, 16 replicas. Every value derives from the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    CellStatus,
    CycleRecord,
    EntityKind,
    EntityRef,
    Floats,
    Priority,
    SampleBatch,
    SignalKey,
)
from outrider.ports import CycleCommit, MetricStore, StateStore
from outrider.testing import trouble
from outrider.testing.names import (
    GPU,
    LOST_GPU,
    LOST_NODE,
    LOST_REPLICA,
    NODE,
    NODES,
    NOW,
    REPLICA,
    SERVICE,
    load,
    topology,
)
from outrider.vocabulary import catalog


@dataclass(frozen=True, slots=True)
class Story:
    """The parameters. ``trouble`` None leaves everything healthy; ``alerts`` adds that many alerts."""

    now: datetime = NOW
    history: timedelta = timedelta(hours=2)
    step: timedelta = timedelta(minutes=1)
    lost_at: datetime | None = NOW - timedelta(minutes=9)
    alerts: int = 0
    seed: int = 7

    def fill(self, state: StateStore, metrics: MetricStore) -> None:
        """Writes the history and one commit with the decisions."""
        for at, batches in self.cycles():
            metrics.write(at, batches)
        state.commit(self.commit())

    def cycles(self) -> Iterator[tuple[datetime, list[SampleBatch]]]:
        """Every cycle of the history, oldest first, the last one at ``now``."""
        count = int(self.history / self.step)
        for back in range(count, -1, -1):
            at = self.now - back * self.step
            yield at, self.batches(at)

    def batches(self, at: datetime) -> list[SampleBatch]:
        """The batches of one cycle."""
        rng = np.random.default_rng([self.seed, int(at.timestamp())])
        lost = self.lost_at is not None and at >= self.lost_at
        rates = load(at) * (1 + 0.03 * rng.standard_normal(2))
        return [
            self._services(at, rates, lost, rng),
            self._replicas(at, rates, lost, rng),
            self._gpus(at, rates, lost, rng),
            self._nodes(at, lost),
        ]

    def commit(self) -> CycleCommit:
        """The decisions of the newest cycle."""
        result = trouble.lost_gpu(self.now, self.lost_at) if self.lost_at else trouble.quiet(self.now)
        more = tuple(self._alert(index) for index in range(self.alerts))
        cycle = CycleRecord("cycle-1", self.now, 1.8, 44, 44 if not self.lost_at else 43, 6200, 3, len(more) + 3, 1)
        return CycleCommit(
            cycle=cycle,
            alerts=(*result.alerts, *more),
            incidents=result.incidents,
            plan=trouble.plan(self.now),
            actions=result.actions,
            sessions=result.sessions,
            messages=result.messages,
            audit=result.audit,
            topology=topology(self.now),
        )

    def _alert(self, index: int) -> Alert:
        at = self.now - timedelta(minutes=30, seconds=index)
        entity = GPU[index % len(GPU)]
        return Alert(
            fingerprint=f"gpu-memory-high/{index}",
            rule="gpu-memory-high",
            priority=(Priority.P2, Priority.P3)[index % 2],
            entity=entity,
            state=(AlertState.FIRING, AlertState.RESOLVED)[index % 3 == 0],
            reason=AlertReason.STILL_TRUE,
            starts_at=at,
            seen_at=self.now,
            value=0.97,
        )

    def _services(self, at: datetime, rates: Floats, lost: bool, rng: np.random.Generator) -> SampleBatch:
        seconds = self.step.total_seconds()
        requests = np.round(rates * seconds)
        failed = np.array([round(requests[0] * 0.021) if lost else 0.0, 0.0])
        columns: dict[SignalKey, Floats] = {
            SignalKey("svc_requests_total"): requests,
            SignalKey("svc_failed_total"): failed,
            SignalKey("svc_requests_per_second"): rates,
            SignalKey("svc_success_ratio"): 1 - failed / requests,
            SignalKey("svc_generation_tokens_total"): requests * 240,
            SignalKey("svc_tokens_per_second"): rates * 240,
            SignalKey("svc_queue_requests"): np.array([14.0 + 6 * rng.random() if lost else 0.0, 0.0]),
            SignalKey("svc_ready_backends"): np.array([7.0 if lost else 8.0, 8.0]),
        }
        slower = np.array([2.6 if lost else 1.0, 1.0])
        columns |= _buckets("svc_ttft_seconds", requests, 0.085 * slower, rng)
        return _batch(at, EntityKind.SERVICE, tuple(SERVICE.values()), columns, seconds)

    def _replicas(self, at: datetime, rates: Floats, lost: bool, rng: np.random.Generator) -> SampleBatch:
        count = len(REPLICA)
        alive = np.array([not (lost and replica == LOST_REPLICA) for replica in REPLICA], dtype=np.float64)
        share = rates[np.arange(count) % 2] / 8 * (1 + 0.06 * rng.standard_normal(count))
        gone = np.where(alive > 0, 1.0, np.nan)
        columns = {
            SignalKey("engine_up"): alive,
            SignalKey("target_up"): alive,
            SignalKey("target_scrape_seconds"): 0.02 + 0.01 * rng.random(count),
            SignalKey("engine_requests_running"): share * 9.6 * gone,
            SignalKey("engine_requests_waiting"): np.where(lost, 2.0, 0.0) * np.ones(count) * gone,
            SignalKey("engine_generation_tokens_per_second"): share * 240 * gone,
            SignalKey("engine_kv_cache_usage_ratio"): np.clip(share * 0.11, 0, 1) * gone,
        }
        return _batch(at, EntityKind.REPLICA, REPLICA, columns, self.step.total_seconds())

    def _gpus(self, at: datetime, rates: Floats, lost: bool, rng: np.random.Generator) -> SampleBatch:
        count = len(GPU)
        busy = np.clip(rates.mean() / 11 * (1 + 0.04 * rng.standard_normal(count)), 0.02, 0.98)
        gone = np.array([np.nan if lost and gpu == LOST_GPU else 1.0 for gpu in GPU])
        columns = {
            SignalKey("hw_accel_utilization_ratio"): busy * gone,
            SignalKey("hw_accel_temperature_celsius"): (34 + 34 * busy + rng.standard_normal(count)) * gone,
            SignalKey("hw_accel_power_watts"): (90 + 430 * busy) * gone,
            SignalKey("hw_accel_core_clock_hertz"): np.full(count, 1.755e9) * gone,
            SignalKey("hw_accel_fault_code"): np.where(np.isnan(gone), 79.0, 0.0),
        }
        return _batch(at, EntityKind.GPU, GPU, columns, self.step.total_seconds())

    def _nodes(self, at: datetime, lost: bool) -> SampleBatch:
        present = np.array([7.0 if lost and node == LOST_NODE else 8.0 for node in NODE])
        columns = {
            SignalKey("hw_accel_present"): present,
            SignalKey("node_accel_capacity"): np.full(NODES, 8.0),
            SignalKey("node_ready"): np.ones(NODES),
            SignalKey("target_up"): np.ones(NODES),
        }
        return _batch(at, EntityKind.NODE, NODE, columns, self.step.total_seconds())


def _buckets(name: str, requests: Floats, median: Floats, rng: np.random.Generator) -> dict[SignalKey, Floats]:
    """Bucket increments of log-normal latencies."""
    bounds = np.array(catalog.signal(name).bounds)
    rows = []
    for count, middle in zip(requests, median, strict=True):
        values = middle * np.exp(0.45 * rng.standard_normal(int(count)))
        indices = np.searchsorted(bounds, values, side="left")
        rows.append(np.bincount(indices, minlength=bounds.size + 1).astype(np.float64))
    table = np.array(rows)
    result = {SignalKey(name, bucket=index): table[:, index] for index in range(table.shape[1])}
    result[SignalKey(name, bucket=-1)] = requests * median
    return result


def _batch(
    at: datetime,
    kind: EntityKind,
    entities: tuple[EntityRef, ...],
    columns: Mapping[SignalKey, Floats],
    seconds: float,
) -> SampleBatch:
    values = np.stack([np.asarray(column, dtype=np.float64) for column in columns.values()], axis=1)
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    return SampleBatch("story", at, kind, tuple(columns), entities, values, status, seconds)
