from __future__ import annotations

import numpy as np
import pytest

from detectors.statistics import ensemble as module
from detectors.statistics.alarm_threshold import (
    BLOCK_READINGS,
    BLOCK_SECONDS,
    FEWEST_BLOCKS,
    HEADROOM,
    LEFT_OUT_BLOCKS,
    AlarmThreshold,
)
from detectors.statistics.deviation import CLIP
from detectors.statistics.ensemble import FEWEST_ROWS, Ensemble
from detectors.statistics.ensemble_members import NAMES, SUREST, EnsembleMembers, Tail
from detectors.statistics.residuals import KINDS, Residuals

STEP = 300.0
START = 1_799_971_200.0  # midnight
DAY = 86400.0


def days(count, length, metrics=6, seed=1):
    """A daily rhythm with noise, (count, times, metrics)."""
    times = START + STEP * np.arange(int(length * DAY / STEP))
    rhythm = 10.0 + 4.0 * np.sin(2 * np.pi * times / DAY)
    noise = np.random.default_rng(seed).normal(size=(count, times.size, metrics))
    return times, rhythm[None, :, None] + 0.3 * noise


def evaluate(values, times, *, budget=0.25, block=48, begin=None):
    ensemble = Ensemble(values.shape[2], budget)
    memory, pool = begin or (ensemble.empty(values.shape[0]), ensemble.empty_pool())
    parts = [
        ensemble.evaluate(memory, pool, values[:, at : at + block], times[at : at + block], STEP)
        for at in range(0, times.size, block)
    ]
    joined = [
        np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("scores", "limits", "alarms")
    ]
    return (*joined, (memory, pool))


@pytest.mark.slow
def test_a_fault_on_many_metrics_alarms_at_once_after_quiet_days():
    times, values = days(3, 18)
    values[2, 4900:4920] += 2.0
    _, _, alarms, _ = evaluate(values, times)
    assert alarms[2, 4900:4904].any()
    mature = alarms[:2, 13 * 288 :].reshape(2, -1, int(BLOCK_SECONDS / STEP)).any(axis=2).sum() / (2 * 5)
    assert mature < 4 * HEADROOM * 0.25, "blocks a day; noise alone has no true faults to make room for"


@pytest.mark.slow
def test_one_metric_alone_is_not_enough():
    times, values = days(2, 8, metrics=20)
    values[0, 2000, 3] += 3.0
    _, _, alarms, _ = evaluate(values, times)
    assert not alarms[0, 2000]


def test_a_frozen_metric_lowers_the_activity_residual():
    times, values = days(1, 6, metrics=2)
    values[0, 1500:] = values[0, 1500]
    rows = residual_rows(values, times)
    activity = KINDS.index("activity") * 2
    assert rows[0, 1490, activity] > -2
    assert rows[0, 1560, activity] < -4


def residual_rows(values, times):
    residuals = Residuals(values.shape[2])
    memory = residuals.empty(values.shape[0])
    return np.stack([residuals.step(memory, values[:, at], float(times[at]), STEP) for at in range(times.size)], axis=1)


def test_units_do_not_matter():
    times, values = days(2, 4, metrics=3)
    factor = np.array([1e9, 1.0, 1e-6])
    one, other = residual_rows(values, times), residual_rows(values * factor, times)
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def test_residuals_are_bounded_and_a_constant_metric_has_none():
    times, values = days(1, 3, metrics=2)
    values[0, :, 1] = 7.0
    values[0, 700, 0] = 1e12
    rows = residual_rows(values, times).reshape(1, times.size, len(KINDS), 2)
    assert np.abs(rows).max() <= CLIP
    still = rows[0, 400:, :, 1]
    assert np.abs(still[:, [0, 1]]).max() == 0.0


def test_missing_readings_teach_nothing_and_have_no_score():
    times, values = days(3, 5, metrics=3)
    values[1, 900:1000] = np.nan
    values[2, :, 0] = np.nan
    scores, _, alarms, _ = evaluate(values, times)
    assert np.isnan(scores[1, 900:1000]).all()
    assert not alarms[1, 900:1000].any()
    assert np.isfinite(scores[1, 1000:]).all()
    assert np.isfinite(scores[2, 600:]).all()
    residuals = Residuals(3)
    memory = residuals.empty(1)
    residuals.step(memory, np.array([[1.0, 2.0, 3.0]]), START, STEP)
    before = {name: array.copy() for name, array in memory.items()}
    residuals.step(memory, np.array([[np.nan, np.inf, -np.inf]]), START + STEP, STEP)
    for name, array in before.items():
        np.testing.assert_array_equal(array, memory[name], err_msg=name)


@pytest.mark.parametrize("values", [np.full((2, 600, 3), np.nan), np.full((2, 600, 3), 5.0), np.zeros((1, 600, 1))])
def test_nothing_and_constants_raise_no_alarm(values):
    _, _, alarms, _ = evaluate(values, START + STEP * np.arange(600))
    assert not alarms.any()


def test_a_single_reading_a_single_entity_and_no_entity_have_no_score():
    for count, length in ((1, 1), (0, 5), (3, 0)):
        times, values = START + STEP * np.arange(length), np.ones((count, length, 2))
        ensemble = Ensemble(2, 0.25)
        score = ensemble.evaluate(ensemble.empty(count), ensemble.empty_pool(), values, times, STEP)
        assert score.scores.shape == (count, length)
        assert np.isnan(score.scores).all()
        assert not score.alarms.any()


def test_the_state_of_ten_thousand_entities_is_bounded():
    ensemble = Ensemble(10, 0.25)
    memory, pool = ensemble.empty(10_000), ensemble.empty_pool()
    times, values = START + STEP * np.arange(3), np.random.default_rng(2).random((10_000, 3, 10))
    ensemble.evaluate(memory, pool, values, times, STEP)
    score = ensemble.evaluate(memory, pool, values, times + 3 * STEP, STEP)
    assert np.isfinite(score.scores).all()
    assert pool["reservoir"].shape[0] == 4096
    assert sum(array.nbytes for array in memory.values()) < 10_000 * 10 * 1400


def test_scores_do_not_depend_on_the_block_size():
    times, values = days(2, 3, metrics=3)
    _, _, _, state = evaluate(values, times)
    copies = [tuple({name: array.copy() for name, array in part.items()} for part in state) for _ in range(2)]
    more = times[-1] + STEP * np.arange(1, 25)
    fresh = days(2, 1, metrics=3, seed=9)[1][:, :24]
    whole = evaluate(fresh, more, begin=copies[0], block=24)
    module._voters.cache_clear()
    single = evaluate(fresh, more, begin=copies[1], block=1)
    np.testing.assert_allclose(whole[0], single[0], rtol=1e-5)


def test_a_score_fades_instead_of_falling():
    times, values = days(1, 6)
    values[0, 1500:1503] += 5.0
    scores, _, _, _ = evaluate(values, times)
    peak = scores[0, 1500:1503].max()
    assert peak * 0.8 > scores[0, 1515] > peak * 0.4
    assert scores[0, 1600] < peak / 3


def test_a_tail_extrapolates_beyond_the_data():
    tail = Tail.of(np.random.default_rng(3).exponential(size=10_000))
    seen = tail.surprise(np.array([-1.0, 0.693, 4.6, 9.2, 1e6, np.inf]))
    assert seen[0] == 0.0
    np.testing.assert_allclose(seen[1:4], [0.3, 2.0, 4.0], atol=0.3)
    assert seen[4:].tolist() == [SUREST, SUREST]
    assert np.isfinite(Tail.of(np.zeros(200)).surprise(np.array([0.0, 1.0]))).all()


def test_members_depend_on_their_rows_only_and_agree_on_anomalies():
    rows = np.random.default_rng(4).normal(size=(600, len(KINDS) * 4)).astype(np.float32)
    odd = np.full((1, 20), 6.0, dtype=np.float32)
    one, other = EnsembleMembers(rows), EnsembleMembers(rows)
    assert one.surprises(odd).shape == (1, len(NAMES))
    np.testing.assert_array_equal(one.surprises(odd), other.surprises(odd))
    assert (one.surprises(odd) > 2.0).all()


def test_no_limit_before_there_are_enough_peaks():
    budget = AlarmThreshold(0.25)
    memory = budget.empty(1)
    for block in range(FEWEST_BLOCKS):
        assert not budget.judge(memory, np.array([99.0]), block * BLOCK_SECONDS)[0]
    assert np.isinf(memory["limit"][0])
    budget.judge(memory, np.array([1.0]), FEWEST_BLOCKS * BLOCK_SECONDS)
    assert np.isfinite(memory["limit"][0])


@pytest.mark.parametrize("per_day", [0.25, 1.0])
def test_the_alarm_rate_is_near_the_budget(per_day):
    rng, budget, entities = np.random.default_rng(5), AlarmThreshold(per_day), 200
    memory, exceeded = budget.empty(entities), 0
    for block in range(360):
        above = budget.judge(
            memory, rng.exponential(size=entities) * (1 + np.arange(entities) / 50), block * BLOCK_SECONDS
        )
        exceeded += int(above.sum()) if block >= 120 else 0
    realised = exceeded / entities / (240 * BLOCK_SECONDS / DAY)
    assert realised == pytest.approx(HEADROOM * per_day, rel=0.35)


def test_hourly_readings_have_blocks_of_a_day_and_the_same_budget():
    rng, budget, hour, entities = np.random.default_rng(8), AlarmThreshold(0.1), 3600.0, 100
    memory, exceeded = budget.empty(entities), 0
    for day in range(240):
        scores = rng.exponential(size=(BLOCK_READINGS, entities))
        above = [budget.judge(memory, row, day * DAY + place * hour, hour) for place, row in enumerate(scores)]
        exceeded += int(np.any(above, axis=0).sum()) if day >= 120 else 0
    assert memory["block"][0] == 239 * DAY
    assert exceeded / entities / 120 == pytest.approx(HEADROOM * 0.1, rel=0.35)


def test_an_incident_raises_its_own_limit_only_after_a_day():
    rng, budget = np.random.default_rng(6), AlarmThreshold(0.25)
    memory, above = budget.empty(1), []
    for block in range(120 + 12 * LEFT_OUT_BLOCKS):
        score = 1.0 + 0.1 * rng.random() + (4.0 if block >= 120 else 0.0)
        above.append(bool(budget.judge(memory, np.array([score]), block * BLOCK_SECONDS)[0]))
    assert all(above[120 : 120 + LEFT_OUT_BLOCKS])
    assert not any(above[-12:])


def test_a_new_entity_has_the_limit_of_its_class():
    rng, budget = np.random.default_rng(7), AlarmThreshold(0.25)
    memory = budget.empty(20)
    for block in range(100):
        scores = rng.exponential(size=20)
        scores[19] = np.nan
        budget.judge(memory, scores, block * BLOCK_SECONDS)
    assert memory["limit"][19] == pytest.approx(np.median(memory["limit"][:19]), rel=0.3)


def test_too_few_rows_give_no_members():
    times, values = days(1, 1, metrics=2)
    scores, _, _, _ = evaluate(values[:, :FEWEST_ROWS], times[:FEWEST_ROWS])
    assert np.isnan(scores).all()
