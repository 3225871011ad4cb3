"""Service signals are sums over replicas; unknown values stay unknown."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from collectors.normalise.service_rollup import device_batches, service_batches, service_keys
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey, TrustVerdict
from outrider.topology import Topology
from outrider.vocabulary import catalog

AT = datetime(2026, 1, 1, tzinfo=UTC)
SERVICE = EntityRef("c", EntityKind.SERVICE, "default", "chat")
TTFT = catalog.signal("engine_ttft_seconds")
KEYS = (
    *(
        SignalKey(name)
        for name in (
            "engine_http_requests_total",
            "engine_requests_finished_total",
            "engine_http_failed_total",
            "engine_http_refused_total",
            "engine_aborted_per_second",
            "engine_prompt_tokens_total",
            "engine_requests_failed_total",
            "engine_generation_tokens_total",
            "engine_requests_running",
            "engine_requests_waiting",
            "engine_inflight_requests",
            "engine_up",
            "engine_health_ok",
            "engine_sleep_state",
        )
    ),
    *TTFT.bucket_keys,
)


def replica(name):
    return EntityRef("c", EntityKind.REPLICA, "default", name)


def batch(name, *, interval=10.0, trust=TrustVerdict.FRESH, missing=CellStatus.ABSENT, **values):
    matrix = np.full((1, len(KEYS)), np.nan)
    status = np.full((1, len(KEYS)), missing, dtype=np.uint8)
    for signal, value in values.items():
        column = KEYS.index(SignalKey(signal))
        matrix[0, column], status[0, column] = value, CellStatus.PRESENT
    return SampleBatch(name, AT, EntityKind.REPLICA, KEYS, (replica(name),), matrix, status, interval, trust)


def derived(*batches, labels=None):
    topology = Topology.build([(replica(one.source), SERVICE) for one in batches], labels=labels)
    (signals,) = service_batches(batches, topology, AT)
    assert signals.entities == (SERVICE,)
    assert signals.keys == service_keys()
    return signals


def cell(signals, signal):
    column = signals.keys.index(SignalKey.parse(signal))
    status = CellStatus(int(signals.status[0, column]))
    return float(signals.values[0, column]) if status is CellStatus.PRESENT else status


def test_aborted_requests_are_neither_failed_nor_finished() -> None:
    reported = {
        "engine_http_requests_total": 100,
        "engine_http_failed_total": 5,
        "engine_http_refused_total": 15,
        "engine_requests_finished_total": 60,
        "engine_aborted_per_second": 0.2,
        "engine_prompt_tokens_total": 9000,
    }
    signals = derived(batch("a", **reported), batch("b", **reported))
    assert cell(signals, "svc_refused_total") == 30
    assert cell(signals, "svc_abandoned_total") == 2 * (100 - 5 - 15 - 60) + 2 * 0.2 * 10
    assert cell(signals, "svc_prompt_tokens_total") == 18000


def test_aborts_are_unknown_without_a_counter_of_refused_requests() -> None:
    signals = derived(batch("a", engine_http_requests_total=100, engine_requests_finished_total=60))
    assert cell(signals, "svc_abandoned_total") is not CellStatus.PRESENT
    assert isinstance(cell(signals, "svc_abandoned_total"), CellStatus)


def test_sums_over_replicas() -> None:
    one = {
        "engine_http_requests_total": 30,
        "engine_http_failed_total": 3,
        "engine_requests_failed_total": 1,
        "engine_requests_finished_total": 25,
        "engine_generation_tokens_total": 900,
        "engine_requests_running": 4,
        "engine_requests_waiting": 2,
        "engine_inflight_requests": 7,
        "engine_up": 1,
        "engine_health_ok": 1,
        "engine_sleep_state": 1,
    }
    signals = derived(batch("a", **one), batch("b", interval=20.0, **one))
    assert cell(signals, "svc_requests_total") == 60
    assert cell(signals, "svc_failed_total") == 6  # 5xx already hold the engine's errors
    assert cell(signals, "svc_success_ratio") == pytest.approx(0.9)
    assert cell(signals, "svc_requests_per_second") == pytest.approx(30 / 10 + 30 / 20)
    assert cell(signals, "svc_generation_tokens_total") == 1800
    assert cell(signals, "svc_queue_requests") == 4
    assert cell(signals, "svc_inflight_requests") == 14
    assert cell(signals, "svc_ready_backends") == 2
    assert signals.trust is TrustVerdict.FRESH


def test_no_traffic_is_undefined_success_and_zero_requests() -> None:
    signals = derived(batch("a", engine_http_requests_total=0, engine_http_failed_total=0))
    assert cell(signals, "svc_requests_total") == 0
    assert cell(signals, "svc_success_ratio") is CellStatus.UNDEFINED


def test_a_dead_replica_adds_nothing_and_is_not_ready() -> None:
    dead = batch("b", trust=TrustVerdict.FAILED, engine_up=0, engine_health_ok=0)
    signals = derived(batch("a", engine_http_requests_total=5, engine_up=1), dead)
    assert cell(signals, "svc_requests_total") == 5
    assert cell(signals, "svc_ready_backends") == 1
    assert signals.trust is TrustVerdict.PARTIAL


@pytest.mark.parametrize("expected", [{"engine_health_ok": 0}, {"engine_sleep_state": 0}])
def test_sick_and_sleeping_engines_are_not_ready(expected) -> None:
    assert cell(derived(batch("a", engine_up=1, **expected)), "svc_ready_backends") == 0


def test_a_service_without_values_has_a_reason() -> None:
    signals = derived(batch("a", missing=CellStatus.RESET), batch("b", missing=CellStatus.ABSENT))
    assert cell(signals, "svc_requests_total") is CellStatus.RESET
    assert cell(signals, "svc_ttft_seconds#0") is CellStatus.RESET


def test_finished_requests_replace_missing_http_counters() -> None:
    signals = derived(batch("a", engine_requests_finished_total=5, engine_requests_failed_total=1))
    assert cell(signals, "svc_requests_total") == 5
    assert cell(signals, "svc_failed_total") == 1


def test_scheduler_requests_replace_a_missing_load() -> None:
    signals = derived(batch("a", engine_requests_running=3, engine_requests_waiting=2))
    assert cell(signals, "svc_inflight_requests") == 5


def test_ranks_are_not_added_to_their_engine() -> None:
    whole = batch("a", engine_http_requests_total=5, engine_inflight_requests=4, engine_up=1)
    part = {
        "engine_requests_finished_total": 2,
        "engine_requests_running": 1,
        "engine_requests_waiting": 0,
        "engine_up": 1,
    }
    labels = {replica("a:0"): {"part_of": "a"}, replica("a:1"): {"part_of": "a"}}
    signals = derived(whole, batch("a:0", **part), batch("a:1", **part), labels=labels)
    assert cell(signals, "svc_requests_total") == 5
    assert cell(signals, "svc_inflight_requests") == 4
    assert cell(signals, "svc_ready_backends") == 1


def test_buckets_are_merged() -> None:
    def with_bucket(name, count):
        one = batch(name)
        column = KEYS.index(SignalKey("engine_ttft_seconds", bucket=4))
        one.values[0, column], one.status[0, column] = count, CellStatus.PRESENT
        return one

    signals = derived(with_bucket("a", 3), with_bucket("b", 4))
    assert cell(signals, "svc_ttft_seconds#4") == 7


def test_several_batches_of_one_replica_add_increases_and_keep_the_last_gauge() -> None:
    signals = derived(
        batch("a", engine_http_requests_total=5, engine_requests_waiting=9),
        batch("a", engine_http_requests_total=7, engine_requests_waiting=1),
    )
    assert cell(signals, "svc_requests_total") == 12
    assert cell(signals, "svc_queue_requests") == 1
    assert cell(signals, "svc_requests_per_second") == pytest.approx(0.7)


def test_no_replicas_give_no_batch() -> None:
    assert service_batches([], Topology(), AT) == ()
    assert service_batches([batch("a")], Topology(), AT) == ()


def test_devices_get_reserved_and_cached_memory_of_their_engine():
    names = ("engine_memory_reserved_ratio", "engine_kv_cache_usage_ratio")
    keys = tuple(SignalKey(name) for name in names)
    cards = [EntityRef("c", EntityKind.GPU, None, f"g{number}") for number in range(3)]
    topology = Topology.build([(cards[0], replica("a")), (cards[1], replica("a")), (cards[2], replica("b"))])
    values = np.array([[0.9, 0.4], [np.nan, 0.7]])
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    reported = SampleBatch("x", AT, EntityKind.REPLICA, keys, (replica("a"), replica("b")), values, status, 10.0)
    (signals,) = device_batches([reported], topology, AT)
    assert (signals.kind, signals.keys, signals.entities) == (EntityKind.GPU, keys, tuple(cards))
    np.testing.assert_array_equal(signals.values, [[0.9, 0.4], [0.9, 0.4], [np.nan, 0.7]])
    assert signals.status[2].tolist() == [CellStatus.ABSENT, CellStatus.PRESENT]
    assert device_batches([batch("a", engine_up=1.0)], topology, AT) == ()
