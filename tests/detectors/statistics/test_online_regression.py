"""Online regression shared by many entities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from detectors.statistics.online_regression import FIRST_NOISE, DriverModel

LINE = DriverModel("ab", (0.3, 0.1), (0.5, 0.5), least_noise=0.01, least_share=0.1, min_samples=20.0)
GROUP = np.zeros(4, dtype=np.intp)


def learnt(target_of, *, count=4, length=60, seed=0, forget=1.0, where=True, memory=None):
    """Readings of ``count`` entities with a target that follows two drivers."""
    random = np.random.default_rng(seed)
    first, second = random.uniform(5, 40, (count, length)), random.uniform(0, 2, (count, length))
    target = target_of(first, second) * random.normal(1.0, 0.01, (count, length))
    memory = memory or {name: np.zeros(count) for name in LINE.defaults}
    LINE.learn(memory, (first, second), target, np.full((count, length), where), forget)
    return memory


def expected(memory, first, second, group=GROUP):
    count = next(iter(memory.values())).size
    drivers = (np.full((count, 1), first), np.full((count, 1), second))
    return tuple(values[:, 0] for values in LINE.fit(memory, group).expected(drivers))


def test_the_regression_recovers_the_parts_of_a_value():
    due, error = expected(learnt(lambda a, b: 100.0 + 4.0 * a + 30.0 * b), 40.0, 2.0)
    assert due == pytest.approx(100.0 + 160.0 + 60.0, rel=0.02)
    assert np.all((error > 0) & (error < 0.02))


def test_few_readings_give_no_expectation():
    memory = learnt(lambda a, b: 100.0 + a + b, length=4)
    assert np.isnan(expected(memory, 20.0, 1.0)[0]).all()
    assert not LINE.fit(memory, GROUP).known.any()


def test_a_new_entity_is_judged_by_its_peers_and_one_without_any_by_itself():
    memory = learnt(lambda a, b: 100.0 + 4.0 * a + 30.0 * b)
    for held in memory.values():
        held[3] = 0.0
    assert expected(memory, 20.0, 1.0)[0][3] == pytest.approx(210.0, rel=0.02)
    alone = expected(memory, 20.0, 1.0, np.array([0, 0, 0, -1]))[0]
    assert np.isnan(alone[3])
    assert np.isfinite(alone[:3]).all()


def test_entities_without_a_group_each_have_their_own():
    memory = learnt(lambda a, b: np.array([[100.0], [200.0], [300.0], [400.0]]) + 0.0 * a)
    due = expected(memory, 20.0, 1.0, np.full(4, -1))[0]
    assert due == pytest.approx([100.0, 200.0, 300.0, 400.0], rel=0.05)


def test_a_driver_that_is_always_zero_has_no_slope():
    memory = {name: np.zeros(1) for name in LINE.defaults}
    first = np.linspace(5, 40, 60)[None]
    LINE.learn(memory, (first, np.zeros((1, 60))), 100.0 + 4.0 * first, np.ones((1, 60), dtype=bool), 1.0)
    due, error = expected(memory, 30.0, 5.0, np.array([0]))
    assert due == pytest.approx([220.0], rel=0.02)
    assert np.isfinite(error).all()


def test_unknown_cells_teach_nothing():
    memory = learnt(lambda a, b: 100.0 + 4.0 * a)
    before = {name: held.copy() for name, held in memory.items()}
    nothing, some = np.full((4, 3), np.nan), np.ones((4, 3))
    for drivers, target in (((nothing, some), some), ((some, some), nothing), ((some, np.inf * some), some)):
        LINE.learn(memory, drivers, target, np.ones((4, 3), dtype=bool), 1.0)
    assert all(np.array_equal(held, memory[name]) for name, held in before.items())


def test_old_readings_are_forgotten():
    memory = learnt(lambda a, b: 100.0 + 0.0 * a)
    learnt(lambda a, b: 300.0 + 0.0 * a, forget=0.01, memory=memory, seed=1)
    assert expected(memory, 20.0, 1.0)[0] == pytest.approx(298.0, rel=0.03)


def beside(count=60, seed=3, third=-0.6):
    """Two correlated drivers and a target that the second one seems to lower."""
    random = np.random.default_rng(seed)
    first = random.uniform(10, 40, (1, count))
    second = 0.05 * first + random.uniform(0, 0.3, (1, count))
    return first, second, 50.0 + 3.0 * first + third * 20.0 * second + random.normal(0, 0.2, (1, count))


def test_other_slopes_are_refitted_with_a_slope_at_its_bound():
    first, second, target = beside()
    memory = {name: np.zeros(1) for name in LINE.defaults}
    LINE.learn(memory, (first, second), target, np.ones(first.shape, dtype=bool), 1.0)
    line = LINE.fit(memory, np.array([-1]))
    assert line.slopes[0, 1] == 0.0
    alone = DriverModel("a", (0.3,), (0.5,), least_noise=0.01, least_share=0.1, min_samples=20.0)
    single = {name: np.zeros(1) for name in alone.defaults}
    alone.learn(single, (first,), target, np.ones(first.shape, dtype=bool), 1.0)
    assert line.slopes[0, 0] == pytest.approx(alone.fit(single, np.array([-1])).slopes[0, 0], rel=0.01)
    due, _ = line.expected((first, second))
    off = (due / target - 1.0)[0]
    assert abs(np.corrcoef(off, first[0])[0, 1]) < 0.1, "what is left does not follow the driver that remains"


def test_bounded_slopes_equal_bounded_least_squares():
    """Compares 40 random cases with scipy's ``lsq_linear``, with the prior as further rows."""
    three = DriverModel("abc", (0.4, 0.2, 0.2), (0.3, 0.3, 0.3), least_noise=0.02, least_share=0.05, min_samples=20.0)
    random, held = np.random.default_rng(11), 0
    for _ in range(40):
        mixed = random.uniform(0.2, 1.0, (3, 3)) + 0.3 * np.eye(3)
        drivers = mixed @ random.uniform(1, 3, (3, 80))
        target = 5.0 + random.uniform(-1.0, 2.0, 3) @ drivers + random.normal(0, 0.05, 80)
        if target.mean() <= 0.5:
            continue
        memory = {name: np.zeros(1) for name in three.defaults}
        three.learn(memory, [one[None] for one in drivers], target[None], np.ones((1, 80), dtype=bool), 1.0)
        line = three.fit(memory, np.array([-1]))
        apart = drivers / drivers.mean(axis=1, keepdims=True) - 1.0
        noise = _noise_of_first_fit(three, apart, target)
        rows = np.vstack((apart.T / noise, np.diag(1.0 / np.array(three.prior_deviation))))
        targets = np.concatenate(((target / target.mean() - 1.0) / noise, np.array((0.4, 0.2, 0.2)) / 0.3))
        best = lsq_linear(rows, targets, bounds=(0.0, 1.0), tol=1e-12)
        cost = 0.5 * np.sum((rows @ line.slopes[0] - targets) ** 2)
        assert np.all((line.slopes >= 0.0) & (line.slopes <= 1.0))
        assert cost <= best.cost * 1.02 + 1e-9
        held += int(((line.slopes == 0.0) | (line.slopes == 1.0)).any())
    assert held >= 10, "else nothing was shown"


def _noise_of_first_fit(relation, apart, target):
    share = target / target.mean() - 1.0
    rows = np.vstack((apart.T / FIRST_NOISE, np.diag(1.0 / np.array(relation.prior_deviation))))
    targets = np.concatenate((share / FIRST_NOISE, np.array(relation.prior_mean) / np.array(relation.prior_deviation)))
    first = lsq_linear(rows, targets, bounds=(0.0, 1.0), tol=1e-12).x
    left = np.sum((share - first @ apart) ** 2) / (share.size - 4.0)
    return max(np.sqrt(left), relation.least_noise)


def test_units_do_not_matter():
    watts = expected(learnt(lambda a, b: 100.0 + 4.0 * a + 30.0 * b), 30.0, 1.0)
    milliwatts = expected(learnt(lambda a, b: 1024.0 * (100.0 + 4.0 * a + 30.0 * b)), 30.0, 1.0)
    assert np.array_equal(1024.0 * watts[0], milliwatts[0])
    assert np.array_equal(watts[1], milliwatts[1])
