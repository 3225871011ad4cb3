"""One scoring tick of 10,000 targets x 40 features on one core.

A tick reads the newest slot of a window, builds residual features, scores the forest and the seasonal
ensemble, learns, and reports. The catalogue's signals of a replica are the inputs: the forest makes
three residuals of each, so 14 signals are 42 features; the seasonal detector judges the same 14.
The peer is scikit-learn's forest alone on a ready matrix of the same shape.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core is the promise

import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from sklearn.ensemble import IsolationForest

from benchmarks.common import Result, best_of, main, result
from detectors.isolation import SUBSAMPLE, TREES, IsolationDetector
from detectors.seasonal import SeasonalDetector
from outrider import catalog
from outrider.clock import from_unix
from outrider.model import DetectorState, EntityKind, EntityRef, Floats, SignalKind, Window
from outrider.ports import Detector
from outrider.topology import Topology

TARGET = 0.30
ENTITIES, FEATURES, SIGNALS, SLOTS, TICKS = 10_000, 42, 14, 42, 7
STEP = timedelta(seconds=15)
START = datetime(2026, 11, 18, 10, tzinfo=UTC)


class _Feed:
    """Windows that move on by one slot a tick."""

    def __init__(self, signals: list[str], detector: Detector) -> None:
        self._random = np.random.default_rng(3)
        self.keys, self.signals = detector.keys, signals
        self.entities = tuple(EntityRef("bench", EntityKind.GPU, None, f"gpu-{n:05}") for n in range(ENTITIES))
        self._level = self._random.uniform(10.0, 100.0, (ENTITIES, 1, len(self.keys)))

    def window(self, end: float, slots: int, step: timedelta) -> Window:
        """``slots`` slots up to an instant, with some noise around each entity's own level."""
        shape = (ENTITIES, slots, len(self.keys))
        values: Floats = self._level * (1.0 + 0.05 * self._random.standard_normal(shape))
        times = end - step.total_seconds() * np.arange(slots - 1, -1, -1)
        status = np.zeros(shape, dtype=np.uint8)
        return Window(EntityKind.GPU, self.entities, times, self.keys, values, status, step)


def _topology(entities: tuple[EntityRef, ...]) -> Topology:
    """A hundred services of a hundred devices each."""
    services = [EntityRef("bench", EntityKind.SERVICE, "serving", f"service-{n:03}") for n in range(100)]
    return Topology.build([(one, services[place % 100]) for place, one in enumerate(entities)])


def _ticks(detector: IsolationDetector | SeasonalDetector, signals: list[str]) -> float:
    """Median seconds of a warm tick."""
    feed, end = _Feed(signals, detector), START.timestamp()
    topology = _topology(feed.entities)
    state: DetectorState = detector.warm(detector.initial(), feed.window(end - 15.0 * SLOTS, 130, timedelta(minutes=5)))
    window = feed.window(end, SLOTS, STEP)
    seconds = []
    for number in range(TICKS + 2):
        at = end + 15.0 * number
        values = np.roll(window.values, -1, axis=1)
        values[:, -1] = feed.window(at, 1, STEP).values[:, 0]
        window = Window(EntityKind.GPU, feed.entities, window.times + 15.0, feed.keys, values, window.status, STEP)
        begun = time.perf_counter()
        state, _ = detector.detect(state, window, topology, from_unix(float(window.times[-1])))
        seconds.append(time.perf_counter() - begun)
    assert state.arrays.get("fitted", np.ones(1)).shape[0], "the forest was never fitted"
    return statistics.median(seconds[2:])


def run() -> list[Result]:
    """Seconds of one tick of the forest and the seasonal ensemble."""
    known = [one for one in catalog.signals().values() if one.entity is EntityKind.GPU]
    signals = [one.name for one in known if one.kind is SignalKind.GAUGE][:SIGNALS]
    assert len(signals) == SIGNALS
    forest = _ticks(IsolationDetector(EntityKind.GPU, signals), signals)
    seasonal = _ticks(SeasonalDetector(EntityKind.GPU, signals), signals)
    random = np.random.default_rng(4)
    bare = IsolationForest(n_estimators=TREES, max_samples=SUBSAMPLE, random_state=1)
    bare.fit(random.standard_normal((4096, FEATURES)).astype(np.float32))
    rows = random.standard_normal((ENTITIES, FEATURES)).astype(np.float32)
    peer = best_of(3, lambda: bare.score_samples(rows))
    total = forest + seasonal
    return [
        result("detect_tick", total, "s", TARGET, total <= TARGET, "scikit-learn forest alone", peer, peer / total,
               isolation_seconds=round(forest, 4), seasonal_seconds=round(seasonal, 4)),
    ]  # fmt: skip


if __name__ == "__main__":
    main(run)
