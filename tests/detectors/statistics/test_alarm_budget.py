from __future__ import annotations

import numpy as np
import pytest

from detectors.statistics.alarm_budget import HIGHEST, LOWEST, Calibrator

STEP = 60.0
DAY = int(86400 / STEP)


def lived(budget, alarms_at, days, entities, seed=0):
    """Alarms per entity-day in the second half, if the factor sets the alarm rate of scores."""
    rng = np.random.default_rng(seed)
    made, memory, pool = Calibrator(budget), Calibrator.of_entities(entities), Calibrator.of_class()
    judged, begun = np.ones(entities, dtype=bool), 0
    for step in range(days * DAY):
        alarmed = rng.random(entities) < alarms_at(made.factor(pool)) * STEP / 86400
        if step >= days * DAY // 2:
            begun += int((alarmed & ~memory["alarmed"]).sum())
        made.count(memory, pool, alarmed, judged, STEP)
    return begun / (days / 2 * entities), made.rate(pool)


@pytest.mark.parametrize("entities", [3, 50])
@pytest.mark.parametrize("noise", [0.15, 1.0, 3.0])
def test_alarms_match_the_budget(entities, noise):
    realised, rate = lived(0.25, lambda factor: noise * np.exp(-4.0 * (factor - 1.0)), days=40, entities=entities)
    assert realised == pytest.approx(0.25, rel=0.35)
    assert rate.realised == pytest.approx(0.25, rel=1.2 if entities == 3 else 0.4)


def test_the_factor_is_bounded():
    assert lived(0.25, lambda factor: 500.0, days=2, entities=5)[1].factor == pytest.approx(HIGHEST, rel=0.01)
    assert lived(0.25, lambda factor: 0.0, days=20, entities=5)[1].factor == pytest.approx(LOWEST, rel=0.01)


def test_a_lasting_alarm_counts_once():
    made, memory, pool = Calibrator(0.25), Calibrator.of_entities(2), Calibrator.of_class()
    both = np.ones(2, dtype=bool)
    for _ in range(DAY):
        made.count(memory, pool, np.array([True, False]), both, STEP)
    assert made.rate(pool).realised == pytest.approx(0.5, rel=0.1)


def test_unjudged_entities_add_neither_alarms_nor_time():
    made, memory, pool = Calibrator(0.25), Calibrator.of_entities(2), Calibrator.of_class()
    nobody = np.zeros(2, dtype=bool)
    for _ in range(DAY):
        made.count(memory, pool, ~nobody, nobody, STEP)
    rate = made.rate(pool)
    assert (rate.realised, rate.factor, rate.entity_days) == (None, 1.0, 0.0)
