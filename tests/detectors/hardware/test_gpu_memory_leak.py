from __future__ import annotations

import pytest

from detectors.hardware.gpu_memory_leak import GpuMemoryLeakDetector
from outrider.model import EntityKind, EntityRef, NoVerdictReason
from outrider.topology import Topology

GPU, REPLICA = EntityKind.GPU, EntityRef("lab", EntityKind.REPLICA, "default", "r0")
TOPOLOGY = Topology.build([(EntityRef("lab", GPU, None, name), REPLICA) for name in ("g0", "g1")])
GIB = 2.0**30
LENGTH = 120  # ten minutes


def card(used, *, reserved=0.9, busy=0.5, total=80.0, cache=None):
    length = len(used)
    row = {
        "hw_accel_memory_used_bytes": [None if value is None else value * GIB for value in used],
        "hw_accel_memory_total_bytes": [total * GIB] * length,
        "hw_accel_utilization_ratio": busy if isinstance(busy, list) else [busy] * length,
    }
    if cache is not None:
        row["engine_kv_cache_usage_ratio"] = cache
    return row if reserved is None else {**row, "engine_memory_reserved_ratio": [reserved] * length}


def climbing(length=LENGTH, begins=40, per_scrape=0.03, level=72.0):
    return [level + max(0, column - begins) * per_scrape for column in range(length)]


@pytest.fixture
def find(window_of, findings_of):
    def run(topology=TOPOLOGY, verdicts=None, **rows):
        findings = findings_of(GpuMemoryLeakDetector(), window_of(GPU, rows), topology, verdicts=verdicts)
        return [(item.fault, item.entity) for item in findings]

    return run


FLAT = [72.0] * LENGTH


def test_constant_memory_has_no_finding(find):
    assert find(g0=card(FLAT), g1=card(FLAT)) == []


def test_a_memory_climb_is_reported_once_on_its_replica(find):
    assert find(g0=card(climbing()), g1=card(FLAT)) == [("gpu-memory-leak", REPLICA)]
    assert find(g0=card(climbing()), g1=card(climbing())) == [("gpu-memory-leak", REPLICA)]


def test_a_leak_without_an_owner_is_reported_on_the_gpu(find):
    assert find(Topology.build(()), g0=card(climbing())) == [("gpu-memory-leak", EntityRef("lab", GPU, None, "g0"))]


def test_one_large_buffer_is_not_a_leak(find):
    assert find(g0=card([72.0] * 60 + [75.0] * 60)) == []


def test_noise_is_not_a_leak(find):
    assert find(g0=card([72.0 + (column % 2) for column in range(LENGTH)])) == []


def test_a_fresh_process_warms_up(find):
    assert find(g0=card([0.01] * 20 + climbing(100, begins=10))) == []


def test_a_leak_that_filled_the_memory_is_still_reported(find):
    assert find(g0=card([min(value, 73.5) for value in climbing()])) == [("gpu-memory-leak", REPLICA)]


def test_a_finding_ends_when_the_memory_is_released(find):
    assert find(g0=card([*climbing(110), *[72.0] * 10])) == []


def test_unreserved_memory_may_follow_the_load(find):
    rising = [min(1.0, 0.1 + 0.008 * column) for column in range(LENGTH)]
    assert find(g0=card(climbing(), reserved=None, busy=rising)) == []
    assert find(g0=card(climbing(), reserved=None)) == [("gpu-memory-leak", REPLICA)]


def test_memory_growth_without_the_cache_is_a_leak(find):
    filling, steady = [min(1.0, 0.1 + 0.006 * column) for column in range(LENGTH)], [0.4] * LENGTH
    rising = [min(1.0, 0.1 + 0.008 * column) for column in range(LENGTH)]
    assert find(g0=card(climbing(), reserved=None, cache=filling)) == [], "busy or not, the cache explains it"
    leaks = [("gpu-memory-leak", REPLICA)]
    assert find(g0=card(climbing(), reserved=None, cache=steady, busy=rising)) == leaks, "busier, with no more cached"
    assert find(g0=card(climbing(), cache=filling)) == leaks, "a cache fills what was reserved"


def test_a_slow_leak_over_hours_is_reported(find):
    creep = [72.0 + 0.004 * column for column in range(600)]  # 2.4 GiB in fifty minutes
    assert find(g0=card(creep)) == [("gpu-memory-leak", REPLICA)]
    assert find(g0=card([72.0 + 0.0005 * column for column in range(600)])) == []


@pytest.mark.parametrize("length", [1, 2])
def test_too_few_scrapes_give_no_finding(find, length):
    assert find(g0=card([72.0] * length)) == []


def test_no_values_give_no_verdict(find):
    verdicts = []
    assert find(verdicts=verdicts, g0=card([None] * LENGTH)) == []
    assert [item.reason for item in verdicts] == [NoVerdictReason.NO_VALUES]
