from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_history import NOW, findings_in, history, names, rhythm, run_cycles, window  # type: ignore[import-not-found]

from detectors import registry
from detectors.anomaly import feedback_suppression
from detectors.anomaly.multivariate import WATCHED, MultivariateDetector
from detectors.base.protocols import AlertFeedback
from detectors.learning.learning_detector import ALARMS_PER_ENTITY_DAY
from detectors.statistics import ensemble, reservoir
from detectors.statistics.alarm_threshold import HEADROOM
from detectors.statistics.baseline import Baseline
from detectors.statistics.deviation import FREE_READINGS
from detectors.statistics.ensemble import FEWEST_ROWS, REFIT_SECONDS, Ensemble
from detectors.statistics.residuals import KINDS
from outrider.model import DetectorState, EntityKind, EntityRef, NoVerdict, NoVerdictReason, Priority
from outrider.topology import Topology
from outrider.vocabulary import catalog

SIGNALS = ("hw_accel_utilization_ratio", "hw_accel_temperature_celsius", "hw_accel_power_watts")
LEVELS = (0.5, 60.0, 400.0)


@pytest.fixture(scope="module")
def detector():
    return MultivariateDetector(EntityKind.GPU, SIGNALS)


@pytest.fixture(scope="module")
def warmed(detector):
    return detector.warm(detector.initial(), history(detector, LEVELS, days=3, count=6, step=300.0))


def usual(cycles=40, count=6, seed=5, step=60.0):
    return rhythm(NOW + step * np.arange(cycles), count, LEVELS, seed=seed)


def run_minute_cycles(detector, state, values, start=NOW, step=60.0):
    return run_cycles(detector, state, values, start=start, step=step)


@pytest.mark.slow
def test_usual_values_give_no_finding(detector, warmed):
    _, results = run_minute_cycles(detector, warmed, usual(cycles=180))
    assert not any(findings_in(one) for one in results)
    assert results[-1] == []


def test_an_anomalous_combination_is_reported_with_its_signals(detector, warmed):
    values = usual(cycles=60)
    values[2, 16:, 1] *= 1.6
    values[2, 16:, 2] *= 0.4
    _, results = run_minute_cycles(detector, warmed, values)
    (finding,) = findings_in(results[-1])
    assert finding.entity.name == "gpu-02"
    assert set(finding.signals[:2]) == {"hw_accel_temperature_celsius", "hw_accel_power_watts"}
    assert (finding.severity, finding.fault) == (Priority.P3, None)
    assert finding.observed > finding.expected.high
    assert 0.5 <= finding.score <= 1.0
    power = next(item for item in finding.evidence if item.signal == "hw_accel_power_watts")
    assert 100.0 < power.observed < 250.0
    assert min(number for number, verdicts in enumerate(results) if findings_in(verdicts)) <= 20, (
        "the end of its first slot"
    )


def test_an_anomaly_is_reported_every_cycle_and_fades(detector, warmed):
    values = usual(cycles=300)
    values[2, 16:31, 1:] *= 1.8
    _, results = run_minute_cycles(detector, warmed, values)
    reported = [bool(findings_in(verdicts)) for verdicts in results]
    first = reported.index(True)
    last = max(cycle for cycle, firing in enumerate(reported) if firing)
    assert all(reported[first : last + 1])
    assert 30 < last < 200
    since = {findings_in(verdicts)[0].window.start for verdicts in results[first : last + 1]}
    assert since == {datetime.fromtimestamp(NOW + 900.0, tz=UTC)}, "the beginning of its first slot"


def test_one_anomalous_value_in_a_slot_is_not_enough(detector, warmed):
    values = rhythm(NOW + 15.0 * np.arange(120), 6, LEVELS, seed=5)
    values[2, 50, 1:] *= 1.5
    _, results = run_minute_cycles(detector, warmed, values, step=15.0)
    assert not any(findings_in(one) for one in results)


def test_an_anomaly_of_most_entities_is_not_reported(detector, warmed):
    values = usual(cycles=60)
    values[1:5, 15:, 1:] *= 1.8
    _, results = run_minute_cycles(detector, warmed, values)
    assert not any(findings_in(one) for one in results)


@pytest.mark.slow
def test_an_anomaly_of_most_peers_is_not_reported_until_it_ends(detector):
    """Twelve GPUs of three services. The load of one service moves its four GPUs, one of them a slot early."""
    many = detector.warm(detector.initial(), history(detector, LEVELS, days=3, count=12, step=300.0))
    entities = names(EntityKind.GPU, 12)
    services = [EntityRef("lab", EntityKind.SERVICE, "serving", f"service-{n}") for n in range(3)]
    topology = Topology.build([(one, services[place // 4]) for place, one in enumerate(entities)])
    values = usual(cycles=120, count=12)
    values[4, 16:40, 1:] *= 1.8
    values[5:8, 21:40, 1:] *= 1.8
    _, results = run_cycles(detector, many, values, step=60.0, topology=topology)
    reported = [{one.entity.name for one in findings_in(verdicts)} for verdicts in results]
    assert set().union(*reported) <= {"gpu-04"}
    assert not any(reported[26:]), "also while scores fade one by one"
    values = usual(cycles=60, count=12)
    values[4, 16:40, 1:] *= 1.8
    _, results = run_cycles(detector, many, values, step=60.0, topology=topology)
    assert {one.entity.name for one in findings_in(results[-1])} == {"gpu-04"}


@pytest.mark.slow
def test_the_detector_and_the_ensemble_give_equal_scores(detector):
    """The live detector, at one reading a minute, and the ensemble alone give the same results."""
    days = 2
    times = NOW + 60.0 * np.arange(-1440 * days, 0)
    values = rhythm(times, 5, LEVELS, seed=8)
    values[3, 2000:2060] *= 1.5
    state, scores, alarms = detector.initial(), [], []
    for end in range(5, times.size + 1, 5):  # a cycle at the end of every slot; the four before it would add nothing
        part = window(
            EntityKind.GPU, SIGNALS, times[max(0, end - 10) : end] + 60.0, values[:, max(0, end - 10) : end], 60.0
        )
        state, _ = detector.detect(state, part, Topology.build(()), datetime.fromtimestamp(times[end - 1] + 60, tz=UTC))
        scores.append(state.arrays["score"])
        alarms.append(np.isfinite(state.arrays["since"]))
    floors = Baseline(SIGNALS).floors
    alone = Ensemble(len(SIGNALS), ALARMS_PER_ENTITY_DAY / HEADROOM, floors, FREE_READINGS)
    means = values.reshape(5, -1, 5, len(SIGNALS)).mean(axis=2)
    memory, pool, results = alone.empty(5), alone.empty_pool(), []
    for place in range(means.shape[1]):
        at = times[5 * place : 5 * place + 1]
        results.append(alone.evaluate(memory, pool, means[:, place : place + 1], at, 300.0))
    np.testing.assert_allclose(
        np.stack(scores, axis=1), np.nan_to_num(np.concatenate([one.scores for one in results], axis=1)), rtol=1e-4
    )
    np.testing.assert_array_equal(np.stack(alarms, axis=1), np.concatenate([one.alarms for one in results], axis=1))
    assert np.any(alarms)


def test_without_members_there_is_one_no_verdict(detector):
    _, results = run_minute_cycles(detector, detector.initial(), usual(cycles=10))
    assert results[-1] == [NoVerdict(detector.name, None, NoVerdictReason.WARMING_UP)]


def test_a_new_entity_has_no_expectation(detector, warmed):
    _, results = run_minute_cycles(detector, warmed, usual(count=7, cycles=20))
    assert [(one.entity.name, one.reason) for one in results[-1]] == [("gpu-06", NoVerdictReason.NO_EXPECTATION)]


def test_an_entity_without_values_has_no_verdict_and_no_finding(detector, warmed):
    values = usual(cycles=60)
    values[2, 15:, 1:] *= 1.8
    values[2, 40:] = np.nan
    _, results = run_minute_cycles(detector, warmed, values)
    assert findings_in(results[39])
    assert [(one.entity.name, one.reason) for one in results[-1]] == [("gpu-02", NoVerdictReason.NO_VALUES)]


def test_coarse_history_teaches_only_the_daily_profile(detector):
    state = detector.warm(detector.initial(), history(detector, LEVELS, days=5, count=6, step=600.0))
    assert (state.arrays["slot_seconds"] > 0).all()
    assert state.arrays["reservoir"].shape[0] == 0
    assert not state.arrays["updates"].any()
    times = np.arange(NOW, NOW + 2 * 86400.0, 300.0)
    fine = window(EntityKind.GPU, SIGNALS, times, rhythm(times, 6, LEVELS, seed=2), 300.0)
    state = detector.warm(state, fine)
    assert state.arrays["fitted"].shape[0] >= FEWEST_ROWS
    assert np.isfinite(state.arrays["limit"]).all()
    assert state.arrays["steady"].min() > 0


def test_scores_are_the_same_after_a_restart(detector, warmed):
    state, _ = run_minute_cycles(detector, warmed, usual(cycles=10))
    more = usual(cycles=20, seed=9)
    one, _ = run_minute_cycles(detector, state, more, start=NOW + 600)
    ensemble._voters.cache_clear()
    copied = DetectorState(state.version, state.entities, {name: array.copy() for name, array in state.arrays.items()})
    other, _ = run_minute_cycles(MultivariateDetector(EntityKind.GPU, SIGNALS), copied, more, start=NOW + 600)
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])


def test_the_members_are_refitted_every_week(detector, warmed):
    first, _ = run_minute_cycles(detector, warmed, usual(cycles=10))
    soon, _ = run_minute_cycles(detector, first, usual(cycles=10), start=NOW + 6000)
    assert soon.arrays["fitted_at"] == first.arrays["fitted_at"]
    later, _ = run_minute_cycles(detector, soon, usual(cycles=10), start=NOW + REFIT_SECONDS + 60)
    assert later.arrays["fitted_at"] > first.arrays["fitted_at"]
    assert detector.restored(later) == (later, "")


def test_the_reservoir_is_bounded_and_keeps_old_rows(monkeypatch):
    monkeypatch.setattr(reservoir, "ROWS", 600)
    detector = MultivariateDetector(EntityKind.GPU, SIGNALS)
    state = detector.warm(detector.initial(), history(detector, LEVELS, days=1, count=6, step=300.0))
    before = {row.tobytes() for row in state.arrays["reservoir"]}
    assert state.arrays["reservoir"].shape == (600, len(KINDS) * 3)
    state, _ = run_minute_cycles(detector, state, usual(cycles=120))
    assert state.arrays["reservoir"].shape == (600, len(KINDS) * 3)
    kept = sum(row.tobytes() in before for row in state.arrays["reservoir"])
    assert kept > 300, "two hours do not wash out a day"


def test_alarms_are_counted_against_the_budget_and_the_limit_has_no_second_factor(detector, warmed):
    values = usual(cycles=60)
    values[2, 15:, 1:] *= 1.8
    before = warmed.arrays["entity_days"][0]
    state, _ = run_minute_cycles(detector, warmed, values)
    assert state.arrays["alarms"][0] == pytest.approx(1.0, rel=0.01)
    assert state.arrays["entity_days"][0] - before == pytest.approx(6 * 12 * 300.0 / 86400.0, rel=0.1)
    rate = detector.alarm_rate(state)
    assert (rate.budget, rate.factor) == (ALARMS_PER_ENTITY_DAY, 1.0)


def test_a_detector_does_not_change_its_input_state(detector, warmed):
    before = {name: array.copy() for name, array in warmed.arrays.items()}
    run_minute_cycles(detector, warmed, usual(cycles=8))
    for name, array in before.items():
        np.testing.assert_array_equal(array, warmed.arrays[name])


def test_unusual_input_never_raises(detector, warmed):
    now = datetime.fromtimestamp(NOW + 600, tz=UTC)
    for values in (np.full((6, 3, 3), np.nan), np.full((6, 3, 3), np.inf), np.zeros((0, 3, 3)), np.zeros((6, 0, 3))):
        part = window(EntityKind.GPU, SIGNALS, NOW + 15.0 * np.arange(values.shape[1]), values, 15.0)
        state, _ = detector.detect(warmed, part, Topology.build(()), now)
        assert np.isfinite(state.arrays["level"]).all()


def test_a_clock_that_stepped_back_is_not_judged(detector, warmed):
    state, _ = run_minute_cycles(detector, warmed, usual(cycles=10))
    part = window(EntityKind.GPU, SIGNALS, NOW + 15.0 * np.arange(2), usual(cycles=2), 15.0)
    kept, results = detector.detect(state, part, Topology.build(()), datetime.fromtimestamp(NOW + 15, tz=UTC))
    assert kept is state
    assert [one.reason for one in results] == [NoVerdictReason.CLOCK_STEP]


def test_the_defaults_are_registered_and_of_the_right_kind():
    for kind, signals in WATCHED.items():
        detector = registry.DETECTORS[f"isolation-{kind.value}"]()
        assert (detector.kind, detector.signals) == (kind, signals)
        assert all(catalog.signal(name).entity is kind for name in signals)


def test_rows_of_reordered_signals_are_relearned(detector, warmed):
    turned = MultivariateDetector(EntityKind.GPU, SIGNALS[::-1])
    _, results = run_minute_cycles(turned, warmed, rhythm(NOW + 60.0 * np.arange(5), 6, LEVELS[::-1], seed=5))
    assert results[0] == [NoVerdict(turned.name, None, NoVerdictReason.WARMING_UP)]
    assert turned.restored(warmed)[0].entities == ()
    assert detector.restored(warmed) == (warmed, "")


def test_a_model_stores_its_library_and_the_digest_of_its_rows(detector, warmed):
    state, _ = run_minute_cycles(detector, warmed, usual(cycles=10))
    assert detector.restored(state) == (state, "")
    rows = state.arrays["fitted"].copy()
    rows[0, 0] += 1.0
    damaged = DetectorState(state.version, state.entities, {**state.arrays, "fitted": rows})
    left, because = detector.restored(damaged)
    assert "does not match its rows" in because
    assert left.arrays["fitted"].shape[0] == left.arrays["reservoir"].shape[0] == 0
    _, results = run_minute_cycles(detector, left, usual(cycles=10), start=NOW + 600)
    assert results[-1] == [NoVerdict(detector.name, None, NoVerdictReason.WARMING_UP)]


def test_a_model_of_another_library_is_refitted_from_its_rows(detector, warmed):
    state, _ = run_minute_cycles(detector, warmed, usual(cycles=10))
    other = DetectorState(state.version, state.entities, {**state.arrays, "library": np.array(["scikit-learn 0.1"])})
    left, because = detector.restored(other)
    assert "another library" in because
    assert left.arrays["fitted"].shape[0] == 0
    np.testing.assert_array_equal(left.arrays["reservoir"], state.arrays["reservoir"])
    after, _ = run_minute_cycles(detector, left, usual(cycles=10), start=NOW + 600)
    assert after.arrays["library"].tolist() == state.arrays["library"].tolist()
    assert after.arrays["fitted"].shape[0] >= FEWEST_ROWS


def anomalous_hour(detector, state, hour, row=2, first=1):
    """Runs an hour with an anomaly in minutes 31 to 45. Returns the state and the findings since minute 30."""
    start = NOW + 3600.0 * hour
    values = rhythm(start + 60.0 * np.arange(60), 6, LEVELS, seed=40 + hour)
    values[row, 31:46, first:] *= 1.8
    state, results = run_minute_cycles(detector, state, values, start=start)
    return state, [one for verdicts in results[30:] for one in findings_in(verdicts)]


def quiet_hours(detector, state, first, last):
    """Runs the hours ``first`` to ``last`` without an anomaly."""
    times = NOW + 3600.0 * first + 60.0 * np.arange(60 * (last - first))
    return run_minute_cycles(detector, state, rhythm(times, 6, LEVELS, seed=first), start=times[0])[0]


def feedback(row, hour, *, useful):
    start = datetime.fromtimestamp(NOW + 3600.0 * hour + 1800.0, tz=UTC)
    return AlertFeedback(names(EntityKind.GPU, 6)[row], start, start + timedelta(hours=2), useful)


@pytest.fixture(scope="module")
def after_anomaly(detector, warmed):
    state, findings = anomalous_hour(detector, warmed, 0)
    assert findings
    return quiet_hours(detector, state, 1, 8)


def test_an_anomaly_rated_not_useful_is_not_reported_again(detector, after_anomaly):
    unchanged, findings = anomalous_hour(detector, after_anomaly, 8)
    assert findings, "without feedback it is reported each time"
    taught = detector.teach(after_anomaly, [feedback(2, 0, useful=False)])
    assert taught.arrays["aside_fine"].any()
    state, findings = anomalous_hour(detector, taught, 8)
    assert not findings
    assert state.arrays["seen"] > unchanged.arrays["seen"], "it is in the reference now"


@pytest.mark.parametrize(("row", "first"), [(4, 1), (2, 0)], ids=["another entity", "another pattern"])
def test_feedback_applies_only_to_its_entity_and_pattern(detector, after_anomaly, row, first):
    taught = detector.teach(after_anomaly, [feedback(2, 0, useful=False)])
    _, findings = anomalous_hour(detector, taught, 8, row=row, first=first)
    assert {one.entity for one in findings} == {names(EntityKind.GPU, 6)[row]}


@pytest.mark.parametrize("later", [[feedback(2, 0, useful=False), feedback(2, 0, useful=True)], []])
def test_later_useful_feedback_revokes_the_suppression(detector, after_anomaly, later):
    taught = detector.teach(after_anomaly, [feedback(2, 0, useful=False)])
    back = detector.teach(taught, later)
    assert not back.arrays["aside_fine"].any()
    assert anomalous_hour(detector, back, 8)[1]


def test_feedback_ends_a_held_finding(detector, warmed):
    state, findings = anomalous_hour(detector, warmed, 0)
    assert findings
    _, results = run_minute_cycles(detector, state, usual(cycles=15), start=NOW + 3600.0)
    assert findings_in(results[-1])
    _, results = run_minute_cycles(
        detector, detector.teach(state, [feedback(2, 0, useful=False)]), usual(cycles=15), start=NOW + 3600.0
    )
    assert not findings_in(results[-1])


def test_suppressed_rows_are_bounded_and_expire_after_a_month(monkeypatch):
    monkeypatch.setattr(feedback_suppression, "MOST_ROWS", 5)
    pool, entities = feedback_suppression.empty(2), names(EntityKind.GPU, 3)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    for day in range(4):
        feedback_suppression.put_aside(pool, rows, entities, np.array([True, False, True]), 86400.0 * day)
        if day == 0:
            pool["aside_fine"][0] = True
    assert pool["aside_at"].tolist() == [0.0, 86400.0 * 2, 86400.0 * 2, 86400.0 * 3, 86400.0 * 3]
    assert pool["aside_fine"].tolist() == [True, False, False, False, False], "those judged stay longest"
    feedback_suppression.put_aside(pool, rows, entities, np.zeros(3, dtype=bool), 86400.0 * 32.5)
    assert pool["aside_at"].tolist() == [86400.0 * 3, 86400.0 * 3]
    assert set(feedback_suppression.held({**pool, "aside_at": np.zeros(1)}, 2)["aside"].shape) == {0, 2}, (
        "damaged: none"
    )


def test_a_pattern_is_excused_within_size_and_angle_limits():
    pool, entities = feedback_suppression.empty(2), names(EntityKind.GPU, 3)
    feedback_suppression.put_aside(
        pool, np.array([[3.0, 4.0]] * 3, dtype=np.float32), entities, np.array([False, True, False]), 0.0
    )
    pool["aside_fine"][:] = True

    def excused(*row):
        return feedback_suppression.excused(pool, np.array([row] * 3, dtype=np.float32), entities).tolist()

    assert excused(3.6, 4.8) == [False, True, False]
    assert excused(0.3, 0.4) == [False, True, False], "less of it"
    assert excused(4.0, 3.0) == [False, True, False]
    assert not any(excused(3.9, 5.2)), "larger"
    assert not any(excused(-3.0, -4.0)), "the other way"
    assert not any(excused(5.0, 0.0)), "another signal"
    assert not any(excused(np.nan, np.nan))
    assert feedback_suppression.excused(pool, np.zeros((1, 2), dtype=np.float32), entities[2:]).tolist() == [False], (
        "it is gone"
    )
