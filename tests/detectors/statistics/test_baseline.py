from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_history import DAY, NOW, names, rhythm, window  # type: ignore[import-not-found]

from detectors.base import sampling
from detectors.statistics.baseline import MATURE_UPDATES, Baseline, follow
from outrider.model import CellStatus, EntityKind
from outrider.vocabulary import catalog

SIGNAL = "svc_requests_per_second"


def learnt(values, step=300.0, signals=(SIGNAL,), end=NOW):
    baseline = Baseline(signals)
    memory = baseline.empty(values.shape[0])
    for place in range(values.shape[1]):
        at = end - (values.shape[1] - place) * step
        baseline.learn(memory, values[:, place], at, step)
    return baseline, memory


def test_the_level_is_known_after_enough_updates():
    rng = np.random.default_rng(1)
    baseline, memory = learnt(100 + rng.normal(size=(1, MATURE_UPDATES - 1, 1)), step=15.0)
    assert not baseline.usual(memory, NOW).known.any()
    baseline.learn(memory, np.array([[100.0]]), NOW, 15.0)
    usual = baseline.usual(memory, NOW)
    assert usual.known.all()
    assert usual.level[0, 0] == pytest.approx(100, abs=1)


def test_the_daily_profile_is_known_after_two_days():
    step = 300.0
    for days, known in ((1, False), (2, True), (3, True)):
        times = np.arange(NOW - days * DAY, NOW, step)
        baseline, memory = learnt(rhythm(times, 1, [100.0]), step)
        low = baseline.usual(memory, NOW + 0.5 * DAY).level[0, 0]
        daily = 1.0 + 0.5 * np.sin(2 * np.pi * (NOW + 0.5 * DAY) / DAY)
        assert bool(abs(low - 100 * daily) < 12) is known, days


def test_expectation_follows_the_day_closely():
    times = np.arange(NOW - 6 * DAY, NOW, 300.0)
    baseline, memory = learnt(rhythm(times, 1, [100.0]))
    ahead = np.arange(NOW, NOW + DAY, 900.0)
    levels = np.array([baseline.usual(memory, at).level[0, 0] for at in ahead])
    assert np.abs(levels - 100 * (1 + 0.5 * np.sin(2 * np.pi * ahead / DAY))).max() < 12
    scales = np.array([baseline.usual(memory, at).scale[0, 0] for at in ahead])
    assert (scales > 1.0).all()
    assert (scales < 12).all()


def test_one_outlier_moves_little():
    times = np.arange(NOW - 4 * DAY, NOW, 300.0)
    baseline, memory = learnt(rhythm(times, 1, [100.0]))
    before = baseline.usual(memory, NOW)
    baseline.learn(memory, np.array([[1e9]]), NOW, 300.0)
    after = baseline.usual(memory, NOW)
    assert abs(after.level[0, 0] - before.level[0, 0]) < 2 * before.scale[0, 0]


@pytest.mark.parametrize(
    ("signal", "level", "floor"),
    [
        ("svc_success_ratio", 1.0, 0.02),
        ("svc_success_ratio", 0.2, 0.01),
        ("hw_accel_utilization_ratio", 0.5, 0.02),
        ("svc_requests_per_second", 1000.0, 20.0),
        ("engine_requests_waiting", 0.0, 1.0),
    ],
)
def test_a_constant_has_the_floor_as_its_scale(signal, level, floor):
    baseline, memory = learnt(np.full((1, 200, 1), level), step=15.0, signals=(signal,))
    assert baseline.usual(memory, NOW).scale[0, 0] == pytest.approx(floor)


def test_missing_values_and_frozen_ones_teach_nothing():
    baseline, memory = learnt(np.full((2, 150, 1), 5.0), step=15.0)
    before = {name: array.copy() for name, array in memory.items()}
    baseline.learn(memory, np.full((2, 1), np.nan), NOW, 15.0)
    baseline.learn(memory, np.full((2, 1), 50.0), NOW, 15.0, np.ones((2, 1), dtype=bool))
    for name, array in memory.items():
        if not name.startswith("week_"):  # the weekly profile also learns from anomalies, but ignores single events
            np.testing.assert_array_equal(array, before[name])


@settings(max_examples=40, deadline=None)
@given(
    hnp.arrays(np.float64, (2, 30, 1), elements=st.one_of(st.just(np.nan), st.floats(-1e6, 1e6))),
    st.floats(0.0, 4e9),
)
def test_state_stays_finite_and_scales_positive_for_any_input(values, end):
    baseline, memory = learnt(values, step=60.0, end=end)
    unseen = ("week_recent", "week_older")  # NaN: a part of the week that was not seen
    assert all(np.isfinite(array).all() for name, array in memory.items() if name not in unseen)
    assert not any(np.isinf(memory[name]).any() for name in unseen)
    usual = baseline.usual(memory, end)
    assert (usual.scale > 0).all()


def test_memory_follows_its_entities():
    baseline, memory = learnt(np.array([[[1.0]] * 130, [[2.0]] * 130]), step=15.0)
    first, second, third = names(EntityKind.SERVICE, 3)
    moved = follow(memory, (first, second), (third, second), baseline.empty(2))
    assert moved["level"][:, 0].tolist() == [0.0, 2.0]
    assert moved["updates"][:, 0].tolist() == [0, 130]
    damaged = follow({"level": np.zeros(7)}, (first, second), (first,), baseline.empty(1))
    assert damaged["updates"][0, 0] == 0


def test_readings_are_levels_rates_or_means():
    signals = ("engine_requests_waiting", "engine_generation_tokens_total", "engine_ttft_seconds")
    keys = sampling.keys_of(signals)
    times = NOW + 15.0 * np.arange(40)
    values = np.zeros((1, 40, len(keys)))
    values[:, :, 0] = np.arange(40)
    values[:, :, 1] = 300.0  # tokens a scrape
    ladder = catalog.signal("engine_ttft_seconds").bucket_keys
    values[:, :, keys.index(ladder[3])] = 4.0  # first tokens a scrape
    values[:, :, keys.index(ladder[-1])] = 1.0  # seconds in all
    part = window(EntityKind.REPLICA, signals, times, values, 15.0)
    read = sampling.read(part, signals, slice(38, 40))
    assert read.shape == (1, 2, 3)
    assert read[0, :, 0].tolist() == [38.0, 39.0]
    np.testing.assert_allclose(read[0, :, 1], 20.0)
    np.testing.assert_allclose(read[0, :, 2], 0.25)


def test_readings_are_the_same_at_any_spacing():
    signals = ("engine_generation_tokens_total",)
    for step in (15.0, 60.0, 300.0):
        times = NOW + step * np.arange(50)
        part = window(EntityKind.REPLICA, signals, times, np.full((1, 50, 1), 20.0 * step), step)
        np.testing.assert_allclose(sampling.read(part, signals, slice(0, 50)), 20.0)


def test_untrusted_cells_are_not_read():
    signals = ("engine_requests_waiting",)
    part = window(EntityKind.REPLICA, signals, NOW + 15.0 * np.arange(3), np.ones((1, 3, 1)), 15.0)
    part.status[0, 1] = CellStatus.UNTRUSTED
    part.status[0, 2] = CellStatus.STALE
    assert np.isnan(sampling.read(part, signals, slice(0, 3))[0, :, 0]).tolist() == [False, True, True]


def test_a_mean_over_few_requests_is_not_read():
    signals = ("engine_ttft_seconds",)
    keys = sampling.keys_of(signals)
    values = np.zeros((1, 3, len(keys)))
    values[0, 2, 3], values[0, 2, -1] = 2.0, 1.0
    part = window(EntityKind.REPLICA, signals, NOW + 15.0 * np.arange(3), values, 15.0)
    assert np.isnan(sampling.read(part, signals, slice(0, 3))).all()
