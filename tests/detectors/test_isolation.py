from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fleet_history import NOW, found, history, live, rhythm, window  # type: ignore[import-not-found]

from detectors import isolation, registry, reservoir
from detectors.isolation import FEWEST_ROWS, WATCHED, IsolationDetector
from outrider import catalog
from outrider.model import DetectorState, EntityKind, NoVerdict, NoVerdictReason, Priority
from outrider.topology import Topology

SIGNALS = ("hw_accel_utilization_ratio", "hw_accel_temperature_celsius", "hw_accel_power_watts")
LEVELS = (0.5, 60.0, 400.0)


@pytest.fixture(scope="module")
def detector():
    return IsolationDetector(EntityKind.GPU, SIGNALS)


@pytest.fixture(scope="module")
def warmed(detector):
    return detector.warm(detector.initial(), history(detector, LEVELS, days=3, count=6, step=600.0))


def usual(cycles=40, count=6, seed=5):
    return rhythm(NOW + 15.0 * np.arange(cycles), count, LEVELS, seed=seed)


def test_usual_values_give_no_finding(detector, warmed):
    _, said = live(detector, warmed, usual(cycles=80))
    assert not any(found(one) for one in said)
    assert said[-1] == []


def test_an_odd_combination_is_found_and_names_its_signals(detector, warmed):
    values = usual()
    values[2, 15:, 1] *= 1.6
    values[2, 15:, 2] *= 0.4
    _, said = live(detector, warmed, values)
    (one,) = found(said[-1])
    assert one.entity.name == "gpu-02"
    assert set(one.signals[:2]) == {"hw_accel_temperature_celsius", "hw_accel_power_watts"}
    assert (one.severity, one.fault) == (Priority.P3, None)
    assert one.observed > one.expected.high
    assert 0.5 <= one.score <= 1.0
    assert min(number for number, verdicts in enumerate(said) if found(verdicts)) <= 25


def test_a_finding_ends(detector, warmed):
    values = usual(cycles=80)
    values[2, 15:30, 1:] *= 1.8
    _, said = live(detector, warmed, values)
    assert found(said[28])
    assert not found(said[-1])


def test_one_odd_reading_is_not_enough(detector, warmed):
    values = usual()
    values[2, 20:22, 1:] *= 2.0
    _, said = live(detector, warmed, values)
    assert not any(found(one) for one in said)


def test_without_a_forest_it_says_so(detector):
    _, said = live(detector, detector.initial(), usual(cycles=10))
    assert said[-1] == [NoVerdict(detector.name, None, NoVerdictReason.WARMING_UP)]


def test_a_new_entity_has_no_expectation(detector, warmed):
    _, said = live(detector, warmed, usual(count=7, cycles=20))
    assert [(one.entity.name, one.reason) for one in said[-1]] == [("gpu-06", NoVerdictReason.NO_EXPECTATION)]


def test_scores_are_the_same_after_a_restart(detector, warmed):
    state, _ = live(detector, warmed, usual(cycles=10))
    more = usual(cycles=5, seed=9)
    one, _ = live(detector, state, more, start=NOW + 150)
    isolation._forest.cache_clear()
    copied = DetectorState(state.version, state.entities, {name: array.copy() for name, array in state.arrays.items()})
    other, _ = live(IsolationDetector(EntityKind.GPU, SIGNALS), copied, more, start=NOW + 150)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])


def test_the_forest_is_fitted_again_every_six_hours(detector, warmed):
    first, _ = live(detector, warmed, usual(cycles=2))
    soon, _ = live(detector, first, usual(cycles=2), start=NOW + 600)
    assert soon.arrays["fitted_at"] == first.arrays["fitted_at"]
    later, _ = live(detector, soon, usual(cycles=2), start=NOW + 6 * 3600 + 60)
    assert later.arrays["fitted_at"] > first.arrays["fitted_at"]
    assert later.arrays["fitted"].shape[0] >= FEWEST_ROWS


def test_the_reservoir_is_bounded_and_keeps_old_rows(monkeypatch):
    monkeypatch.setattr(reservoir, "ROWS", 600)
    detector = IsolationDetector(EntityKind.GPU, SIGNALS)
    state = detector.warm(detector.initial(), history(detector, LEVELS, days=1, count=6, step=300.0))
    before = {row.tobytes() for row in state.arrays["reservoir"]}
    assert state.arrays["reservoir"].shape == (600, 9)
    state, _ = live(detector, state, usual(cycles=120))
    assert state.arrays["reservoir"].shape == (600, 9)
    kept = sum(row.tobytes() in before for row in state.arrays["reservoir"])
    assert kept > 300, "half an hour does not wash out a day"


def test_it_leaves_the_state_it_was_given_alone(detector, warmed):
    before = {name: array.copy() for name, array in warmed.arrays.items()}
    live(detector, warmed, usual(cycles=3))
    for name, array in before.items():
        np.testing.assert_array_equal(array, warmed.arrays[name])


def test_odd_input_never_raises(detector, warmed):
    now = datetime.fromtimestamp(NOW + 600, tz=UTC)
    for values in (np.full((6, 3, 3), np.nan), np.full((6, 3, 3), np.inf), np.zeros((0, 3, 3)), np.zeros((6, 0, 3))):
        part = window(EntityKind.GPU, SIGNALS, NOW + 15.0 * np.arange(values.shape[1]), values, 15.0)
        state, _ = detector.detect(warmed, part, Topology.build(()), now)
        assert np.isfinite(state.arrays["level"]).all()


def test_a_clock_that_stepped_back_is_not_judged(detector, warmed):
    state, _ = live(detector, warmed, usual(cycles=10))
    part = window(EntityKind.GPU, SIGNALS, NOW + 15.0 * np.arange(2), usual(cycles=2), 15.0)
    kept, said = detector.detect(state, part, Topology.build(()), datetime.fromtimestamp(NOW + 15, tz=UTC))
    assert kept is state
    assert [one.reason for one in said] == [NoVerdictReason.CLOCK_STEP]


def test_the_defaults_are_registered_and_of_the_right_kind():
    for kind, signals in WATCHED.items():
        detector = registry.DETECTORS[f"isolation-{kind.value}"]()
        assert (detector.kind, detector.signals) == (kind, signals)
        assert all(catalog.signal(name).entity is kind for name in signals)


def test_rows_of_signals_in_another_order_are_learnt_anew(detector, warmed):
    turned = IsolationDetector(EntityKind.GPU, SIGNALS[::-1])
    _, said = live(turned, warmed, rhythm(NOW + 15.0 * np.arange(5), 6, LEVELS[::-1], seed=5))
    assert said[0] == [NoVerdict(turned.name, None, NoVerdictReason.WARMING_UP)]
    assert turned.restored(warmed)[0].entities == ()
    assert detector.restored(warmed) == (warmed, "")


def test_a_model_bears_its_library_and_the_digest_of_its_rows(detector, warmed):
    state, _ = live(detector, warmed, usual(cycles=2))
    assert detector.restored(state) == (state, "")
    rows = state.arrays["fitted"].copy()
    rows[0, 0] += 1.0
    damaged = DetectorState(state.version, state.entities, {**state.arrays, "fitted": rows})
    left, because = detector.restored(damaged)
    assert "not of the rows" in because
    assert left.arrays["fitted"].shape[0] == left.arrays["reservoir"].shape[0] == 0
    _, said = live(detector, left, usual(cycles=2), start=NOW + 60)
    assert said[-1] == [NoVerdict(detector.name, None, NoVerdictReason.WARMING_UP)]


def test_a_model_of_another_library_is_fitted_anew_from_the_same_rows(detector, warmed):
    state, _ = live(detector, warmed, usual(cycles=2))
    other = DetectorState(state.version, state.entities, {**state.arrays, "library": np.array(["scikit-learn 0.1"])})
    left, because = detector.restored(other)
    assert "another library" in because
    assert left.arrays["fitted"].shape[0] == 0
    np.testing.assert_array_equal(left.arrays["reservoir"], state.arrays["reservoir"])
    after, _ = live(detector, left, usual(cycles=1), start=NOW + 60)
    assert after.arrays["library"].tolist() == state.arrays["library"].tolist()
    assert after.arrays["fitted"].shape[0] >= FEWEST_ROWS
