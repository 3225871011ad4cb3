from __future__ import annotations

from datetime import UTC, datetime

import pytest

from detectors.engine.engine_errors import EngineErrorDetector
from outrider.model import EntityKind, EntityRef, Event, EventKind
from outrider.topology import Topology

START = 1_800_000_000.0
R, SVC = EntityKind.REPLICA, EntityRef("lab", EntityKind.SERVICE, "default", "chat")
REPLICAS = [EntityRef("lab", R, "default", f"r{i}") for i in range(3)]
POD = EntityRef("lab", EntityKind.POD, "default", "pod-0")
TOPOLOGY = Topology.build([*((replica, SVC) for replica in REPLICAS), (POD, REPLICAS[0])])
LENGTH = 40


def replica(failed=0.0, *, finished=20.0, started=-9000.0, transfers=None):
    row = {
        "engine_requests_failed_total": [0.0] * 10 + [failed] * (LENGTH - 10),
        "engine_requests_finished_total": [finished] * LENGTH,
        "engine_start_time_seconds": [START + started] * LENGTH,
    }
    return row if transfers is None else {**row, "engine_kv_transfer_failures_per_second": transfers}


def event(code, second, entity=SVC, kind=EventKind.CHANGE):
    at = datetime.fromtimestamp(START + second, tz=UTC)
    return Event(f"{code}-{second}", kind, entity, at, "test", code)


def line(code, second, entity=REPLICAS[0]):
    return event(code, second, entity, EventKind.LOG)


@pytest.fixture
def find(window_of, findings_of):
    def run(events=(), **rows):
        rows = {name: rows.get(name, replica()) for name in ("r0", "r1", "r2")}
        findings = findings_of(EngineErrorDetector(), window_of(R, rows, events=events), TOPOLOGY)
        return [(item.fault, item.entity) for item in findings]

    return run


def test_no_failures_give_no_finding(find):
    assert find() == []


def test_failures_of_a_new_revision_only_are_a_bad_rollout(find):
    assert find([event("rollout", 5)], r0=replica(4.0, started=20.0)) == [("bad-rollout", SVC)]


def test_a_bad_rollout_lasts_until_its_processes_are_replaced(find):
    gone = replica(4.0, started=20.0)
    gone = {name: [*values[:30], *[None] * 10] for name, values in gone.items()}
    events = [event("rollout", 5), event("rollback", 140)]
    assert find(events, r0=gone) == [("bad-rollout", SVC)]
    gone["engine_start_time_seconds"][36:] = [START + 170.0] * 4
    assert find(events, r0=gone) == []


def test_errors_of_an_old_process_are_not_a_bad_rollout(find):
    assert find([event("rollout", 5)], r0=replica(4.0)) == []
    assert find([event("rollout", 5)], r0=replica(4.0, started=20.0), r1=replica(4.0)) == []


def test_errors_without_a_change(find):
    assert find(r0=replica(4.0, started=20.0)) == []


def test_a_restart_is_not_a_new_revision(find):
    assert find([event("restart", 5)], r0=replica(4.0, started=20.0)) == []


def test_single_failures_are_not_a_bad_rollout(find):
    assert find([event("rollout", 5)], r0=replica(0.1, started=20.0)) == []


@pytest.mark.parametrize("entity", [REPLICAS[0], POD])
def test_fragmentation_in_the_log_is_reported(find, entity):
    assert find([line("memory_fragmented", 100, entity)]) == [("gpu-memory-fragmentation", REPLICAS[0])]


def test_log_lines_of_the_previous_process_are_ignored(find):
    assert find([line("memory_fragmented", 10)], r0=replica(started=50.0)) == []


def test_fragmentation_is_not_a_bad_rollout(find):
    events = [event("rollout", 5), line("memory_fragmented", 100)]
    assert find(events, r0=replica(4.0, started=20.0)) == [("gpu-memory-fragmentation", REPLICAS[0])]


def test_failed_transfers_in_the_log_are_reported(find):
    assert find([line("kv_transfer_failed", 100), line("kv_transfer_failed", 145)]) == [
        ("kv-transfer-fail", REPLICAS[0])
    ]
    assert find([line("kv_transfer_failed", 100)]) == []


def test_failed_transfers_in_the_counter_are_reported(find):
    assert find(r1=replica(transfers=[0.0] * 30 + [0.5] * 10)) == [("kv-transfer-fail", REPLICAS[1])]
    assert find(r1=replica(transfers=[0.0] * 39 + [0.5])) == []
    assert find(r1=replica(transfers=[0.0] * LENGTH)) == []


def test_log_lines_of_an_hour_ago_are_ignored(find):
    assert find([line("memory_fragmented", -3600), line("kv_transfer_failed", -3600)]) == []


def test_no_values_give_no_verdict(find):
    assert find(**{name: {"engine_requests_failed_total": [None] * LENGTH} for name in ("r0", "r1", "r2")}) == []
