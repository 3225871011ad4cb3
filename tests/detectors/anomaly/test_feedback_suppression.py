"""Anomalous rows that wait for feedback."""

from __future__ import annotations

import numpy as np

from detectors.anomaly import feedback_suppression
from outrider.model import EntityKind, EntityRef

GPUS = tuple(EntityRef("lab", EntityKind.GPU, None, f"g{number}") for number in range(4))


def kept_times(pool, entity):
    return pool["aside_at"][pool["aside_of"] == entity.key]


def put_anomalies(pool, rows, times):
    """Puts rows of the anomalous entities aside at each time."""
    flags = np.isin(np.arange(len(GPUS)), rows)
    for at in times:
        feedback_suppression.put_aside(pool, np.ones((len(GPUS), 2), np.float32), GPUS, flags, float(at))


def test_a_long_anomaly_displaces_no_rows_of_other_entities():
    pool = feedback_suppression.empty(2)
    put_anomalies(pool, [1], [0.0])
    put_anomalies(pool, [0], 300.0 * np.arange(1, 2 * feedback_suppression.MOST_ROWS))
    assert kept_times(pool, GPUS[1]).tolist() == [0.0]
    newest = 300.0 * np.arange(1, 2 * feedback_suppression.MOST_ROWS)[-feedback_suppression.MOST_OF_ONE :]
    assert kept_times(pool, GPUS[0]).tolist() == newest.tolist(), "its newest rows, in order of time"


def test_rows_rated_normal_outlast_newer_rows_of_their_entity():
    pool = feedback_suppression.empty(2)
    put_anomalies(pool, [0, 2], [0.0, 300.0])
    pool["aside_fine"] = (pool["aside_of"] == GPUS[0].key) & (pool["aside_at"] == 0.0)
    put_anomalies(pool, [0, 2], 300.0 * np.arange(2, 100))
    assert kept_times(pool, GPUS[0])[0] == 0.0
    assert kept_times(pool, GPUS[0]).size == kept_times(pool, GPUS[2]).size == feedback_suppression.MOST_OF_ONE
    assert 0.0 not in kept_times(pool, GPUS[2])


def test_rows_are_bounded_in_number_and_age():
    pool = feedback_suppression.empty(2)
    put_anomalies(pool, [0, 1, 2, 3], 300.0 * np.arange(200))
    assert pool["aside_at"].size == len(GPUS) * feedback_suppression.MOST_OF_ONE <= feedback_suppression.MOST_ROWS
    put_anomalies(pool, [3], [feedback_suppression.KEPT_SECONDS + 300.0 * 199])
    assert [kept_times(pool, one).size for one in GPUS] == [0, 0, 0, 1]
