from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_history import NOW, findings_in, history, rhythm, run_cycles, window  # type: ignore[import-not-found]

from detectors import registry
from detectors.anomaly.seasonal import WATCHED, SeasonalDetector
from detectors.base import hysteresis
from outrider.model import CellStatus, EntityKind, NoVerdict, NoVerdictReason, Priority
from outrider.topology import Topology
from outrider.vocabulary import catalog

SIGNALS = ("svc_requests_per_second", "svc_queue_requests")
LEVELS = (100.0, 40.0)


@pytest.fixture(scope="module")
def detector():
    return SeasonalDetector(EntityKind.SERVICE, SIGNALS)


@pytest.fixture(scope="module")
def warmed(detector):
    return detector.warm(detector.initial(), history(detector, LEVELS))


def usual(count=4, cycles=60):
    return rhythm(NOW + 15.0 * np.arange(cycles), count, LEVELS, seed=7)


def test_usual_values_give_no_finding(detector, warmed):
    _, results = run_cycles(detector, warmed, usual(cycles=120))
    assert not any(findings_in(one) for one in results)
    assert all(verdicts == [] for verdicts in results)


def test_a_lasting_deviation_is_reported_within_two_minutes_without_a_fault(detector, warmed):
    values = usual()
    values[1, 20:, 0] *= 2.0
    _, results = run_cycles(detector, warmed, values)
    first = next(number for number, verdicts in enumerate(results) if findings_in(verdicts))
    assert 24 <= first <= 28
    (finding,) = findings_in(results[-1])
    assert finding.entity.name == "service-01"
    assert finding.signals == ("svc_requests_per_second",)
    assert (finding.severity, finding.fault) == (Priority.P3, None)
    assert finding.observed > finding.expected.high
    assert 0.5 < finding.score <= 1.0
    assert finding.fingerprint == findings_in(results[first])[0].fingerprint
    assert finding.window.start <= finding.window.end


def test_a_short_spike_is_not_reported(detector, warmed):
    values = usual()
    values[1, 20:24, 0] *= 3.0
    _, results = run_cycles(detector, warmed, values)
    assert not any(findings_in(one) for one in results)


def test_a_finding_ends_when_values_are_usual_again(detector, warmed):
    values = usual(cycles=80)
    values[1, 20:40, 0] *= 2.0
    _, results = run_cycles(detector, warmed, values)
    assert findings_in(results[40])
    assert not findings_in(results[-1])


def test_a_signal_better_than_usual_is_not_reported(detector, warmed):
    values = usual()
    values[:, 20:, 1] = 0.0
    _, results = run_cycles(detector, warmed, values)
    assert not any(findings_in(one) for one in results), "an empty queue is good news"
    values = usual()
    values[:, 20:, 0] = 0.0
    _, results = run_cycles(detector, warmed, values)
    assert len(findings_in(results[-1])) == 4, "no requests are not"


def test_the_baseline_is_frozen_during_a_deviation(detector, warmed):
    values = usual(cycles=240)
    values[1, :, 0] *= 2.0
    state, results = run_cycles(detector, warmed, values)
    assert findings_in(results[-1])
    level = state.arrays["slot_level"][1, 0].astype(float)
    np.testing.assert_allclose(level, warmed.arrays["slot_level"][1, 0].astype(float), rtol=0.03)


def test_a_new_level_is_learned_after_a_day(detector, warmed):
    times = NOW + 300.0 * np.arange(4 * 288)
    values = rhythm(times, 1, LEVELS, seed=3) * 2.0
    state, results = run_cycles(detector, warmed, values, step=300.0)
    assert findings_in(results[100])
    assert not findings_in(results[-1])
    assert state.arrays["updates"].max() > warmed.arrays["updates"].max()


def test_a_new_entity_warms_up_and_the_others_are_judged(detector, warmed):
    values = usual(count=5)
    values[1, 20:, 0] *= 2.0
    _, results = run_cycles(detector, warmed, values)
    silent = [one for one in results[-1] if isinstance(one, NoVerdict)]
    assert [(one.entity.name, one.reason) for one in silent] == [("service-04", NoVerdictReason.WARMING_UP)]
    assert [one.entity.name for one in findings_in(results[-1])] == ["service-01"]


def test_missing_history_gives_one_no_verdict(detector):
    _, results = run_cycles(detector, detector.initial(), usual(cycles=30))
    assert results[-1] == [NoVerdict(detector.name, None, NoVerdictReason.WARMING_UP)]


def test_a_no_verdict_has_its_reason(detector, warmed):
    empty = window(EntityKind.SERVICE, SIGNALS, np.zeros(0), np.zeros((4, 0, 2)), 15.0)
    _, results = detector.detect(warmed, empty, Topology.build(()), datetime.fromtimestamp(NOW, tz=UTC))
    assert [one.reason for one in results] == [NoVerdictReason.NO_VALUES]
    values = usual(cycles=2)
    values[0] = np.nan
    part = window(EntityKind.SERVICE, SIGNALS, NOW + 15.0 * np.arange(2), values, 15.0)
    part.status[1] = CellStatus.STALE
    _, results = detector.detect(warmed, part, Topology.build(()), datetime.fromtimestamp(NOW + 15, tz=UTC))
    reasons = {one.entity.name: one.reason for one in results}
    assert reasons["service-00"] is NoVerdictReason.NO_VALUES
    assert reasons["service-01"] is NoVerdictReason.UNTRUSTED_VALUES


def test_a_clock_that_stepped_back_is_not_judged(detector, warmed):
    state, _ = run_cycles(detector, warmed, usual(cycles=10))
    part = window(EntityKind.SERVICE, SIGNALS, NOW + 15.0 * np.arange(2), usual(cycles=2), 15.0)
    kept, results = detector.detect(state, part, Topology.build(()), datetime.fromtimestamp(NOW + 15, tz=UTC))
    assert kept is state
    assert [one.reason for one in results] == [NoVerdictReason.CLOCK_STEP]


def test_a_repeated_window_is_learned_once(detector, warmed):
    part = window(EntityKind.SERVICE, SIGNALS, NOW + 15.0 * np.arange(20), usual(cycles=20), 15.0)
    now = datetime.fromtimestamp(NOW + 285, tz=UTC)
    once, _ = detector.detect(warmed, part, Topology.build(()), now)
    twice, _ = detector.detect(once, part, Topology.build(()), now)
    for name, array in once.arrays.items():
        np.testing.assert_array_equal(array, twice.arrays[name])


def test_a_detector_does_not_change_its_input_state(detector, warmed):
    before = {name: array.copy() for name, array in warmed.arrays.items()}
    run_cycles(detector, warmed, usual(cycles=5))
    for name, array in before.items():
        np.testing.assert_array_equal(array, warmed.arrays[name])


def test_the_defaults_are_registered_and_of_the_right_kind():
    for kind, signals in WATCHED.items():
        detector = registry.DETECTORS[f"seasonal-{kind.value}"]()
        assert (detector.kind, detector.signals) == (kind, signals)
        assert all(catalog.signal(name).entity is kind for name in signals)


def test_a_simultaneous_deviation_of_many_entities_is_not_reported():
    deviates = np.zeros((20, 2), dtype=bool)
    deviates[:8, 0] = True  # shared by the fleet
    deviates[:3, 1] = True  # three of twenty: their own
    own = hysteresis.own(deviates)
    assert not own[:, 0].any()
    assert own[:3, 1].all()
    assert hysteresis.own(np.ones((3, 1), dtype=bool)).all(), "three entities are too few to call anything shared"


def test_levels_of_reordered_signals_are_relearned(detector, warmed):
    turned = SeasonalDetector(EntityKind.SERVICE, SIGNALS[::-1])
    values = rhythm(NOW + 15.0 * np.arange(5), 4, LEVELS[::-1], seed=7)
    _, results = run_cycles(turned, warmed, values)
    assert results[0] == [NoVerdict(turned.name, None, NoVerdictReason.WARMING_UP)]
    state, because = turned.restored(warmed)
    assert (state.entities, because) == ((), "it was learned from other signals")
    assert detector.restored(warmed) == (warmed, "")
