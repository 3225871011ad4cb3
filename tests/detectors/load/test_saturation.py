from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from detectors.load.queueing import QueueingDetector
from detectors.load.saturation import SaturationDetector
from outrider.model import EntityKind, Event, EventKind, Priority
from outrider.vocabulary.catalog import signal

R, S = EntityKind.REPLICA, EntityKind.SERVICE
START = 1_800_000_000.0
BOUNDS = signal("engine_ttft_seconds").bounds


def first_tokens(name, length, seconds, count=5.0):
    """``count`` first tokens per scrape, all in the bucket of ``seconds``."""
    index = int(np.searchsorted(BOUNDS, seconds))
    return {f"{name}#{i}": [count if i == index else 0.0] * length for i in range(len(BOUNDS) + 1)}


def replica(waiting, *, running=8.0, kv=0.97, ttft=5.0, tokens=700.0, preempted=0.0):
    length = len(waiting)
    return {
        "engine_requests_waiting": waiting,
        "engine_requests_running": [running] * length,
        # a running request holds far more of the cache once the queue grows: cache is missing
        "engine_kv_cache_usage_ratio": [kv if queued else min(kv, 0.4) for queued in waiting],
        "engine_preemptions_per_second": [preempted] * length,
        "engine_generation_tokens_total": [tokens] * length,
        **first_tokens("engine_ttft_seconds", length, ttft),
    }


def service(queue, answered, *, running=8.0, ttft=5.0, tokens=700.0):
    length = len(queue)
    return {
        "svc_queue_requests": queue,
        "svc_inflight_requests": [value + running for value in queue],
        "svc_generation_tokens_total": [tokens] * length,
        "svc_requests_total": answered,
        **first_tokens("svc_ttft_seconds", length, ttft),
    }


@pytest.fixture
def pressed(window_of, findings_of):
    return lambda **rows: findings_of(SaturationDetector(), window_of(R, rows))


@pytest.fixture
def surging(window_of, findings_of):
    return lambda **rows: findings_of(QueueingDetector(), window_of(S, rows))


GROWING = [0.0] * 5 + [float(10 + 3 * i) for i in range(15)]


def test_a_growing_queue_on_a_full_cache_is_kv_pressure(pressed):
    (finding,) = pressed(r0=replica(GROWING))
    assert (finding.fault, finding.observed) == ("kv-pressure", 0.97)
    texts = [item.text.removeprefix("findings.") for item in finding.evidence]
    assert texts == ["kv_full", "kv_per_request", "queue_grows", "ttft_late"]


def test_a_cache_filled_by_more_requests_is_a_symptom(pressed):
    row = replica(GROWING)
    row["engine_requests_running"] = [8.0 if not queued else 24.0 for queued in GROWING]
    (finding,) = pressed(r0=row)
    assert (finding.fault, finding.detector, finding.severity) == (None, "cache", Priority.P3)


def test_a_cache_filled_by_longer_prompts_is_a_symptom(pressed):
    row = replica(GROWING)
    row["engine_prompt_tokens_total"] = [5000.0 if not queued else 20000.0 for queued in GROWING]
    (finding,) = pressed(r0=row)
    assert finding.fault is None


def test_a_full_cache_from_the_first_scrape_on_has_no_level_to_compare_with(pressed):
    row = replica([float(10 + 3 * i) for i in range(15)])
    (finding,) = pressed(r0=row)
    assert finding.fault is None


def test_a_queue_shorter_than_a_minute_has_no_finding(pressed):
    assert pressed(r0=replica(GROWING[:14])) == []


def test_a_full_cache_without_a_queue_has_no_finding(pressed):
    assert pressed(r0=replica([0.0] * 40, kv=1.0, ttft=0.1)) == []


def test_a_full_batch_within_the_slo_has_no_finding(pressed):
    assert pressed(r0=replica([3.0] * 100, running=256.0, kv=0.99, ttft=0.5)) == []


def test_a_queue_without_memory_pressure_is_not_kv_pressure(pressed):
    assert pressed(r0=replica(GROWING, kv=0.5)) == []
    assert len(pressed(r0=replica(GROWING, kv=0.9, preempted=0.2))) == 1


def test_an_engine_without_tokens_is_not_saturated(pressed):
    assert pressed(r0=replica(GROWING, tokens=0.0)) == []


def test_a_draining_backlog_keeps_its_cause(pressed, surging):
    draining = [0.0] * 5 + [float(max(0, 69 - 4 * i)) for i in range(18)]
    assert pressed(r0=replica(draining)) == []
    assert surging(s=service(draining, [5.0] * len(draining))) == []


def test_pressure_lasts_until_the_queue_is_empty(pressed):
    drained = [*GROWING, *(float(50 - 4 * i) for i in range(12))]
    assert [item.fault for item in pressed(r0=replica(drained))] == ["kv-pressure"]
    assert pressed(r0=replica([*drained, 0.0])) == []


def test_arrivals_above_their_level_make_a_surge(surging):
    queue = [0.0] * 60 + [float(3 * i) for i in range(1, 31)]
    (finding,) = surging(s=service(queue, [5.0] * len(queue)))
    assert (finding.fault, finding.entity.kind, finding.score) == ("traffic-surge", S, 0.85)
    assert finding.evidence[-1].text == "findings.arrivals_rose"


def test_a_queue_at_the_usual_arrival_rate_has_no_fault(surging):
    queue = [0.0] * 60 + [float(3 * i) for i in range(1, 31)]
    answered = [8.0] * 60 + [5.0] * 30  # as many arrive, fewer are served
    (finding,) = surging(s=service(queue, answered))
    assert (finding.fault, finding.detector, finding.severity) == (None, "queue", Priority.P2)
    assert finding.evidence[-1].text == "findings.arrivals_as_before"


def test_longer_prompts_at_the_same_rate_are_a_burst_of_long_prompts(surging):
    queue = [0.0] * 60 + [float(3 * i) for i in range(1, 31)]
    row = service(queue, [8.0] * 60 + [5.0] * 30)
    row["svc_prompt_tokens_total"] = [4000.0] * 60 + [15000.0] * 30
    (finding,) = surging(s=row)
    assert finding.fault == "long-prompt-burst"
    assert finding.evidence[-1].text == "findings.prompts_longer"
    assert finding.evidence[-1].signal == "engine_prompt_length_tokens"


@pytest.mark.parametrize(("left", "fault"), [(0.0, "traffic-surge"), (3.0, "retry-storm")])
def test_aborts_during_rising_arrivals_make_a_retry_storm(surging, left, fault):
    queue = [0.0] * 60 + [float(3 * i) for i in range(1, 31)]
    row = service(queue, [8.0] * 90)
    row["svc_abandoned_total"] = [0.0] * 60 + [left] * 30
    (finding,) = surging(s=row)
    assert finding.fault == fault


def hung(load, minutes=6.0):
    """A service that stands still for some minutes, then serves its backlog; pages are 5 s apart.

    ``load``: requests in flight are counted at the port. Otherwise the frozen page gives them.
    """
    still, steps = [0.0] * int(minutes * 12), int(minutes * 12)
    backlog = 8.0 * steps
    queue = [0.0] * 40 + [0.0] * steps + [backlog - 2.0 * i for i in range(16)]
    row = service(queue, [8.0] * 40 + still + [8.0] * 16)
    row["svc_generation_tokens_total"] = [700.0] * 40 + still + [700.0] * 16
    growth = [8.0 + 8.0 * (i + 1) for i in range(steps)] if load else [8.0] * steps
    row["svc_inflight_requests"] = [8.0] * 40 + growth + [value + 8.0 for value in queue[40 + steps :]]
    return row


@pytest.mark.parametrize("load", [True, False])
def test_the_backlog_of_a_hang_is_named_as_that(surging, load):
    (finding,) = surging(s=hung(load))
    assert (finding.fault, finding.detector, finding.severity) == (None, "backlog", Priority.P2)
    assert finding.evidence[-1].text == "findings.backlog_of_lost_capacity"


def test_a_queue_since_a_replica_was_lost_is_a_backlog(surging):
    queue = [0.0] * 60 + [float(3 * i) for i in range(1, 31)]
    row = service(queue, [8.0] * 60 + [5.0] * 30)
    (finding,) = surging(s=row | {"svc_ready_backends": [4.0] * 55 + [3.0] * 35})
    assert (finding.fault, finding.detector) == (None, "backlog")
    (finding,) = surging(s=row | {"svc_ready_backends": [4.0] * 80 + [3.0] * 10})
    assert finding.detector == "queue", "the queue is older"


def test_a_surge_after_an_outage_is_a_surge(surging):
    queue = [0.0] * 60 + [float(6 * i) for i in range(1, 31)]
    row = service(queue, [8.0] * 90)
    (finding,) = surging(s=row | {"svc_ready_backends": [4.0] * 20 + [3.0] * 20 + [4.0] * 50})
    assert finding.fault == "traffic-surge"


def test_requests_that_a_replica_held_are_no_rise_when_it_reports_them(surging):
    """One of eight replicas hangs with a frozen page. Its first page reports the requests of five minutes at once."""
    queue = [0.0] * 75 + [60.0 + i for i in range(15)]
    row = service(queue, [7.0] * 75 + [8.0] * 15)
    (finding,) = surging(s=row)
    assert finding.fault is None


def flags_changed(ref, at):
    when = datetime.fromtimestamp(at, tz=UTC)
    attributes = {"from": "--max-num-seqs=64", "to": "--max-num-seqs=16"}
    return Event("e", EventKind.CHANGE, ref(S, "s"), when, "change", "flags", attributes, "e")


@pytest.mark.parametrize(("changed", "running", "fault"), [
    (True, [4.0] * 30, "batch-misconfigured"),
    (False, [4.0] * 30, None),
    (True, [4.0 + i % 2 for i in range(30)], None),
])  # fmt: skip
def test_a_full_batch_after_a_flag_change_is_a_misconfigured_batch(
    ref, window_of, findings_of, changed, running, fault
):
    queue = [0.0] * 60 + [float(3 * i) for i in range(1, 31)]
    row = service(queue, [8.0] * 60 + [5.0] * 30)
    row["svc_inflight_requests"] = [8.0] * 60 + [wait + run for wait, run in zip(queue[60:], running, strict=True)]
    events = [flags_changed(ref, START + 300)] if changed else []
    (finding,) = findings_of(QueueingDetector(), window_of(S, {"s": row}, events=events))
    assert finding.fault == fault


@pytest.mark.parametrize(("running", "fault"), [(4.0, "batch-misconfigured"), (16.0, "traffic-surge")])
def test_a_backlog_under_a_smaller_batch_is_a_misconfigured_batch(ref, window_of, findings_of, running, fault):
    """A surge fills a batch of 16. Arrivals fall again with a backlog left, and then flags change."""
    queue = [0.0] * 30 + [float(3 * i) for i in range(1, 31)] + [90.0] * 60
    batch = [16.0] * 90 + [running] * 30
    row = service(queue, [5.0] * 30 + [20.0] * 30 + [5.0] * 60)
    row["svc_inflight_requests"] = [wait + run for wait, run in zip(queue, batch, strict=True)]
    at = START + 450
    (finding,) = findings_of(QueueingDetector(), window_of(S, {"s": row}, events=[flags_changed(ref, at)]))
    assert finding.fault == fault
    if fault == "batch-misconfigured":
        assert finding.window.start.timestamp() == at, "not the older queue's beginning"


def test_more_traffic_within_the_slo_is_not_a_surge(surging):
    assert surging(s=service([0.0] * 90, [5.0] * 60 + [20.0] * 30, ttft=0.2)) == []


def test_the_queue_decides_if_ttft_is_unknown(window_of, findings_of):
    row = {name: values for name, values in replica(GROWING).items() if "#" not in name}
    (finding,) = findings_of(SaturationDetector(), window_of(R, {"r0": row}))
    assert finding.score == pytest.approx(0.6)
