"""The line that many entities learn together."""

from __future__ import annotations

import numpy as np
import pytest

from detectors.lines import Relation

LINE = Relation("ab", (0.3, 0.1), (0.5, 0.5), least_noise=0.01, least_share=0.1, min_samples=20.0)
GROUP = np.zeros(4, dtype=np.intp)


def learnt(target_of, *, count=4, length=60, seed=0, forget=1.0, where=True, memory=None):
    """Readings of ``count`` entities whose target follows two drivers of their own."""
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


def test_it_finds_the_parts_of_a_value():
    due, error = expected(learnt(lambda a, b: 100.0 + 4.0 * a + 30.0 * b), 40.0, 2.0)
    assert due == pytest.approx(100.0 + 160.0 + 60.0, rel=0.02)
    assert np.all((error > 0) & (error < 0.02))


def test_from_few_readings_nothing_is_expected():
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


def test_a_driver_that_is_always_zero_drives_nothing():
    memory = {name: np.zeros(1) for name in LINE.defaults}
    first = np.linspace(5, 40, 60)[None]
    LINE.learn(memory, (first, np.zeros((1, 60))), 100.0 + 4.0 * first, np.ones((1, 60), dtype=bool), 1.0)
    due, error = expected(memory, 30.0, 5.0, np.array([0]))
    assert due == pytest.approx([220.0], rel=0.02)
    assert np.isfinite(error).all()


def test_cells_that_are_not_known_teach_nothing():
    memory = learnt(lambda a, b: 100.0 + 4.0 * a)
    before = {name: held.copy() for name, held in memory.items()}
    nothing, some = np.full((4, 3), np.nan), np.ones((4, 3))
    for drivers, target in (((nothing, some), some), ((some, some), nothing), ((some, np.inf * some), some)):
        LINE.learn(memory, drivers, target, np.ones((4, 3), dtype=bool), 1.0)
    assert all(np.array_equal(held, memory[name]) for name, held in before.items())


def test_what_was_long_ago_is_forgotten():
    memory = learnt(lambda a, b: 100.0 + 0.0 * a)
    learnt(lambda a, b: 300.0 + 0.0 * a, forget=0.01, memory=memory, seed=1)
    assert expected(memory, 20.0, 1.0)[0] == pytest.approx(298.0, rel=0.03)


def test_units_fall_out():
    watts = expected(learnt(lambda a, b: 100.0 + 4.0 * a + 30.0 * b), 30.0, 1.0)
    milliwatts = expected(learnt(lambda a, b: 1024.0 * (100.0 + 4.0 * a + 30.0 * b)), 30.0, 1.0)
    assert np.array_equal(1024.0 * watts[0], milliwatts[0])
    assert np.array_equal(watts[1], milliwatts[1])
