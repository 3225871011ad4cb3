from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import SUM_BUCKET, CellStatus, EntityKind, Floats, SignalKey
from outrider.vocabulary.catalog import bucket_quantile, signal, signals
from simulator.backfill.fleet_history import HistoryBlock, backfill, events
from simulator.exporters.targets import targets
from simulator.fleet import Fleet
from simulator.spec.fleets import default_spec

SPEC = default_spec()
STEP = timedelta(minutes=5)
HISTOGRAMS = {"ttft": "svc_ttft_seconds", "tpot": "svc_tpot_seconds", "e2e": "svc_latency_seconds"}


def column(block: HistoryBlock, name: str) -> Floats:
    return block.values[:, :, block.keys.index(SignalKey(name))]


def buckets(block: HistoryBlock, name: str) -> Floats:
    wanted = [key for key in signal(name).bucket_keys if key.bucket is not None and key.bucket >= 0]
    return np.stack([block.values[:, :, block.keys.index(key)] for key in wanted], axis=2)


def day_of(hour: int, span: timedelta, step: timedelta = STEP, seed: int = 7) -> dict[EntityKind, HistoryBlock]:
    start = datetime(2026, 11, 18, hour, tzinfo=UTC)
    return {block.kind: block for block in backfill(SPEC, seed, start, start + span, step)}


@pytest.mark.slow
def test_blocks_cover_the_span_without_gap_or_overlap() -> None:
    start = datetime(2026, 11, 3, 10, tzinfo=UTC)
    times: dict[EntityKind, list[float]] = {}
    for block in backfill(SPEC, 7, start, start + timedelta(days=3), STEP):
        assert block.values.shape == (len(block.entities), block.times.size, len(block.keys))
        assert block.status.shape == block.values.shape
        times.setdefault(block.kind, []).extend(block.times)
    assert set(times) == {EntityKind.SERVICE, EntityKind.REPLICA, EntityKind.GPU, EntityKind.NODE}
    for seen in times.values():
        assert len(seen) == 3 * 288
        assert set(np.diff(seen)) == {300.0}
        assert seen[0] == start.timestamp()


@pytest.mark.slow
def test_signals_and_entities_are_those_of_the_live_fleet() -> None:
    blocks = day_of(12, timedelta(hours=1))
    fleet = Fleet(SPEC, 7, datetime(2026, 11, 18, 12, tzinfo=UTC))
    for kind, block in blocks.items():
        assert {signals()[key.name].entity for key in block.keys} == {kind}
    listed = {target.entity for target in targets(fleet)}
    assert set(blocks[EntityKind.REPLICA].entities) == {ref for ref in listed if ref.kind is EntityKind.REPLICA}
    assert set(blocks[EntityKind.NODE].entities) == {ref for ref in listed if ref.kind is EntityKind.NODE}
    assert [ref.name for ref in blocks[EntityKind.GPU].entities] == [fleet.gpu_uuid(gpu) for gpu in range(64)]


def test_a_service_is_the_sum_of_its_replicas() -> None:
    blocks = day_of(0, timedelta(days=1))
    service, replica = blocks[EntityKind.SERVICE], blocks[EntityKind.REPLICA]
    mine = [ref.name.startswith("chat") for ref in replica.entities]
    requests = column(replica, "engine_requests_finished_total")[mine].sum(axis=0)
    assert np.array_equal(column(service, "svc_requests_total")[0], requests)
    ttft = buckets(service, "svc_ttft_seconds")[0]
    assert np.array_equal(ttft, buckets(replica, "engine_ttft_seconds")[mine].sum(axis=0))
    for name in ("svc_ttft_seconds", "svc_tpot_seconds", "svc_latency_seconds"):
        assert np.array_equal(buckets(service, name)[0].sum(axis=1), requests)
    assert (service.status == CellStatus.PRESENT).all()


def test_the_same_seed_gives_the_same_history() -> None:
    one, other, another = (day_of(9, timedelta(hours=2), seed=seed) for seed in (7, 7, 8))
    for kind in one:
        assert np.array_equal(one[kind].values, other[kind].values)
    service = EntityKind.SERVICE
    assert not np.array_equal(one[service].values, another[service].values)


@pytest.mark.slow
@pytest.mark.parametrize("hour", [3, 14])
def test_history_has_the_levels_of_the_live_fleet(hour: int) -> None:
    span = timedelta(minutes=12)
    fleet = Fleet(SPEC, 7, datetime(2026, 11, 18, hour, tzinfo=UTC))
    past = day_of(hour, span, timedelta(seconds=30))
    replica, gpu, node = past[EntityKind.REPLICA], past[EntityKind.GPU], past[EntityKind.NODE]
    active = [pod.slot for pod in fleet.pods.pods if pod.ready]
    counters = fleet.bank.counters
    before = {name: counters.buckets[name].copy() for name in HISTOGRAMS}
    sums = {name: counters.sums[name].copy() for name in HISTOGRAMS}
    tokens = counters.plain["generation_tokens"].copy()
    seen: dict[str, list[Floats]] = {}
    for _ in range(round(span / timedelta(seconds=15))):
        fleet.step(timedelta(seconds=15))
        for name, values in (
            ("engine_requests_running", fleet.bank.running[active]),
            ("engine_kv_cache_usage_ratio", fleet.bank.kv_used_ratio[active]),
            ("hw_accel_utilization_ratio", fleet.gpus.utilization),
            ("hw_accel_tensor_active_ratio", fleet.gpus.tensor),
            ("hw_accel_power_watts", fleet.gpus.power),
            ("hw_accel_temperature_celsius", fleet.gpus.temperature),
            ("hw_accel_memory_used_ratio", fleet.gpus.memory_used / fleet.gpus.memory),
            ("node_cpu_utilization_ratio", fleet.nodes.cpu_busy_ratio),
            ("node_memory_available_ratio", fleet.nodes.memory_available_ratio),
        ):
            seen.setdefault(name, []).append(values)
    for name, samples in seen.items():
        block = next(block for block in (replica, gpu, node) if SignalKey(name) in block.keys)
        groups = [slice(0, 10), slice(10, 16)] if block is replica else [slice(0, 40), slice(40, 52), slice(52, 64)]
        for group in groups if block is not node else [slice(0, 8)]:
            live, known = np.mean([values[group] for values in samples]), column(block, name)[group].mean()
            assert known == pytest.approx(live, rel=0.2, abs=1e-3), (name, group)
    service = past[EntityKind.SERVICE]
    for place, slots in enumerate((slice(0, 13), slice(13, None))):
        tokens_column = (counters.plain["generation_tokens"] - tokens)[slots].sum() / span.total_seconds()
        assert column(service, "svc_tokens_per_second")[place].mean() == pytest.approx(tokens_column, rel=0.2)
        for name, ours in HISTOGRAMS.items():
            counts = (counters.buckets[name] - before[name])[slots].sum(axis=0)
            total = (counters.sums[name] - sums[name])[slots].sum()
            known = service.values[place, :, service.keys.index(SignalKey(ours, bucket=SUM_BUCKET))].sum()
            known /= column(service, "svc_requests_total")[place].sum()
            assert known == pytest.approx(total / counts.sum(), rel=0.2), name
            p95 = [
                float(bucket_quantile(seen_counts, signal(ours).bounds, 0.95)[0])
                for seen_counts in (counts, buckets(service, ours)[place].sum(axis=0))
            ]
            # Token buckets are so wide that a fraction of a percent moves a quantile by a tenth of one.
            assert p95[1] == pytest.approx(p95[0], rel=0.35 if name == "tpot" else 0.2), name


def test_maintenance_moves_the_load_of_replicas_to_the_others() -> None:
    start, step = datetime(2026, 11, 16, tzinfo=UTC), timedelta(minutes=2)
    week = events(SPEC, 7, start, start + timedelta(days=7))
    assert sorted(event.code for event in week) == ["Killing", "Killing", "rollout", "rollout"]
    rollout = next(event for event in week if event.code == "rollout" and event.entity.name == "chat-70b")
    begin, end = rollout.at - timedelta(minutes=10), rollout.at + timedelta(minutes=50)
    past, calm = (
        {block.kind: block for block in backfill(SPEC, 7, begin, end, step, maintenance=work)} for work in (True, False)
    )
    up = column(past[EntityKind.REPLICA], "engine_up")[:10]
    assert (up[:, 0] == 1).all()
    assert (up.sum(axis=0)[6:16] == 9).all()  # one after another
    assert (up.min(axis=1) == 0).all()
    replica = past[EntityKind.REPLICA]
    gone = np.argwhere(up == 0)[0]
    waits = replica.keys.index(SignalKey("engine_requests_running"))
    assert replica.status[gone[0], gone[1], waits] == CellStatus.ABSENT
    back = gone[1] + int(np.argmax(up[gone[0], gone[1] :]))
    tokens_column = replica.keys.index(SignalKey("engine_generation_tokens_total"))
    assert replica.status[gone[0], back, tokens_column] == CellStatus.RESET
    assert replica.status[gone[0], back, waits] == CellStatus.PRESENT
    ready = column(past[EntityKind.SERVICE], "svc_ready_backends")[0]
    assert np.array_equal(ready, up.sum(axis=0))
    request_totals = [column(one[EntityKind.SERVICE], "svc_requests_total")[0, 6:16].sum() for one in (past, calm)]
    assert request_totals[0] == pytest.approx(request_totals[1], rel=0.05)
    power = column(past[EntityKind.GPU], "hw_accel_power_watts")
    assert power.min() < 100 < np.median(power[:40])
    assert (replica.status[10:] == CellStatus.PRESENT).all()  # the other service is not affected


def test_without_maintenance_every_replica_is_up() -> None:
    start = datetime(2026, 11, 16, 9, tzinfo=UTC)
    for block in backfill(SPEC, 7, start, start + timedelta(hours=8)):
        assert (block.status == CellStatus.PRESENT).all()
