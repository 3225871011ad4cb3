from __future__ import annotations

import numpy as np
import pytest

from detectors.platform.container_faults import ContainerFaultDetector
from outrider.model import EntityKind
from outrider.topology import Topology

LONG, CLIMB = 400, 72  # scrapes of 5 s: what is well before, and what is judged


@pytest.fixture
def find(window_of, findings_of):
    def run(columns, topology=None):
        window = window_of(EntityKind.CONTAINER, {"p0/vllm": columns})
        findings = findings_of(ContainerFaultDetector(), window, topology)
        return [(item.fault, str(item.entity)) for item in findings]

    return run


def used(*parts, cores=1.0):
    level = np.concatenate(parts)
    return {
        "container_memory_working_set_bytes": list(level),
        "container_cpu_usage_cores": list(np.broadcast_to(cores, level.shape)),
    }


def test_a_cpu_limit_throttles_a_container(find, ref):
    held = {"container_cpu_throttled_ratio": [0.0] * 5 + [0.3] * 30}
    assert find(held) == [("cpu-throttled", "pod/default/p0")]
    pod, container = ref(EntityKind.POD, "other"), ref(EntityKind.CONTAINER, "p0/vllm")
    assert find(held, Topology.build([(pod, container)])) == [("cpu-throttled", "pod/default/other")]
    assert find({"container_cpu_throttled_ratio": [0.0] * 25 + [0.9] * 10}) == [], "a burst"
    assert find({"container_cpu_throttled_ratio": [0.1] * 35}) == []


def test_memory_rising_from_a_steady_level_is_a_leak(find):
    rising = 1e11 + 2e8 * np.arange(1, CLIMB)
    assert find(used(np.full(LONG, 1e11), rising)) == [("host-memory-leak", "pod/default/p0")]


def test_memory_growth_of_a_new_process_is_not_a_leak(find):
    rising = 1e11 + 2e8 * np.arange(1, CLIMB)
    assert find(used(np.full(20, np.nan), np.full(100, 1e11), rising)) == [], "it came while we looked"
    assert find(used(np.full(LONG, 1.5e11), np.full(100, 5e10), 5e10 + 2e8 * np.arange(1, CLIMB))) == []


def test_memory_that_follows_the_load_or_stays_flat_is_not_a_leak(find):
    rising = 1e11 + 2e8 * np.arange(1, CLIMB)
    work = np.concatenate([np.full(LONG, 1.0), np.linspace(1.0, 3.0, CLIMB - 1)])
    assert find(used(np.full(LONG, 1e11), rising, cores=work)) == []
    noisy = 1e11 + 1e8 * np.sin(np.arange(LONG))
    assert find(used(noisy)) == []


def test_no_values_give_no_finding(find):
    assert find({"container_memory_working_set_bytes": [None] * 5}) == []
    assert find({"container_memory_working_set_bytes": [1e11]}) == []
