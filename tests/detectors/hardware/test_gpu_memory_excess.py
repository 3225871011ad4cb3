"""Memory in use against the KV cache and the reservation that explain it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from detectors.hardware.gpu_memory_excess import USED, GpuMemoryExcessDetector
from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Finding,
    NoVerdict,
    NoVerdictReason,
    Priority,
    Stage,
    Window,
)
from outrider.topology import Topology
from service.engine import detector_rollout

GPU, GB = EntityKind.GPU, 1e9
STEP, CYCLES, START = 60.0, 21, 1_800_000_000.0
KEYS = GpuMemoryExcessDetector.keys
LEARN, FAULT = 90, 100  # cycles of a minute


def gpus(count):
    return tuple(EntityRef("lab", GPU, None, f"g{number}") for number in range(count))


def topology_of(entities, model="chat"):
    service = EntityRef("lab", EntityKind.SERVICE, "default", model)
    edges, labels = [], {}
    for number, card in enumerate(entities):
        replica = EntityRef("lab", EntityKind.REPLICA, "default", f"{model}-{number}")
        edges += [(card, replica), (replica, service)]
        labels |= {replica: {"model": model}, card: {"gpu_type": "H100"}}
    return Topology.build(edges, labels=labels)


def cache(count, cycles, seed=0):
    """KV-cache utilization of each engine: a wave of one hour with noise, (count, cycles)."""
    random = np.random.default_rng(seed)
    wave = 0.5 + 0.35 * np.sin(np.arange(cycles) / 60.0 * 2 * np.pi)
    return np.clip(wave[None] + random.normal(0, 0.05, (count, cycles)), 0.0, 1.0)


def reserved_memory(in_use, seed=1):
    """Bytes used if the engine reserves all memory at its start: constant, slightly different per GPU."""
    random = np.random.default_rng(seed)
    own = random.normal(72.0, 0.3, (in_use.shape[0], 1))
    return (own + random.normal(0, 0.02, in_use.shape)) * GB


def on_demand_memory(in_use, seed=1):
    """Bytes used if the cache is allocated on demand: 20 GB of weights and up to 50 GB of cache."""
    random = np.random.default_rng(seed)
    return (20.0 + 50.0 * in_use + random.normal(0, 0.1, in_use.shape)) * GB


def run_cycles(used, in_use, *, reserved=0.9, topology=None, state=None, first=0):
    """Runs the detector cycle by cycle. Returns the last state and the verdicts of each cycle."""
    detector, entities = GpuMemoryExcessDetector(), gpus(used.shape[0])
    topology = topology or topology_of(entities)
    state, results = state or detector.initial(), []
    shares = np.full(used.shape, np.nan if reserved is None else reserved)
    values = np.stack((used, shares, in_use), axis=2)
    for end in range(first + 1, values.shape[1] + 1):
        begin = max(0, end - CYCLES)
        part = values[:, begin:end]
        status = np.where(np.isnan(part), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        times = START + STEP * np.arange(begin, end)
        window = Window(GPU, entities, times, KEYS, part, status, timedelta(seconds=STEP))
        state, verdicts = detector.detect(state, window, topology, datetime.fromtimestamp(times[-1], tz=UTC))
        results.append(verdicts)
    return state, results


def findings_in(verdicts):
    return [one for one in verdicts if isinstance(one, Finding)]


@pytest.mark.parametrize(("engine", "reserved"), [(reserved_memory, 0.9), (on_demand_memory, None)])
def test_memory_explained_by_the_engine_is_not_reported(engine, reserved):
    in_use = cache(6, 240)
    _, results = run_cycles(engine(in_use), in_use, reserved=reserved)
    assert not any(findings_in(verdicts) for verdicts in results)
    assert results[-1] == ()


@pytest.mark.parametrize(("engine", "reserved"), [(reserved_memory, 0.9), (on_demand_memory, None)])
def test_a_leak_is_reported_with_reserved_and_on_demand_memory(engine, reserved):
    in_use = cache(6, 200)
    used = engine(in_use)
    used[3, FAULT:] += 0.12 * GB * np.arange(100)
    _, results = run_cycles(used, in_use, reserved=reserved)
    (finding,) = findings_in(results[-1])
    assert (finding.entity.name, finding.fault, finding.severity, finding.signals) == ("g3", None, Priority.P3, (USED,))
    assert finding.evidence[0].text == "findings.memory_above_its_use"
    assert float(finding.evidence[0].arguments["grown"]) == pytest.approx(12.0, rel=0.15)
    assert finding.observed > finding.expected.high


def test_a_second_process_is_reported_after_ten_minutes_until_it_ends():
    in_use = cache(6, 160)
    used = reserved_memory(in_use)
    used[2, FAULT:130] += 4.0 * GB
    _, results = run_cycles(used, in_use)
    reported = [bool(findings_in(verdicts)) for verdicts in results]
    assert not any(reported[: FAULT + 9])
    assert all(reported[FAULT + 14 : 128])
    assert not any(reported[135:])


def test_a_gpu_that_always_uses_more_than_its_peers_is_not_reported():
    in_use = cache(6, 160)
    used = reserved_memory(in_use)
    used[1] += 4.0 * GB
    _, results = run_cycles(used, in_use)
    assert not any(findings_in(verdicts) for verdicts in results)


def test_a_deviation_of_the_whole_class_is_not_reported():
    in_use = cache(6, 160)
    used = reserved_memory(in_use)
    used[:, FAULT:] += 4.0 * GB
    _, results = run_cycles(used, in_use)
    assert not any(findings_in(verdicts) for verdicts in results)


def test_a_new_process_is_neither_judged_nor_learned():
    in_use = cache(6, 160)
    used = reserved_memory(in_use)
    used[4, FAULT : FAULT + 6] = 0.5 * GB  # its engine left, and loads again
    state, results = run_cycles(used, in_use)
    assert not any(findings_in(verdicts) for verdicts in results)
    young = [one for one in results[FAULT + 10] if isinstance(one, NoVerdict)]
    assert [(one.entity.name, one.reason) for one in young] == [("g4", NoVerdictReason.WARMING_UP)]
    mean = state.arrays["sum_y"][4] / state.arrays["sum_n"][4]
    # what was learnt is still that of a warm engine
    assert mean == pytest.approx(used[4, :FAULT].mean(), rel=0.005)


def test_without_engine_metrics_there_is_no_verdict():
    in_use = np.full((4, 60), np.nan)
    used = reserved_memory(cache(4, 60))
    _, results = run_cycles(used, in_use, reserved=None)
    assert not any(findings_in(verdicts) for verdicts in results)
    assert {one.reason for one in results[-1]} == {NoVerdictReason.NO_VALUES}


def test_a_gpu_without_peers_is_compared_with_its_own_history():
    in_use = cache(1, 320)
    used = reserved_memory(in_use)
    used[0, 200:] += 0.2 * GB * np.arange(120)
    _, results = run_cycles(used, in_use)
    (finding,) = findings_in(results[-1])
    assert finding.entity.name == "g0"


def test_rollout_goes_from_learning_over_shadow_to_alerting():
    in_use = cache(6, LEARN)
    state, results = run_cycles(reserved_memory(in_use), in_use)
    assert results[3] == (NoVerdict("memory-use", None, NoVerdictReason.WARMING_UP),)
    now = datetime.fromtimestamp(START, tz=UTC)

    def stage(held, verdicts):
        return (
            detector_rollout.DetectorRollout()
            .judge(detector_rollout.DetectorRun(GpuMemoryExcessDetector(), held, 6, verdicts), now)
            .stage
        )

    assert stage(state, results[3]) is Stage.LEARNING
    assert stage(state, results[-1]) is Stage.SHADOW
    state.arrays["learnt"][:] = 2 * 86400.0
    assert stage(state, results[-1]) is Stage.ALERTING


def test_a_new_gpu_uses_its_class_and_has_an_offset_after_half_an_hour():
    in_use = cache(6, 200)
    used = reserved_memory(in_use)
    used[5, :FAULT], in_use[5, :FAULT] = np.nan, np.nan
    used[5, 150:] += 5.0 * GB
    _, results = run_cycles(used, in_use)
    assert not any(findings_in(verdicts) for verdicts in results[:158])
    assert [one.entity.name for one in findings_in(results[-1])] == ["g5"]


def test_missing_engine_pages_do_not_change_the_class():
    in_use = cache(6, 200)
    used, reserved = reserved_memory(in_use), np.full((6, 200), 0.9)
    in_use[:, LEARN : LEARN + 40], reserved[:, LEARN : LEARN + 40] = np.nan, np.nan
    before, _ = run_cycles(used[:, :LEARN], in_use[:, :LEARN], reserved=reserved[:, :LEARN])
    state, results = run_cycles(used, in_use, reserved=reserved)
    assert (state.arrays["sum_n"] > before.arrays["sum_n"]).all()
    assert {one.reason for one in results[LEARN + 35]} == {NoVerdictReason.NO_VALUES}
    assert results[LEARN + 45] == (), "all are judged at once"


def test_a_deviation_during_an_engine_gap_is_reported_after_it():
    in_use = cache(6, 200)
    used, reserved = reserved_memory(in_use), np.full((6, 200), 0.9)
    in_use[3, FAULT : FAULT + 30], reserved[3, FAULT : FAULT + 30] = np.nan, np.nan
    used[3, FAULT + 5 :] += 5.0 * GB
    _, results = run_cycles(used, in_use, reserved=reserved)
    assert not any(findings_in(verdicts) for verdicts in results[: FAULT + 30])
    assert [one.entity.name for one in findings_in(results[FAULT + 45])] == ["g3"]


def test_a_failed_scrape_at_startup_keeps_learned_state():
    in_use = cache(6, LEARN + 2)
    used, reserved = reserved_memory(in_use), np.full((6, LEARN + 2), 0.9)
    state, _ = run_cycles(used[:, :LEARN], in_use[:, :LEARN], reserved=reserved[:, :LEARN])
    in_use[2, LEARN], reserved[2, LEARN] = np.nan, np.nan
    reserved[4, LEARN] = np.nan
    detector, entities = GpuMemoryExcessDetector(), gpus(6)
    values = np.stack((used, reserved, in_use), axis=2)[:, LEARN:]
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    times = START + STEP * (LEARN + 10 + np.arange(2))  # over five minutes later: classes are updated
    for end in (1, 2):
        window = Window(GPU, entities, times[:end], KEYS, values[:, :end], status[:, :end], timedelta(seconds=STEP))
        now = datetime.fromtimestamp(times[end - 1], tz=UTC)
        before, (state, _) = state, detector.detect(state, window, topology_of(entities), now)
        assert (state.arrays["sum_n"] > 0.9 * before.arrays["sum_n"]).all()


def test_a_signal_absent_for_a_day_leaves_the_class():
    in_use = cache(3, 40)
    state, _ = run_cycles(reserved_memory(in_use), in_use)
    classes, entities = state.arrays["class"].copy(), gpus(3)
    for hours in (20, 30):
        times = START + 3600.0 * hours + STEP * np.arange(5)
        values = np.stack((reserved_memory(in_use), np.full(in_use.shape, np.nan), in_use), axis=2)[:, :5]
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        window = Window(GPU, entities, times, KEYS, values, status, timedelta(seconds=STEP))
        now = datetime.fromtimestamp(times[-1], tz=UTC)
        state, _ = GpuMemoryExcessDetector().detect(state, window, topology_of(entities), now)
        assert (state.arrays["class"] == classes).all() == (hours == 20)


def test_history_of_a_new_process_is_not_learned():
    count = 150
    used, times = np.full((3, count), 72.0 * GB), START + 600.0 * np.arange(count)
    used[1, 60], used[1, 61] = 25.0 * GB, 60.0 * GB  # its engine left, and loads again
    used[2, -1] = 30.0 * GB
    values = np.stack((used, np.full(used.shape, 0.9), np.full(used.shape, 0.5)), axis=2)
    status = np.full(values.shape, CellStatus.PRESENT, np.uint8)
    detector = GpuMemoryExcessDetector()
    window = Window(GPU, gpus(3), times, KEYS, values, status, timedelta(minutes=10))
    state = detector.warm(detector.initial(), window)
    mean = state.arrays["sum_y"] / state.arrays["sum_n"]
    np.testing.assert_allclose(mean[:2], 72.0 * GB, rtol=1e-9)
    assert state.arrays["sum_n"][1] > 0.8 * state.arrays["sum_n"][0], "the rest of the block is learnt"
    assert state.arrays["fresh_at"].tolist() == [-np.inf, times[61], times[-1]]
    assert state.arrays["before"].tolist() == [72.0 * GB, 72.0 * GB, 30.0 * GB]


def test_a_leak_is_reported_without_cache_metrics():
    in_use = np.full((6, 200), np.nan)
    used = reserved_memory(cache(6, 200))
    used[3, FAULT:] += 0.12 * GB * np.arange(100)
    _, results = run_cycles(used, in_use)
    (finding,) = findings_in(results[-1])
    assert finding.evidence[0].text == "findings.memory_above_its_engine"
    assert "percent" not in finding.evidence[0].arguments
