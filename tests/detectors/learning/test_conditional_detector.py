"""Cycles in which GPU detectors query the topology for the class of each GPU."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from detectors.hardware.gpu_memory_excess import GpuMemoryExcessDetector
from detectors.hardware.power_anomaly import PowerAnomalyDetector
from outrider.model import CellStatus, EntityKind, EntityRef, Window
from outrider.topology import Topology

START, STEP = 1_800_000_000.0, 15.0
GPUS = tuple(EntityRef("lab", EntityKind.GPU, None, f"gpu-{number}") for number in range(4))


class CountingTopology:
    """A topology that counts queries of GPUs."""

    def __init__(self) -> None:
        self._topology, self.queries = Topology.build((), GPUS), 0

    def __getattr__(self, name: str) -> object:
        self.queries += name == "affected_by"
        return getattr(self._topology, name)


def class_query_cycles(detector, count):
    """The cycles in which a detector queried the class of every GPU."""
    topology, state, cycles = CountingTopology(), detector.initial(), []
    for cycle in range(count):
        times = START + STEP * np.arange(max(0, cycle - 39), cycle + 1)
        values = np.ones((len(GPUS), times.size, len(detector.keys)))
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        step = timedelta(seconds=STEP)
        window = Window(detector.kind, GPUS, times, detector.keys, values, status, step)
        before = topology.queries
        state, _ = detector.detect(state, window, topology, datetime.fromtimestamp(times[-1], tz=UTC))
        if topology.queries - before == len(GPUS):
            cycles.append(cycle)
    return cycles


def test_detectors_compute_classes_every_five_minutes_in_different_cycles():
    draw, use = (class_query_cycles(detector, 121) for detector in (PowerAnomalyDetector(), GpuMemoryExcessDetector()))
    assert draw == [0, 20, 40, 60, 80, 100, 120]
    assert use == [0, 10, 30, 50, 70, 90, 110]
