"""Single metrics against their own history."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_history import DAY, NOW, findings_in, history, names, rhythm, run_cycles  # type: ignore[import-not-found]

from detectors import registry
from detectors.anomaly import robust_z
from detectors.anomaly.robust_z import RobustZDetector
from detectors.statistics.alarm_threshold import BLOCK_SECONDS
from detectors.statistics.residuals import Residuals
from outrider.clock import from_unix as utc
from outrider.model import DetectorState, EntityKind, EntityRef, NoVerdict, NoVerdictReason, Priority
from outrider.topology import Topology
from service.engine.detector_memory import Detection
from store.memory import MemoryStateStore

KIND = EntityKind.CONTAINER
WATCHED, LOAD = ("container_memory_working_set_bytes", "container_memory_limit_ratio"), "container_cpu_usage_cores"
LEVELS = (6e10, 0.5, 8.0)
BEATS, FAULT = 24, 12  # of five minutes


@pytest.fixture(scope="module")
def detector():
    return RobustZDetector(KIND, WATCHED, LOAD)


@pytest.fixture(scope="module")
def warmed(detector):
    return detector.warm(detector.initial(), history(detector, LEVELS, count=6))


def usual(beats=BEATS, seed=7):
    return rhythm(NOW + 60.0 * np.arange(5 * beats), 6, LEVELS, seed=seed)


def odd(row=1, signal=0, by=1.5, until=BEATS):
    values = usual()
    values[row, 5 * FAULT : 5 * until, signal] *= by
    return values


def test_usual_values_have_no_finding(detector, warmed):
    _, results = run_cycles(detector, warmed, usual(60), step=60.0)
    assert not [one for verdicts in results for one in findings_in(verdicts)]
    assert results[-1] == []


def test_a_large_deviation_is_reported_after_one_reading_and_does_not_page(detector, warmed):
    _, results = run_cycles(detector, warmed, odd(), step=60.0)
    first = next(number for number, verdicts in enumerate(results) if findings_in(verdicts))
    assert 5 * FAULT < first <= 5 * FAULT + 10
    (finding,) = findings_in(results[first])
    assert (finding.entity.name, finding.signals) == ("container-01", WATCHED[:1])
    assert (finding.severity, finding.fault) == (Priority.P3, None)
    assert finding.observed > finding.expected.high
    assert findings_in(results[-1])[0].fingerprint == finding.fingerprint


def test_a_deviation_to_the_good_side_is_not_reported(detector, warmed):
    _, results = run_cycles(detector, warmed, odd(signal=1, by=0.5), step=60.0)
    assert not [one for verdicts in results for one in findings_in(verdicts)]


def test_a_finding_ends_with_the_deviation(detector, warmed):
    _, results = run_cycles(detector, warmed, odd(until=FAULT + 4), step=60.0)
    assert any(findings_in(verdicts) for verdicts in results)
    assert not findings_in(results[-1])


def test_a_deviation_explained_by_the_load_is_not_reported(detector, warmed):
    values = odd()
    values[1, 5 * FAULT :, 2] *= 1.5
    _, results = run_cycles(detector, warmed, values, step=60.0)
    assert not [one for verdicts in results for one in findings_in(verdicts)]


def test_a_deviation_of_most_peers_is_not_reported(detector, warmed):
    service = EntityRef("lab", EntityKind.SERVICE, None, "chat")
    topology = Topology.build([(entity, service) for entity in names(KIND, 6)])
    values = usual()
    values[:4, 5 * FAULT :, 0] *= 1.5
    _, results = run_cycles(detector, warmed, values, step=60.0, topology=topology)
    assert not [one for verdicts in results for one in findings_in(verdicts)]


def test_the_limit_follows_the_history_of_the_entity(detector):
    """An entity with a deviation each hour gets a higher limit than its peers."""
    past = history(detector, LEVELS, days=8.0, count=6)
    wild = past.values.copy()
    column = past.keys.index(detector.keys[0])
    wild[1, (past.times // 300.0) % 12 == 3, column] *= 1.5
    learnt = detector.warm(detector.initial(), type(past)(**{
        name: getattr(past, name) for name in ("kind", "entities", "times", "keys", "status", "step")
    }, values=wild))  # fmt: skip
    assert learnt.arrays["limit"][1, 0] > 1.5 * learnt.arrays["limit"][2, 0]


def test_a_larger_budget_lowers_the_limit():
    limits = []
    for budget in (0.05, 2.0):
        detector = RobustZDetector(KIND, WATCHED, LOAD)
        detector.set_budget(budget)
        state = detector.warm(detector.initial(), history(detector, LEVELS, count=6))
        limits.append(state.arrays["limit"])
        assert detector.alarm_rate(state).budget == budget
    assert np.all(limits[1] < limits[0])


def test_deviations_equal_those_of_the_first_ensemble_member(detector):
    """Both compute equal deviations for each reading if the weekly profile adds nothing."""
    times = NOW + 300.0 * np.arange(400)
    values = rhythm(times, 3, LEVELS)
    ensemble, memory = Residuals(3, detector._baseline.floors), None
    memory, own = ensemble.empty(3), detector._deviations.empty(3)
    for place, at in enumerate(times):
        reading, known = values[:, place], np.ones((3, 3), dtype=bool)
        rows = ensemble.step(memory, reading, float(at), 300.0)[:, :3]
        z, _ = detector._deviations.measure(own, reading, known, float(at), 300.0)
        detector._baseline.learn(own, reading, float(at), 300.0)
        assert rows == pytest.approx(z, abs=1e-5)


def test_there_is_no_verdict_without_a_limit(detector):
    _, results = run_cycles(detector, detector.initial(), odd(), step=60.0)
    assert results[-1] == [NoVerdict(detector.name, None, NoVerdictReason.WARMING_UP)]


def test_a_deviation_of_a_day_is_the_new_baseline(detector, warmed):
    values = rhythm(NOW + 300.0 * np.arange(3 * 288), 6, LEVELS, seed=3)
    values[1, 20:, 0] *= 1.5
    _, results = run_cycles(detector, warmed, values, step=300.0)
    assert findings_in(results[100])
    assert not findings_in(results[-1])
    assert DAY == robust_z.HELD_SECONDS


def test_a_missing_metric_keeps_its_deviation_and_is_not_reported(detector, warmed):
    values = odd()
    values[1, 5 * FAULT + 20 : 5 * FAULT + 40, 0] = np.nan
    _, results = run_cycles(detector, warmed, values, step=60.0)
    assert findings_in(results[5 * FAULT + 15])
    assert not findings_in(results[5 * FAULT + 35])
    assert findings_in(results[-1])


def test_a_checkpoint_keeps_the_findings(detector, warmed):
    values = odd()
    state, _ = run_cycles(detector, warmed, values[:, :70], step=60.0)
    kept = DetectorState(state.version, state.entities, {name: one.copy() for name, one in state.arrays.items()})
    rest = values[:, 70:]
    one = run_cycles(detector, state, rest, start=NOW + 60.0 * 70, step=60.0)
    other = run_cycles(detector, kept, rest, start=NOW + 60.0 * 70, step=60.0)
    assert one[1] == other[1]


def test_a_checkpoint_of_an_old_version_is_dropped_with_the_reason(detector, warmed):
    """Version 1 computed limits from ten-minute means. They are too low and recover only after five days."""
    store = MemoryStateStore()
    store.save_detector_states({detector.name: DetectorState(1, warmed.entities, warmed.arrays)}, utc(NOW))
    detection = Detection([detector], timedelta(seconds=15))
    with capture_logs() as logs:
        detection.restore(store)
    (entry,) = logs
    assert (entry["event"], entry["detector"]) == ("detector_state_dropped", detector.name)
    assert entry["because"] == "it has version 1, this program has 2"
    store.save_detector_states({detector.name: warmed}, utc(NOW))
    with capture_logs() as logs:
        detection.restore(store)
    assert logs == []


def test_coarse_means_teach_the_daily_profile_and_no_limit(detector):
    """Means scatter less than readings, so limits from them would report the first quiet hour."""
    past = history(detector, LEVELS, days=8.0, count=6, step=600.0)
    calm = past.values[:1].mean(axis=0) + 0.1 * (past.values - past.values[:1].mean(axis=0))
    state = detector.warm(detector.initial(), replace(past, values=calm))
    assert np.isinf(state.arrays["limit"]).all()
    assert not state.arrays["steady"].any()
    level = detector._baseline.usual(dict(state.arrays), NOW + 6 * 3600.0).level
    assert level == pytest.approx(np.tile(rhythm(np.array([NOW + 6 * 3600.0]), 1, LEVELS)[0], (6, 1)), rel=0.1)
    _, results = run_cycles(detector, state, rhythm(NOW + 300.0 * np.arange(288), 6, LEVELS, seed=7), step=300.0)
    assert not [one for verdicts in results for one in findings_in(verdicts)]
    assert NoVerdict(detector.name, None, NoVerdictReason.WARMING_UP) in results[20]
    assert results[-1] == [], "a day later it knows its own limits"


def test_limits_use_only_the_days_with_fine_readings(detector):
    """A service starts with months of ten-minute means, then days of five-minute readings."""
    assert detector.warm_step.total_seconds() == detector.beat_seconds
    coarse = history(detector, LEVELS, days=12.0, count=6, step=600.0)
    before = coarse.times < NOW - 2 * DAY
    old = replace(coarse, times=coarse.times[before], values=coarse.values[:, before], status=coarse.status[:, before])
    state = detector.warm(detector.warm(detector.initial(), old), history(detector, LEVELS, days=2.0, count=6))
    peaks = np.isfinite(state.arrays["peaks"]).sum(axis=2)
    assert peaks.max() <= 2 * DAY / BLOCK_SECONDS
    assert np.isfinite(state.arrays["limit"]).all()


def test_a_finding_uses_the_scale_before_its_reading(detector):
    """A reading widens its own scale, most of all an early one. Its score uses the scale before it."""
    state = detector.warm(detector.initial(), history(detector, LEVELS, days=0.4, count=6))
    reported = 0
    for by in np.linspace(1.0, 2.0, 200):
        memory = {name: one.copy() for name, one in state.arrays.items()}
        reading = rhythm(np.array([NOW]), 6, LEVELS)[:, 0] * np.array([by, 1.0, 1.0])
        _, beyond = detector._judge(memory, reading, NOW, 300.0)
        scales = (memory["value"] - memory["usual"]) / memory["scale_now"]
        assert np.all(scales[beyond] > np.maximum(memory["limit"], robust_z.LEAST)[beyond])
        reported += int(beyond.sum())
    assert reported


def test_it_is_registered_for_classes_without_an_ensemble():
    mine = {name.removeprefix("robust-z-") for name in registry.DETECTORS if name.startswith("robust-z-")}
    assert mine == {kind.value for kind in robust_z.WATCHED}
    ensembles = {name.removeprefix("isolation-") for name in registry.DETECTORS if name.startswith("isolation-")}
    assert not mine & ensembles
