from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_history import NOW, findings_in, history, names, rhythm, run_cycles, window  # type: ignore[import-not-found]

from detectors import registry
from detectors.anomaly import level_shift
from detectors.anomaly.level_shift import LevelShiftDetector
from outrider.model import EntityKind, Event, EventKind, NoVerdict, NoVerdictReason, Priority
from outrider.topology import Topology
from outrider.vocabulary import catalog

WATCHED, LOAD = ("hw_accel_memory_used_bytes", "hw_accel_core_clock_hertz"), "hw_accel_utilization_ratio"
LEVELS = (6e10, 1.5e9, 0.5)
MINUTES = 90
SHIFT = 45


@pytest.fixture(scope="module")
def detector():
    return LevelShiftDetector(EntityKind.GPU, WATCHED, LOAD)


@pytest.fixture(scope="module")
def warmed(detector):
    return detector.warm(detector.initial(), history(detector, LEVELS, count=6))


def usual(minutes=MINUTES, seed=7):
    return rhythm(NOW + 60.0 * np.arange(minutes), 6, LEVELS, seed=seed)


def shifted(row=1, signal=0, by=1.3, start=SHIFT, minutes=MINUTES):
    values = usual(minutes)
    values[row, start:, signal] *= by
    return values


def test_usual_values_give_no_shift(detector, warmed):
    _, results = run_cycles(detector, warmed, usual(400), step=60.0)
    assert all(verdicts == [] for verdicts in results[7:])
    assert results[0] == [NoVerdict(detector.name, None, NoVerdictReason.WARMING_UP)]


def test_a_shift_is_reported_within_its_window_with_its_start(detector, warmed):
    _, results = run_cycles(detector, warmed, shifted(), step=60.0)
    first = next(number for number, verdicts in enumerate(results) if findings_in(verdicts))
    assert SHIFT + 6 <= first <= SHIFT + 11
    (finding,) = findings_in(results[first])
    assert finding.entity.name == "gpu-01"
    assert (finding.severity, finding.fault) == (Priority.P3, None)
    assert abs(finding.window.start.timestamp() - (NOW + 60.0 * SHIFT)) <= 120.0
    assert finding.observed > finding.expected.high
    arguments = finding.evidence[0].arguments
    assert float(arguments["after"]) == pytest.approx(1.3 * float(arguments["before"]), rel=0.05)
    assert findings_in(results[-1])[0].fingerprint == finding.fingerprint


def test_cycles_between_two_beats_repeat_the_finding(detector, warmed):
    values = np.repeat(shifted(), 4, axis=1)
    _, results = run_cycles(detector, warmed, values, step=15.0)
    assert {len(findings_in(verdicts)) for verdicts in results[4 * (SHIFT + 11) :]} == {1}
    assert abs(findings_in(results[-1])[0].window.start.timestamp() - (NOW + 60.0 * SHIFT)) <= 120.0


def test_spikes_ramps_and_flapping_values_are_not_shifts(detector, warmed):
    spike = usual()
    spike[1, 40:44, 0] *= 3.0
    ramp = usual()
    ramp[1, 20:, 0] *= 1.0 + 0.006 * np.arange(MINUTES - 20)
    flapping = usual()
    flapping[1, 30::2, 0] *= 1.6
    for values in (spike, ramp, flapping):
        _, results = run_cycles(detector, warmed, values, step=60.0)
        assert not any(findings_in(verdicts) for verdicts in results)


def test_a_shift_to_the_good_side_is_not_reported(detector, warmed):
    _, results = run_cycles(detector, warmed, shifted(signal=1, by=1.3), step=60.0)
    assert not any(findings_in(verdicts) for verdicts in results), "a faster clock"
    _, results = run_cycles(detector, warmed, shifted(signal=1, by=0.7), step=60.0)
    assert findings_in(results[-1])


def test_a_shift_explained_by_the_load_is_not_reported(detector, warmed):
    values = shifted()
    values[1, SHIFT:, 2] *= 1.5
    _, results = run_cycles(detector, warmed, values, step=60.0)
    assert not any(findings_in(verdicts) for verdicts in results)
    values = shifted()
    values[1, SHIFT:, 2] *= 0.5
    _, results = run_cycles(detector, warmed, values, step=60.0)
    assert findings_in(results[-1]), "less load does not take more memory"


def test_a_shift_of_many_entities_is_not_reported(detector, warmed):
    values = usual()
    values[:4, SHIFT:, 0] *= 1.3
    _, results = run_cycles(detector, warmed, values, step=60.0)
    assert not any(findings_in(verdicts) for verdicts in results)


def test_a_shift_of_most_peers_is_not_reported_in_a_large_class(detector):
    two = LevelShiftDetector(EntityKind.REPLICA, ("engine_kv_cache_usage_ratio",), "engine_requests_running")
    levels = (0.3, 20.0)
    state = two.warm(two.initial(), history(two, levels, count=40))
    replicas = names(EntityKind.REPLICA, 40)
    services = names(EntityKind.SERVICE, 8)
    topology = Topology.build([(one, services[row // 5]) for row, one in enumerate(replicas)])
    values = rhythm(NOW + 60.0 * np.arange(MINUTES), 40, levels, seed=3)
    values[:3, SHIFT:, 0] *= 1.5
    values[7, SHIFT:, 0] *= 1.5
    _, results = run_cycles(two, state, values, step=60.0, topology=topology)
    assert {one.entity.name for one in findings_in(results[-1])} == {"replica-07"}


def test_the_return_to_the_old_level_ends_the_shift(detector, warmed):
    values = shifted(minutes=200)
    values[1, 100:, 0] /= 1.3
    _, results = run_cycles(detector, warmed, values, step=60.0)
    assert findings_in(results[99])
    assert not any(findings_in(verdicts) for verdicts in results[112:])


def test_a_lasting_level_is_the_new_baseline_after_two_hours(detector, warmed):
    _, results = run_cycles(detector, warmed, shifted(minutes=300), step=60.0)
    assert findings_in(results[SHIFT + 100])
    assert not any(findings_in(verdicts) for verdicts in results[SHIFT + 125 :])


def test_a_change_at_the_time_of_the_shift_is_evidence(detector, warmed):
    at = NOW + 60.0 * (SHIFT - 8)
    change = Event(
        id="c", kind=EventKind.CHANGE, entity=names(EntityKind.GPU, 6)[1],
        at=datetime.fromtimestamp(at, tz=UTC), source="test", code="driver", attributes={}, dedup_key="c",
    )  # fmt: skip
    values, state = shifted(), warmed
    times = NOW + 60.0 * np.arange(MINUTES)
    for end in range(1, MINUTES):
        part = window(
            EntityKind.GPU, detector.signals, times[max(0, end - 10) : end], values[:, max(0, end - 10) : end], 60.0
        )
        events = (change,) if 0 <= times[end - 1] - at < 600 else ()
        part = type(part)(part.kind, part.entities, part.times, part.keys, part.values, part.status, part.step, events)
        state, results = detector.detect(
            state, part, Topology.build(()), datetime.fromtimestamp(times[end - 1], tz=UTC)
        )
    (finding,) = findings_in(results)
    assert [item.text for item in finding.evidence] == ["findings.level_shifted", "incidents.evidence.change.driver"]


def test_a_gap_is_not_a_shift_and_keeps_the_history(detector, warmed):
    values = shifted(start=80, minutes=120)
    values[:, 40:52] = np.nan
    _, results = run_cycles(detector, warmed, values, step=60.0)
    assert not any(findings_in(verdicts) for verdicts in results[:80])
    assert findings_in(results[-1])


def test_a_shift_is_compared_with_the_last_half_hour_of_history(detector, warmed):
    values = usual(minutes=12)
    values[1, :, 0] *= 1.5
    _, results = run_cycles(detector, warmed, values, step=60.0)
    assert [one.entity.name for one in findings_in(results[-1])] == ["gpu-01"]


def test_a_new_scrape_interval_drops_only_the_readings(detector, warmed):
    state, _ = run_cycles(detector, warmed, usual(40), step=60.0)
    assert np.isfinite(state.arrays["ring"]).any()
    slower, results = run_cycles(detector, state, usual(3), start=NOW + 2400, step=120.0)
    assert np.isfinite(slower.arrays["ring"]).sum() <= 3 * 6 * 3
    assert slower.arrays["move_seconds"].min() > 86400.0
    assert results[-1][0].reason is NoVerdictReason.WARMING_UP


def test_levels_of_other_signals_are_relearned(detector, warmed):
    turned = LevelShiftDetector(EntityKind.GPU, WATCHED[::-1], LOAD)
    assert turned.restored(warmed)[1] == "it was learned from other signals"
    _, results = run_cycles(turned, warmed, usual(3), step=60.0)
    assert results[-1] == [NoVerdict(turned.name, None, NoVerdictReason.WARMING_UP)]


def test_the_budget_moves_the_limit(detector):
    one = LevelShiftDetector(EntityKind.GPU, WATCHED, LOAD)
    one.set_budget(0.01)
    state = one.warm(one.initial(), history(one, LEVELS, count=6))
    state, _ = run_cycles(one, state, shifted(minutes=120), step=60.0)
    assert one.alarm_rate(state).budget == 0.01
    assert one.alarm_rate(state).factor > 1.0, "one alarm is far more than the budget"


def test_the_defaults_are_registered_and_of_the_right_kind():
    for kind, (watched, load) in level_shift.WATCHED.items():
        one = registry.DETECTORS[f"level-shift-{kind.value}"]()
        assert (one.kind, one.watched, one.load) == (kind, watched, load)
        assert all(catalog.signal(name).entity is kind for name in (*watched, load))
        assert one.window >= timedelta(seconds=one.beat_seconds)
