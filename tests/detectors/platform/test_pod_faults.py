from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from detector_events import event_at, log_event  # type: ignore[import-not-found]

from detectors.platform.pod_faults import PodFaultDetector
from outrider.model import EntityKind, EntityRef, NoVerdict

POD = EntityRef("lab", EntityKind.POD, "default", "p0")


@pytest.fixture
def find(window_of, findings_of):
    def run(columns, events=(), verdicts=None):
        window = window_of(EntityKind.POD, {"p0": columns}, events=events)
        findings = findings_of(PodFaultDetector(), window, verdicts=verdicts)
        return [(item.fault, str(item.entity)) for item in findings]

    return run


def pod(ready=1.0, restarts=(), oom=0.0, waiting=0.0, length=12):
    return {
        "pod_ready": [ready] * length,
        "pod_restarts": [1.0 if place in restarts else 0.0 for place in range(length)],
        "pod_last_terminated_oom": [oom] * length,
        "pod_waiting_reason": [waiting] * length,
    }


def test_a_healthy_pod_has_no_finding(find):
    assert find(pod()) == []
    assert find({name: values[:1] for name, values in pod().items()}) == []


def test_an_oom_kill_in_the_kernel_log_is_reported(find):
    line = log_event(POD, "oom-kill", 10, "Memory cgroup out of memory: Killed process 41 (python3)")
    assert find(pod(), [line]) == [("pod-oom", "pod/default/p0")]


def test_an_oom_termination_reason_needs_a_restart_within_the_window(find):
    assert find(pod(oom=1.0, restarts=(4,))) == [("pod-oom", "pod/default/p0")]
    assert find(pod(oom=1.0)) == []
    assert find(pod(oom=0.0, restarts=(4,))) == []


def test_repeated_starts_and_backoffs_are_a_crash_loop(find):
    events = [
        event_at(POD, code, at) for code, at in (("Started", 5), ("BackOff", 12), ("Started", 20), ("BackOff", 30))
    ]
    assert find(pod(ready=0.0), events) == [("crash-loop", "pod/default/p0")]
    assert find(pod(ready=0.0, waiting=3.0), events[:3]) == [("crash-loop", "pod/default/p0")]
    assert find(pod(ready=0.0), events[:3]) == [], "the second process may be well"


def test_backoffs_without_starts_are_not_a_crash_loop(find):
    events = [event_at(POD, "BackOff", at) for at in (5, 20, 40)]
    assert find(pod(ready=0.0, waiting=3.0, restarts=(2, 5, 8)), events) == []


def test_starts_of_recreated_pods_are_not_a_crash_loop(find):
    codes = ("Started", "Killing", "Scheduled", "Started", "Killing", "Scheduled", "Started")
    assert find(pod(), [event_at(POD, code, 5 + 5 * place) for place, code in enumerate(codes)]) == []


def test_a_loop_of_oom_kills_is_reported_as_pod_oom(find):
    events = [
        event_at(POD, code, at) for code, at in (("Started", 5), ("Started", 20), ("Started", 40), ("BackOff", 50))
    ]
    assert find(pod(), [*events, log_event(POD, "oom-kill", 19)]) == [("pod-oom", "pod/default/p0")]


def test_without_events_restarts_are_counted(find):
    assert find(pod(waiting=3.0, restarts=(2, 5, 8))) == [("crash-loop", "pod/default/p0")]
    assert find(pod(waiting=3.0, restarts=(2,))) == []


def test_old_events_are_ignored(find):
    assert find(pod(length=240), [log_event(POD, "oom-kill", 10)]) == []


def test_no_values_give_no_verdict(find):
    verdicts: list[NoVerdict] = []
    assert find({"pod_ready": [None] * 4}, verdicts=verdicts) == []
    assert verdicts
