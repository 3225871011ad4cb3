"""Odd rows that wait for a verdict."""

from __future__ import annotations

import numpy as np

from detectors.anomaly import feedback_suppression
from outrider.model import EntityKind, EntityRef

GPUS = tuple(EntityRef("lab", EntityKind.GPU, None, f"g{number}") for number in range(4))


def kept(pool, entity):
    return pool["aside_at"][pool["aside_of"] == entity.key]


def odd_for(pool, odd, times):
    """The entities ``odd`` are odd at each of these instants."""
    flags = np.isin(np.arange(len(GPUS)), odd)
    for at in times:
        feedback_suppression.put_aside(pool, np.ones((len(GPUS), 2), np.float32), GPUS, flags, float(at))


def test_a_long_anomaly_displaces_no_rows_of_other_entities():
    pool = feedback_suppression.empty(2)
    odd_for(pool, [1], [0.0])
    odd_for(pool, [0], 300.0 * np.arange(1, 2 * feedback_suppression.MOST_ROWS))
    assert kept(pool, GPUS[1]).tolist() == [0.0]
    newest = 300.0 * np.arange(1, 2 * feedback_suppression.MOST_ROWS)[-feedback_suppression.MOST_OF_ONE :]
    assert kept(pool, GPUS[0]).tolist() == newest.tolist(), "its newest rows, in order of time"


def test_rows_rated_normal_outlast_newer_rows_of_their_entity():
    pool = feedback_suppression.empty(2)
    odd_for(pool, [0, 2], [0.0, 300.0])
    pool["aside_fine"] = (pool["aside_of"] == GPUS[0].key) & (pool["aside_at"] == 0.0)
    odd_for(pool, [0, 2], 300.0 * np.arange(2, 100))
    assert kept(pool, GPUS[0])[0] == 0.0
    assert kept(pool, GPUS[0]).size == kept(pool, GPUS[2]).size == feedback_suppression.MOST_OF_ONE
    assert 0.0 not in kept(pool, GPUS[2])


def test_rows_are_bounded_in_number_and_age():
    pool = feedback_suppression.empty(2)
    odd_for(pool, [0, 1, 2, 3], 300.0 * np.arange(200))
    assert pool["aside_at"].size == len(GPUS) * feedback_suppression.MOST_OF_ONE <= feedback_suppression.MOST_ROWS
    odd_for(pool, [3], [feedback_suppression.KEPT_SECONDS + 300.0 * 199])
    assert [kept(pool, one).size for one in GPUS] == [0, 0, 0, 1]
