"""Rival detectors of the drill benchmark: how long a flag must last, and the entity a static rule names."""

from __future__ import annotations

import numpy as np

from benchmarks.fleet import rival_detectors
from outrider.model import EntityKind, EntityRef, SignalKey
from service.drills.recording import Matrix, RecordedRun


def test_flags_must_last() -> None:
    flags = np.array([[1, 1], [1, 0], [0, 1], [1, 1]], dtype=bool)
    assert rival_detectors.lasting(flags, 2).tolist() == [[False, False], [True, False], [False, False], [False, True]]


def test_a_static_rule_names_the_entity_that_crosses_it() -> None:
    gpus = tuple(EntityRef("c", EntityKind.GPU, None, name) for name in ("a", "b"))
    values = np.full((6, 2, 1), 60.0)
    values[2:5, 1] = 90.0
    key = SignalKey("hw_accel_temperature_celsius")
    matrix = Matrix(np.arange(6) * 15.0, gpus, (key,), values)
    recorded = RecordedRun({EntityKind.GPU: matrix}, ())
    (result,) = rival_detectors.incidents("static thresholds", recorded, recorded)
    assert result.hypotheses == ((gpus[1], "gpu-thermal-throttle"),)
    assert result.opened_at.timestamp() == 45.0
