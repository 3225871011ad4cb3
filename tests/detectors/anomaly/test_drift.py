from __future__ import annotations

import sys
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_history import NOW, findings_in, names  # type: ignore[import-not-found]

from detectors import registry
from detectors.anomaly import drift
from detectors.anomaly.drift import DriftDetector
from outrider.model import CellStatus, EntityKind, NoVerdictReason, Priority, SignalKey, Window
from outrider.topology import Topology
from outrider.vocabulary import catalog

STEP = 600.0
DAY = 144
MEMORY, LOAD, TOTAL = "hw_accel_memory_used_bytes", "hw_accel_utilization_ratio", "hw_accel_memory_total_bytes"
COUNT = 6


@pytest.fixture(scope="module")
def detector():
    return DriftDetector(EntityKind.GPU, (MEMORY,), LOAD)


def quiet(days=4.0, seed=3, count=COUNT, daily=0.0):
    """Memory of 60 GB with a scatter of 1 %, and a load with a daily rhythm: (count, times, 2)."""
    beats = np.arange(round(days * DAY))
    random = np.random.default_rng(seed)
    rhythm = np.sin(2 * np.pi * beats / DAY)
    memory = 6e10 * (1.0 + daily * rhythm + 0.01 * random.normal(size=(count, beats.size)))
    load = 0.5 + 0.2 * rhythm + 0.02 * random.normal(size=(count, beats.size))
    return np.stack((memory, load), axis=2)


def make_window(detector, times, values, total=8e10):
    columns = {MEMORY: values[:, :, 0], LOAD: values[:, :, 1], TOTAL: np.full(values.shape[:2], total)}
    plane = np.stack([columns[key.name] for key in detector.keys], axis=2)
    status = np.where(np.isnan(plane), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    entities = names(EntityKind.GPU, values.shape[0])
    return Window(EntityKind.GPU, entities, times, detector.keys, plane, status, timedelta(seconds=STEP))


def run_cycles(detector, values, *, warm=2 * DAY, topology=None, total=8e10):
    """Warms the detector with the first days, runs the rest, and returns the findings of each beat."""
    times = NOW + STEP * np.arange(values.shape[1])
    state = detector.warm(detector.initial(), make_window(detector, times[:warm], values[:, :warm]))
    results = []
    for end in range(warm + 1, values.shape[1] + 1):
        part = make_window(detector, times[end - 1 : end], values[:, end - 1 : end], total)
        now = datetime.fromtimestamp(times[end - 1], tz=UTC)
        state, verdicts = detector.detect(state, part, topology or Topology.build(()), now)
        results.append(findings_in(verdicts))
    return state, results


def leaking(start, per_day, row=2, **options):
    values = quiet(**options)
    values[row, start:, 0] += per_day / DAY * np.arange(values.shape[1] - start)
    return values


def test_quiet_days_have_no_drift(detector):
    for seed in range(4):
        _, results = run_cycles(detector, quiet(6.0, seed=seed))
        assert not any(results)


def test_a_leak_of_hours_is_reported_with_its_slope_and_time_left(detector):
    start = 3 * DAY
    _, results = run_cycles(detector, leaking(start, 2.4e10, days=3.4))
    first = next(beat for beat, verdicts in enumerate(results) if verdicts) - (start - 2 * DAY)
    assert 12 <= first <= 36, "within six hours"
    (finding,) = results[-1]
    assert (finding.entity.name, finding.severity, finding.fault) == ("gpu-02", Priority.P3, None)
    assert finding.observed > finding.expected.high
    trend, end = finding.evidence[0].arguments, finding.evidence[1].arguments
    assert float(trend["per_day"]) == pytest.approx(2.4e10, rel=0.25)
    level = 6e10 + 2.4e10 * 0.4
    assert float(end["limit"]) == 8e10
    assert float(end["hours"]) == pytest.approx((8e10 - level) / 2.4e10 * 24.0, rel=0.3)
    assert float(end["soonest"]) <= float(end["hours"]) <= float(end["latest"])


def test_a_leak_of_days_is_reported_despite_a_daily_rhythm(detector):
    values = leaking(2 * DAY, 3e9, days=6.0, daily=0.1)
    _, results = run_cycles(detector, values)
    assert [one.entity.name for one in results[-1]] == ["gpu-02"]
    assert float(results[-1][0].evidence[0].arguments["per_day"]) == pytest.approx(3e9, rel=0.3)
    assert {one.entity.name for verdicts in results for one in verdicts} == {"gpu-02"}


def test_a_step_a_restart_and_a_filling_cache_are_not_drift(detector):
    step = quiet(5.0)
    step[2, 3 * DAY + 20 :, 0] += 1e10
    restart = quiet(5.0)
    restart[2, 3 * DAY : 3 * DAY + 3, 0] = 2e9
    restart[2, 3 * DAY + 3 :, 0] -= 2e10 * np.exp(-np.arange(2 * DAY - 3) / 6.0)
    filling = quiet(5.0)
    filling[2, 3 * DAY :, 0] += 1e10 * (1.0 - np.exp(-np.arange(2 * DAY) / 3.0))
    for values in (step, restart, filling):
        _, results = run_cycles(detector, values)
        assert not any(results)


def test_a_daily_sawtooth_is_not_drift(detector):
    values = quiet(6.0)
    values[2, :, 0] += 1.2e10 * (np.arange(6 * DAY) % DAY) / DAY
    _, results = run_cycles(detector, values)
    assert not any(results), "each day reaches what the day before reached"


def test_drift_explained_by_the_load_is_not_reported(detector):
    values = leaking(3 * DAY, 2.4e10, days=3.5)
    values[2, :, 1] = 0.3 + 0.01 * np.random.default_rng(9).normal(size=values.shape[1])
    values[2, 3 * DAY :, 1] += 0.8 / DAY * np.arange(DAY // 2)
    _, results = run_cycles(detector, values)
    assert not any(results)


def test_a_fall_of_a_signal_with_bad_highs_is_not_drift(detector):
    _, results = run_cycles(detector, leaking(3 * DAY, -2.4e10, days=3.5))
    assert not any(results)


def test_drift_of_many_peers_is_not_reported(detector):
    values = leaking(3 * DAY, 2.4e10, days=3.5)
    for row in (0, 1, 3, 4):
        values[row] = leaking(3 * DAY, 2.4e10, row=row, days=3.5)[row]
    _, results = run_cycles(detector, values)
    assert not any(results)


def test_a_finding_ends_when_the_memory_is_released(detector):
    values = leaking(3 * DAY, 2.4e10, days=4.0)
    values[2, 3 * DAY + 72 :, 0] = quiet(4.0)[2, 3 * DAY + 72 :, 0]
    _, results = run_cycles(detector, values)
    assert results[DAY + 70]
    assert not any(results[DAY + 76 :])


def test_a_gpu_is_reported_on_its_replica_and_two_gpus_once(detector):
    values = leaking(3 * DAY, 2.4e10, days=3.4)
    values[3] = leaking(3 * DAY, 6e10, row=3, days=3.4)[3]
    cards, (replica,) = names(EntityKind.GPU, COUNT), names(EntityKind.REPLICA, 1)
    topology = Topology.build([(cards[2], replica), (cards[3], replica)])
    _, results = run_cycles(detector, values, topology=topology)
    (finding,) = results[-1]
    assert finding.entity == replica
    assert finding.evidence[0].arguments["card"] == "gpu-03"


def test_gaps_are_no_evidence(detector):
    values = leaking(3 * DAY, 2.4e10, days=3.4)
    values[:, 3 * DAY + 15 : 3 * DAY + 18] = np.nan
    _, results = run_cycles(detector, values)
    assert [one.entity.name for one in results[-1]] == ["gpu-02"]
    times = NOW + STEP * np.arange(5)
    nothing = make_window(detector, times, np.full((2, 5, 2), np.nan), np.nan)
    _, verdicts = detector.detect(
        detector.initial(), nothing, Topology.build(()), datetime.fromtimestamp(times[-1], tz=UTC)
    )
    assert [one.reason for one in verdicts] == [NoVerdictReason.NO_VALUES]


def test_a_finding_keeps_its_last_known_level_during_a_gap(detector):
    values = leaking(3 * DAY, 2.4e10, days=3.4)
    values = np.concatenate((values, np.full((COUNT, 8, 2), np.nan)), axis=1)
    _, results = run_cycles(detector, values)
    (before,), (silent,) = results[-9], results[-1]
    assert silent.score == pytest.approx(before.score, abs=0.05)
    assert silent.observed == pytest.approx(before.observed, rel=0.02)
    assert np.isfinite(float(silent.evidence[0].arguments["level"]))


class CountingWindow(Window):
    """Counts reads of the column with the signal's limit."""

    limit_reads = 0

    def column(self, key):
        CountingWindow.limit_reads += str(key) == TOTAL
        return super().column(key)


def test_limits_are_read_once_per_signal(detector):
    values = leaking(3 * DAY, 2.4e10, days=3.4)
    values[4] = leaking(3 * DAY, 3e10, row=4, days=3.4)[4]
    state, results = run_cycles(detector, values[:, :-1])
    assert len(results[-1]) == 2
    times = NOW + STEP * np.arange(values.shape[1])
    part = make_window(detector, times[-1:], values[:, -1:], 8e10)
    part = CountingWindow(*(getattr(part, one.name) for one in fields(part) if one.init))
    _, verdicts = detector.detect(state, part, Topology.build(()), datetime.fromtimestamp(times[-1], tz=UTC))
    assert len(findings_in(verdicts)) == 2
    assert CountingWindow.limit_reads == 1


def test_a_distant_or_unknown_limit_is_not_reported(detector):
    _, results = run_cycles(detector, leaking(2 * DAY, 3e9, days=5.0), total=1e12)
    assert len(results[-1][0].evidence) == 1
    _, results = run_cycles(detector, leaking(2 * DAY, 3e9, days=5.0), total=np.nan)
    assert len(results[-1][0].evidence) == 1


def test_shrinking_space_is_reported_with_the_time_left():
    one = DriftDetector(EntityKind.NODE, ("node_filesystem_available_ratio",), "node_cpu_utilization_ratio")
    random = np.random.default_rng(4)
    free = 0.8 + 0.001 * random.normal(size=(3, 4 * DAY))
    free[1, 3 * DAY :] -= 0.4 / DAY * np.arange(DAY)
    times = NOW + STEP * np.arange(4 * DAY)
    plane = np.stack((free, np.full(free.shape, 0.3)), axis=2)
    status = np.zeros(plane.shape, dtype=np.uint8)
    nodes = names(EntityKind.NODE, 3)

    def part(first, last):
        shown = slice(first, last)
        return Window(
            one.kind, nodes, times[shown], one.keys, plane[:, shown], status[:, shown], timedelta(seconds=STEP)
        )

    beat = 3 * DAY + 38  # the last of half an hour
    state = one.warm(one.initial(), part(0, beat))
    state, results = one.detect(
        state, part(beat, beat + 1), Topology.build(()),
        datetime.fromtimestamp(times[beat], tz=UTC),
    )  # fmt: skip
    (finding,) = findings_in(results)
    assert finding.observed < finding.expected.low
    assert float(finding.evidence[0].arguments["per_day"]) == pytest.approx(-0.4, rel=0.1)
    assert float(finding.evidence[1].arguments["hours"]) == pytest.approx((0.7 - 0.05) / 0.4 * 24.0, rel=0.1)


def test_short_cycles_give_the_same_beats(detector):
    state = detector.warm(detector.initial(), make_window(detector, NOW + STEP * np.arange(DAY), quiet(1.0)))
    begin, times = NOW + STEP * DAY, []
    for cycle in range(81):
        times.append(begin + 15.0 * cycle)
        shown = np.array(times[-40:])
        values = np.broadcast_to(np.array([6e10 + 1e9 * (cycle // 40), 0.5]), (COUNT, shown.size, 2)).copy()
        part = make_window(detector, shown, values)
        part = Window(part.kind, part.entities, shown, part.keys, part.values, part.status, timedelta(seconds=15))
        state, _ = detector.detect(state, part, Topology.build(()), datetime.fromtimestamp(shown[-1], tz=UTC))
    np.testing.assert_allclose(state.arrays["points"][0, 0, -2:], [6e10, 6.1e10], rtol=1e-3)


def test_the_defaults_are_registered_and_of_the_right_kind():
    for kind, (watched, load) in drift.WATCHED.items():
        one = registry.DETECTORS[f"drift-{kind.value}"]()
        assert (one.kind, one.watched, one.load) == (kind, watched, load)
        assert all(catalog.signal(name).entity is kind for name in (*watched, load))
    assert SignalKey(TOTAL) in registry.DETECTORS["drift-gpu"]().keys
