"""Parts of the API that need no HTTP: freshness, cache, pagination, verdicts."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import ManualClock
from outrider.errors import UsageError
from outrider.model import CycleRecord, EntityKind, SampleBatch, SignalKey
from outrider.testing.names import GPU, LOST_GPU, NOW, SERVICE, topology
from outrider.testing.trouble import incident
from outrider.topology import Topology
from outrider.vocabulary.indicators import availability_time
from service.api import paging
from service.api.context import CycleWatch, ResultCache
from service.api.queries import entity_location, slo_status
from service.api.routers import evidence
from service.config.api_settings import SloDefaults
from service.config.settings_base import is_loopback
from store.memory import MemoryMetricStore, MemoryStateStore


def cycle(name: str, at) -> CycleRecord:
    return CycleRecord(name, at, 1.0, 1, 1, 1, 0, 0, 0)


def test_fleet_time_is_fresh_while_cycles_run():
    clock = ManualClock(NOW)
    watch = CycleWatch(clock, timedelta(seconds=45))
    ahead = NOW + timedelta(days=3)
    assert not watch.is_fresh(cycle("a", ahead))
    assert watch.is_fresh(cycle("b", ahead + timedelta(seconds=15)))
    clock.advance(timedelta(seconds=40))
    assert watch.is_fresh(cycle("b", ahead + timedelta(seconds=15)))
    clock.advance(timedelta(seconds=10))
    assert not watch.is_fresh(cycle("b", ahead + timedelta(seconds=15)))


def test_wall_time_is_fresh_at_once_and_stale_after_three_cycles():
    clock = ManualClock(NOW)
    watch = CycleWatch(clock, timedelta(seconds=45))
    assert not watch.is_fresh(None)
    assert watch.is_fresh(cycle("a", NOW - timedelta(seconds=10)))
    assert not watch.is_fresh(cycle("a", NOW - timedelta(seconds=50)))


def test_a_result_is_computed_once_and_old_ones_are_dropped():
    kept, computed = ResultCache(size=2), []
    for key in (1, 1, 2, 3, 1):
        kept.get(key, lambda key=key: computed.append(key))
    assert computed == [1, 2, 3, 1]


@given(st.integers(0, 200), st.integers(1, 50), st.integers(1, 9))
def test_pages_cover_a_filtered_list_exactly(size, limit, every):
    items, found, cursor = list(range(size)), [], ""
    while cursor is not None:
        rows, cursor = paging.page(lambda count: items[:count], lambda item: item % every == 0, cursor, limit)
        assert len(rows) <= limit
        found += rows
    assert found == [item for item in items if item % every == 0]


@given(st.integers(0, 120), st.integers(1, 20), st.integers(1, 9))
def test_pages_by_key_cover_a_filtered_list_exactly(size, limit, every):
    records = [AuditRecord(NOW + timedelta(minutes=number // 3), AuditEvent.PAUSED, "", "") for number in range(size)]
    state = MemoryStateStore()
    state.append_audit(records)

    def keep(record):
        return record.id % every == 0

    found, cursor, reads = [], "", []

    def read(after, count):
        reads.append(count)
        return state.audit(count, after)

    while cursor is not None:
        rows, cursor = paging.by_key(read, keep, cursor, limit)
        assert len(rows) <= limit
        found += [record.id for record in rows]
    assert found == [number for number in range(size, 0, -1) if number % every == 0]
    assert max(reads) <= 1000


@pytest.mark.parametrize("cursor", ["-3", "abc", "YWJj", "MjAyNi0wMS0wMSB4", "é"])  # "abc", and a day without a zone
def test_an_unknown_cursor_is_rejected(cursor):
    with pytest.raises(UsageError, match="not a cursor"):
        paging.position_in(cursor)
    with pytest.raises(UsageError, match="not a cursor"):
        paging.offset_of(cursor)


def recent(**changes) -> slo_status.Recent:
    usual = {
        "service": SERVICE["chat"],
        "success": 1.0,
        "availability": availability_time(np.ones(5)),
        "ttft_p99": 0.4,
        "ttft_p99_below": False,
        "requests_per_second": 3.0,
        "queue": 0.0,
        "ready": 8.0,
    }
    return slo_status.Recent(**{**usual, **changes})


@pytest.mark.parametrize(
    ("now", "status", "reason"),
    [
        (recent(), "ok", "within_limits"),
        (None, "unknown", "no_values"),
        (recent(success=None, ready=None), "unknown", "no_values"),
        (recent(success=None), "ok", "within_limits"),
        (recent(success=None, requests_per_second=None, ttft_p99=None), "unknown", "no_values"),
        (recent(ready=0.0), "broken", "no_ready_replica"),
        (recent(success=0.98), "broken", "calls_fail"),
        (recent(success=0.995), "at_risk", "calls_below_target"),
        (recent(ttft_p99=2.1), "broken", "ttft_over_limit"),
        (recent(ttft_p99=2.5, ttft_p99_below=True), "ok", "within_limits"),
    ],
)
def test_the_verdict_on_a_service_has_a_reason(now, status, reason):
    assert slo_status.health(now, None, (), SloDefaults()) == (status, reason)


def test_high_ttft_puts_a_healthy_service_at_risk():
    day = slo_status.Day(1.0, availability_time(np.ones(5)), 0.62, 0.99, ())
    assert slo_status.health(recent(), day, (), SloDefaults()) == ("at_risk", "sla_below_target")
    between_bounds = slo_status.Day(1.0, availability_time(np.ones(5)), 0.62, 0.999, ())
    assert slo_status.health(recent(), between_bounds, (), SloDefaults()) == ("ok", "within_limits")


def test_an_urgent_incident_puts_a_healthy_service_at_risk():
    open_one = incident(NOW, NOW, ())
    assert slo_status.health(recent(), None, (open_one,), SloDefaults()) == ("at_risk", "urgent_incident")
    assert open_one.concerns(SERVICE["chat"])
    assert not open_one.concerns(SERVICE["code"])


def test_failing_requests_beside_a_healthy_probe_lower_the_availability_of_the_service():
    metrics, present = MemoryMetricStore(), np.zeros((1, 3), dtype=np.uint8)
    signals = tuple(SignalKey(name) for name in ("svc_requests_total", "svc_failed_total", "probe_success"))
    for minute in range(120):
        at = NOW - timedelta(minutes=119 - minute)
        values = np.array([[50.0, 0.0 if minute < 60 else 50.0, 1.0]])
        metrics.write(at, [SampleBatch("test", at, EntityKind.SERVICE, signals, (SERVICE["chat"],), values, present)])
    services, slo_defaults = [SERVICE["chat"]], SloDefaults()
    now = slo_status.measure_now(metrics, services, NOW, slo_defaults)[SERVICE["chat"]]
    day = slo_status.measure_day(metrics, services, NOW, slo_defaults)[SERVICE["chat"]]
    availability = slo_status.as_json(SERVICE["chat"], now, day, (), slo_defaults)["availability"]
    assert (availability["now"], availability["day"]) == (0.0, 0.5)
    assert availability["requests"] == {"now": 0.0, "day": 0.5}
    assert availability["probe"] == {"now": 1.0, "day": 1.0}
    assert [share for _, share in day.strip if share is not None] == [1.0, 1.0, 0.0, 0.0]


def test_a_location_names_node_and_gpu():
    graph = topology(NOW)
    assert entity_location.place(graph, LOST_GPU, "en") == "node-3, GPU 2"
    assert entity_location.place(graph, SERVICE["chat"], "en") == "node-0, node-1, +6"


def test_a_missing_gpu_is_located_by_the_rejected_alternatives():
    gone = incident(NOW, NOW, ())
    rows = entity_location.incident_json(gone, Topology(), "en", ())["hypotheses"]
    assert [row["place"] for row in rows] == ["node-3", "node-3"]


def test_evidence_charts_are_few_and_start_with_the_cause():
    chosen = evidence.choose(incident(NOW, NOW, ()), topology(NOW))
    assert len(chosen) == 8
    assert [wanted.signal for wanted in chosen[:2]] == ["hw_accel_present", "hw_accel_fault_code"]
    assert [wanted.role for wanted in chosen[-4:]] == ["service"] * 4
    assert all(peer in GPU for wanted in chosen for peer in wanted.peers)


def test_evidence_of_an_unknown_cause_shows_the_services():
    chosen = evidence.choose(replace(incident(NOW, NOW, ()), hypotheses=()), topology(NOW))
    assert {wanted.role for wanted in chosen} == {"service"}


def test_evidence_ends_soon_after_the_recovery():
    start, end = evidence.span(
        replace(incident(NOW, NOW, ()), resolved_at=NOW + timedelta(minutes=5)), NOW + timedelta(hours=9)
    )
    assert (start, end) == (NOW - timedelta(minutes=30), NOW + timedelta(minutes=20, seconds=1))


def test_loopback_names_are_recognized():
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.1", "gpu.example")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
