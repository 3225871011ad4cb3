from __future__ import annotations

from datetime import UTC, datetime

import pytest

from detectors.engine.liveness import LivenessDetector
from outrider.model import CellStatus, EntityKind, Event, EventKind, NoVerdict, NoVerdictReason, Priority
from outrider.topology import Topology

R = EntityKind.REPLICA
START = 1_800_000_000.0
BUSY = {
    "engine_up": 1.0,
    "target_failure_code": 0.0,
    "engine_health_ok": 1.0,
    "engine_sleep_state": 1.0,
    "engine_requests_running": 3.0,
    "engine_requests_waiting": 0.0,
    "engine_generation_tokens_total": 300.0,
    "engine_iterations_total": 100.0,
    "engine_requests_finished_total": 4.0,
    "engine_inflight_requests": 3.0,
    "engine_open_files": 36.0,
}
STILL = {
    "engine_generation_tokens_total": 0.0,
    "engine_iterations_total": 0.0,
    "engine_requests_finished_total": 0.0,
}
REFUSED = {"engine_up": 0.0, "target_failure_code": 1.0, "engine_health_ok": 0.0}


def series(*parts):
    """``series((3, BUSY), (2, {...changes}))``: columns of scrapes. A failed scrape has no other values."""
    scrapes = []
    for count, cells in parts:
        whole = cells if cells.get("engine_up") == 0.0 else {**BUSY, **cells}
        scrapes += [dict(whole) for _ in range(count)]
    return {name: [scrape.get(name) for scrape in scrapes] for name in BUSY}


@pytest.fixture
def find(window_of, findings_of):
    def run(rows, topology=None, **kwargs):
        verdicts = kwargs.pop("verdicts", None)
        return findings_of(LivenessDetector(), window_of(R, rows, **kwargs), topology, verdicts=verdicts)

    return run


def faults(findings):
    return [(item.entity.name, item.fault) for item in findings]


def test_a_busy_engine_has_no_finding(find):
    assert find({"r0": series((20, BUSY))}) == []


def test_an_engine_is_dead_after_the_second_refused_scrape(find):
    assert find({"r0": series((5, BUSY), (1, REFUSED))}) == []
    (finding,) = find({"r0": series((5, BUSY), (2, REFUSED))})
    assert (finding.fault, finding.severity, finding.observed) == ("engine-dead", Priority.P1, 0.0)
    assert finding.evidence[0].text == "findings.page_refused"
    assert finding.evidence[0].arguments == {"scrapes": "2"}


def test_a_dead_engine_is_alive_with_its_first_successful_scrape(find):
    reset = {("r0", name, 9): CellStatus.RESET for name in STILL}
    assert find({"r0": series((5, BUSY), (4, REFUSED), (1, {}))}, statuses=reset) == []


def test_death_is_remembered_beyond_the_window(findings_of, window_of, now_of):
    detector = LivenessDetector()
    topology = Topology.build(())
    before = window_of(R, {"r0": series((3, BUSY), (2, REFUSED))})
    state, (first,) = detector.detect(detector.initial(), before, topology, now_of(before))
    later = window_of(R, {"r0": series((5, REFUSED))}, start=before.times[-1] + 1000)
    _, (still,) = detector.detect(state, later, topology, now_of(later))
    assert still.fault == "engine-dead"
    assert still.window.start == first.window.start
    assert still.fingerprint == first.fingerprint


def test_an_engine_never_seen_up_is_starting(find):
    verdicts = []
    assert find({"r0": series((10, REFUSED))}, verdicts=verdicts) == []
    assert [item.reason for item in verdicts] == [NoVerdictReason.WARMING_UP]


def test_an_intentional_restart_is_starting_until_it_takes_too_long(window_of, now_of, ref):
    detector, topology = LivenessDetector(), Topology.build(())
    event = Event("e", EventKind.ACTION, ref(R, "r0"), datetime.fromtimestamp(START + 25, tz=UTC), "x", "restart_pod")
    down = window_of(R, {"r0": series((5, BUSY), (20, REFUSED))}, events=[event])
    state, (verdict,) = detector.detect(detector.initial(), down, topology, now_of(down))
    assert (type(verdict), verdict.reason) == (NoVerdict, NoVerdictReason.WARMING_UP)
    later = window_of(R, {"r0": series((20, REFUSED))}, events=[event], start=START + 620)
    _, (finding,) = detector.detect(state, later, topology, now_of(later))
    assert finding.fault == "engine-dead"


def of_the_kubelet(ref, code, text, seconds=25):
    at = datetime.fromtimestamp(START + seconds, tz=UTC)
    id_ = f"{code}-{seconds}"
    return Event(id_, EventKind.KUBERNETES, ref(R, "r0"), at, "x", code, {"text": text}, id_)


STOPPING = ("Killing", "Stopping container vllm")
EVICTED = ("Evicted", "The node was low on resource: ephemeral-storage.")
UNHEALTHY = ("Killing", "Container vllm failed liveness probe, will be restarted")


@pytest.mark.parametrize(("lines", "dead"), [([STOPPING], False), ([STOPPING, EVICTED], True), ([UNHEALTHY], True)])
def test_a_stop_by_the_kubelet_is_not_a_crash(find, ref, lines, dead):
    events = [of_the_kubelet(ref, *line) for line in lines]
    findings = find({"r0": series((5, BUSY), (20, REFUSED))}, events=events)
    assert faults(findings) == ([("r0", "engine-dead")] if dead else [])


@pytest.mark.parametrize(
    ("started", "dead"),
    [([], True), ([500], False), ([500, 700], False), ([15, 500], False), ([120, 700], True)],
)
def test_an_engine_loads_for_ten_minutes_from_its_first_container_start(window_of, now_of, ref, started, dead):
    """A slow pull: stopped after 25 s and down for 14 min. A container that starts again and again is not loading."""
    detector, topology = LivenessDetector(), Topology.build(())
    events = [of_the_kubelet(ref, *STOPPING)]
    events += [of_the_kubelet(ref, "Started", "Started container vllm", seconds) for seconds in started]
    state, verdict = detector.initial(), None
    for seconds in range(0, 840, 60):
        rows = series((5, BUSY), (7, REFUSED)) if seconds == 0 else series((12, REFUSED))
        window = window_of(R, {"r0": rows}, start=START + seconds, events=events)
        state, (verdict,) = detector.detect(state, window, topology, now_of(window))
    assert isinstance(verdict, NoVerdict) is not dead


def test_a_dying_engine_core_is_one_dead_engine(find):
    dying = {**STILL, "engine_health_ok": 0.0, "engine_requests_running": 0.0}
    findings = find({"r0": series((5, BUSY), (2, dying), (2, REFUSED))})
    assert faults(findings) == [("r0", "engine-dead")]
    long_dying = find({"r0": series((5, BUSY), (4, dying), (2, REFUSED))})
    assert faults(long_dying) == [("r0", "engine-dead")]


def test_http_503_is_a_dead_engine_core(find):
    dying = {**STILL, "engine_health_ok": 0.0, "engine_requests_running": 0.0, "engine_inflight_requests": 0.0}
    assert find({"r0": series((5, BUSY), (2, dying))}) == []
    assert faults(find({"r0": series((5, BUSY), (3, dying))})) == [("r0", "engine-core-dead")]


def test_metrics_errors_with_a_failing_health_check_are_a_dead_core(find):
    errors = {"engine_up": 0.0, "target_failure_code": 5.0, "engine_health_ok": 0.0}
    assert faults(find({"r0": series((5, BUSY), (3, errors))})) == [("r0", "engine-core-dead")]


def test_a_failing_health_check_with_tokens_is_not_a_dead_core(find):
    assert find({"r0": series((5, BUSY), (6, {"engine_health_ok": 0.0}))}) == []


def test_a_loading_engine_that_is_not_healthy_yet_is_starting(find):
    loading = {**STILL, "engine_health_ok": 0.0, "engine_requests_running": 0.0, "engine_inflight_requests": 0.0}
    assert find({"r0": series((12, loading))}) == []


def test_immediately_failing_requests_are_a_dead_core(find):
    failing = {**STILL, "engine_requests_running": 0.0, "engine_inflight_requests": 0.0}
    rows = series((5, BUSY), (4, failing))
    rows["engine_http_requests_total"] = [4.0] * 5 + [3.0] * 4
    rows["engine_http_failed_total"] = [0.0] * 5 + [3.0] * 4
    assert faults(find({"r0": rows})) == [("r0", "engine-core-dead")]
    rows["engine_http_failed_total"] = [0.0] * 9  # refusals of bad requests (4xx) on an idle engine
    assert find({"r0": rows}) == []


def test_frozen_running_requests_are_a_hang(find):
    frozen = {**STILL, "engine_inflight_requests": None, "engine_open_files": None}
    assert find({"r0": series((10, BUSY), (2, frozen))}) == []
    (finding,) = find({"r0": series((10, BUSY), (3, frozen))})
    assert finding.fault == "engine-hung"
    assert "findings.health_misleads" in [item.text for item in finding.evidence]


def test_inflight_requests_reveal_a_hang_of_an_idle_engine(find):
    idle = {**STILL, "engine_requests_running": 0.0}
    assert faults(find({"r0": series((10, BUSY), (3, idle))})) == [("r0", "engine-hung")]


def test_idle_is_not_hung(find):
    idle = {**STILL, "engine_requests_running": 0.0, "engine_inflight_requests": 0.0, "engine_open_files": 33.0}
    assert find({"r0": series((5, BUSY), (30, idle))}) == []
    assert find({"r0": series((30, idle))}) == []


def test_the_backlog_after_a_hang_is_not_a_second_hang(find):
    backlog = {"engine_requests_waiting": 69.0, "engine_inflight_requests": 77.0}
    assert find({"r0": series((10, BUSY), (10, STILL), (3, backlog))}) == []


def test_saturated_is_never_hung(find):
    full = {"engine_requests_waiting": 500.0, "engine_requests_running": 256.0, "engine_requests_finished_total": 0.0}
    assert find({"r0": series((60, full))}) == []


def test_a_long_step_is_waited_for(find):
    slow = {"engine_iterations_total": 1.0}  # one step in 5 s, so 25 s are nothing unusual
    assert find({"r0": series((10, slow), (4, STILL))}) == []
    assert faults(find({"r0": series((10, slow), (5, STILL))})) == [("r0", "engine-hung")]


def test_without_a_known_step_a_first_request_gets_a_minute(find):
    waits = {**STILL, "engine_requests_running": 1.0, "engine_inflight_requests": 1.0}
    idle = {**STILL, "engine_requests_running": 0.0, "engine_inflight_requests": 0.0}
    assert find({"r0": series((3, idle), (11, waits))}) == []
    assert faults(find({"r0": series((3, idle), (12, waits))})) == [("r0", "engine-hung")]


def test_a_sleeping_engine_is_not_hung_and_severe_only_with_requests(find):
    sleeps = {**STILL, "engine_sleep_state": 0.0, "engine_requests_running": 0.0, "engine_inflight_requests": 0.0}
    (quiet,) = find({"r0": series((5, BUSY), (8, sleeps))})
    assert (quiet.fault, quiet.severity) == ("engine-asleep", Priority.P3)
    (loud,) = find({"r0": series((5, BUSY), (8, {**sleeps, "engine_inflight_requests": 30.0}))})
    assert (loud.fault, loud.severity) == ("engine-asleep", Priority.P1)
    woken = {**STILL, "engine_inflight_requests": 30.0}
    assert find({"r0": series((5, BUSY), (8, sleeps), (1, woken))}) == []


def test_open_files_reveal_a_hang(find, ref):
    hidden = {**STILL, "engine_requests_running": 0.0, "engine_inflight_requests": None}
    rows = series((10, {**BUSY, "engine_inflight_requests": None}), (5, hidden))
    rows["engine_open_files"] = [34.0] * 10 + [38.0, 40.0, 43.0, 47.0, 51.0]
    peer = series((15, BUSY))
    service = ref(EntityKind.SERVICE, "s")
    topology = Topology.build([(ref(R, "r0"), service), (ref(R, "r1"), service)])
    assert faults(find({"r0": rows, "r1": peer}, topology)) == [("r0", "engine-hung")]
    flat = {**rows, "engine_open_files": [34.0] * 10 + [60.0] * 5}  # a pool of idle connections, opened once
    assert find({"r0": flat, "r1": peer}, topology) == []


def test_a_reset_counter_is_neither_progress_nor_a_hang(find):
    reset = {("r0", name, column): CellStatus.RESET for name in STILL for column in (12, 13)}
    assert find({"r0": series((10, BUSY), (5, STILL))}, statuses=reset) == []


def test_one_verdict_per_replica_and_cycle(find):
    findings = find({f"r{i}": series((5, BUSY), (2, REFUSED)) for i in range(4)})
    assert sorted(faults(findings)) == [(f"r{i}", "engine-dead") for i in range(4)]


def test_a_server_that_times_out_is_hung(find):
    silent = {"engine_up": 0.0, "target_failure_code": 2.0, "engine_health_ok": 0.0}
    assert find({"r0": series((5, BUSY), (2, silent))}) == []
    assert faults(find({"r0": series((5, BUSY), (3, silent))})) == [("r0", "engine-hung")]


def test_simultaneous_timeouts_on_several_nodes_are_ignored(find, ref):
    silent = {"engine_up": 0.0, "target_failure_code": 2.0, "engine_health_ok": 0.0}
    nodes = [ref(EntityKind.NODE, "n0"), ref(EntityKind.NODE, "n1")]
    topology = Topology.build([(nodes[i % 2], ref(R, f"r{i}")) for i in range(6)])
    verdicts = []
    assert find({f"r{i}": series((5, BUSY), (4, silent)) for i in range(6)}, topology, verdicts=verdicts) == []
    assert {item.reason for item in verdicts} == {NoVerdictReason.UNTRUSTED_VALUES}
    refused = find({f"r{i}": series((5, BUSY), (4, REFUSED)) for i in range(6)}, topology)
    assert len(refused) == 6


def test_a_replica_without_a_scrape_gives_no_verdict(find):
    verdicts = []
    silent = {name: [*values[:5], *[None] * 20] for name, values in series((25, BUSY)).items()}
    assert find({"r0": silent, "r1": series((25, BUSY))}, verdicts=verdicts) == []
    assert [(item.entity.name, item.reason) for item in verdicts] == [("r0", NoVerdictReason.NO_VALUES)]
    assert all(isinstance(item, NoVerdict) for item in verdicts)


def test_slow_scrapes_are_counted_once_each(find):
    scraped = series((10, BUSY), (2, REFUSED))
    sparse = {name: [v for value in values for v in (value, None, None)] for name, values in scraped.items()}
    assert faults(find({"r0": sparse})) == [("r0", "engine-dead")]
