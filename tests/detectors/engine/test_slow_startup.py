from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from detector_events import event_at  # type: ignore[import-not-found]

from detectors.engine.slow_startup import SlowStartupDetector
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

PULLED = 'Successfully pulled image "vllm" in {}s (31s including waiting). Image size: 9 bytes.'
STORAGE, SERVICE = (
    EntityRef("lab", EntityKind.STORAGE, None, "models"),
    EntityRef("lab", EntityKind.SERVICE, "default", "s"),
)


def pod(number):
    return EntityRef("lab", EntityKind.POD, "default", f"s-{number}")


def fleet(count=4):
    edges, labels = [], {}
    for number in range(count):
        node = EntityRef("lab", EntityKind.NODE, None, f"n{number}")
        replica = EntityRef("lab", EntityKind.REPLICA, "default", f"s-{number}")
        edges += [(STORAGE, node), (node, pod(number)), (pod(number), replica), (replica, SERVICE)]
        labels[node] = {"pool": "a"}
    return Topology.build(edges, (), labels)


@pytest.fixture
def find(window_of, findings_of):
    """Four pods. The named ones are not ready for 500 s; the others took 200 s, with 30 s for the image pull."""

    def run(events, waiting=("s-0",), topology=None, length=101, **columns):
        rows = {
            f"s-{number}": {
                "pod_ready": [1.0] + [0.0 if f"s-{number}" in waiting else 1.0] * (length - 1),
                "pod_startup_seconds": [200.0] * length,
                "pod_unschedulable": [0.0] * length,
            }
            | (columns if f"s-{number}" in waiting else {})
            for number in range(4)
        }
        pulls = [event_at(pod(number), "Pulled", 0, PULLED.format(30)) for number in (1, 2, 3)]
        window = window_of(EntityKind.POD, rows, events=[*pulls, *events])
        findings = findings_of(SlowStartupDetector(), window, topology or fleet())
        return [(item.fault, str(item.entity)) for item in findings]

    return run


def started(number, placed, after, pull=30.0):
    return [
        event_at(pod(number), "Scheduled", placed),
        event_at(pod(number), "Pulled", after, PULLED.format(pull)),
        event_at(pod(number), "Started", after),
    ]


def test_a_slow_image_pull_is_reported_on_the_node(find):
    placed = [event_at(pod(0), "Scheduled", 10)]
    assert find(placed) == [("image-pull-slow", "node/n0")]
    assert find(placed, length=15) == []


def test_a_slow_model_load_is_reported_on_the_replica(find):
    assert find(started(0, 10, 40)) == [("slow-start", "replica/default/s-0")]
    assert find(started(0, 10, 40), length=40) == [], "as long as its peers took"
    assert find([*started(0, 10, 40), event_at(pod(0), "Started", 400)]) == [], "a new process begins anew"


def test_slow_model_loads_of_several_pods_are_reported_on_the_storage(find):
    both = [*started(0, 10, 40), *started(1, 10, 40)]
    assert find(both, ("s-0", "s-1")) == [("storage-slow", "storage/models")]
    slow = [*started(0, 10, 100, pull=90.0), *started(1, 10, 100, pull=90.0)]
    assert find(slow, ("s-0", "s-1")) == [("slow-start", "replica/default/s-0"), ("slow-start", "replica/default/s-1")]


def test_pending_pods_are_reported_on_the_pool_of_their_peers(find):
    assert find([], pod_unschedulable=[0.0] * 50 + [1.0] * 51) == [("pods-pending", "pool/a")]
    assert find([], pod_unschedulable=[0.0] * 95 + [1.0] * 6) == []
    without = Topology.build(
        [(EntityRef("lab", EntityKind.NODE, None, "n1"), pod(1))],
        (),
        {EntityRef("lab", EntityKind.NODE, None, "n1"): {"pool": "b"}},
    )
    assert find([], topology=without, pod_unschedulable=[1.0] * 101) == [("pods-pending", "pool/b")]


def test_healthy_and_unknown_pods_have_no_finding(find, window_of, findings_of):
    assert find([], waiting=()) == []
    alone = window_of(EntityKind.POD, {"s-0": {"pod_ready": [0.0] * 101}}, events=started(0, 10, 40))
    assert findings_of(SlowStartupDetector(), alone) == [], "nobody knows what is usual"
    assert findings_of(SlowStartupDetector(), window_of(EntityKind.POD, {"s-0": {"pod_ready": [None]}})) == []
