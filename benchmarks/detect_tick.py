"""One scoring tick of 10,000 targets x 40 features on one core.

A tick is a cycle that closes a slot. The ensemble folds the slot's twenty columns into a reading and computes four
residuals of each of ten signals (40 features). Its six members score them, then it learns and reports. The seasonal
detector scores the same ten signals. Four of five cycles close no slot; their time is reported separately. The peer is
scikit-learn's isolation forest alone on a prepared matrix of the same shape.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the target is for one core

import statistics
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from sklearn.ensemble import IsolationForest

from benchmarks.common import Result, best_of, main, result
from detectors.anomaly.multivariate import SLOT_SECONDS, MultivariateDetector
from detectors.anomaly.seasonal import SeasonalDetector
from detectors.statistics.ensemble_members import SUBSAMPLE, TREES
from outrider.clock import from_unix
from outrider.model import DetectorState, EntityKind, EntityRef, Floats, SignalKind, Window
from outrider.ports import Detector
from outrider.topology import Topology
from outrider.vocabulary import catalog

TARGET = 0.30
ENTITIES, FEATURES, SIGNALS, SLOTS, TICKS = 10_000, 40, 10, 42, 5
STEP = timedelta(seconds=15)
START = datetime(2026, 11, 18, 10, tzinfo=UTC)


class _Feed:
    """Windows that advance by one slot per tick."""

    def __init__(self, signals: list[str], detector: Detector) -> None:
        self._random = np.random.default_rng(3)
        self.keys, self.signals = detector.keys, signals
        self.entities = tuple(EntityRef("bench", EntityKind.GPU, None, f"gpu-{n:05}") for n in range(ENTITIES))
        self._level = self._random.uniform(10.0, 100.0, (ENTITIES, 1, len(self.keys)))

    def window(self, end: float, slots: int, step: timedelta) -> Window:
        """Returns ``slots`` slots up to ``end``, with noise around each entity's own level."""
        shape = (ENTITIES, slots, len(self.keys))
        values: Floats = self._level * (1.0 + 0.05 * self._random.standard_normal(shape))
        times = end - step.total_seconds() * np.arange(slots - 1, -1, -1)
        status = np.zeros(shape, dtype=np.uint8)
        return Window(EntityKind.GPU, self.entities, times, self.keys, values, status, step)


def _topology(entities: tuple[EntityRef, ...]) -> Topology:
    """Returns services with a hundred devices each."""
    services = [EntityRef("bench", EntityKind.SERVICE, "serving", f"service-{n:03}") for n in range(100)]
    return Topology.build([(one, services[place % 100]) for place, one in enumerate(entities)])


def _ticks(
    detector: MultivariateDetector | SeasonalDetector, signals: list[str], every: float
) -> tuple[float, float, int]:
    """Returns median seconds of warm ticks at multiples of ``every`` seconds and of the others; bytes per entity."""
    feed, end = _Feed(signals, detector), START.timestamp()
    topology = _topology(feed.entities)
    state: DetectorState = detector.warm(detector.initial(), feed.window(end - 15.0 * SLOTS, 160, timedelta(minutes=5)))
    window = feed.window(end - 15.0 * SLOTS, SLOTS, STEP)
    whole: list[float] = []
    between: list[float] = []
    steps = int(every / 15.0)
    for number in range(SLOTS + TICKS * steps):
        values = np.roll(window.values, -1, axis=1)
        values[:, -1] = feed.window(end, 1, STEP).values[:, 0]
        window = Window(EntityKind.GPU, feed.entities, window.times + 15.0, feed.keys, values, window.status, STEP)
        begun = time.perf_counter()
        state, _ = detector.detect(state, window, topology, from_unix(float(window.times[-1])))
        elapsed = time.perf_counter() - begun
        if number >= SLOTS:
            (between if window.times[-1] % every else whole).append(elapsed)
    assert state.arrays.get("fitted", np.ones(1)).shape[0], "the ensemble members were never fitted"
    size = sum(array.nbytes for array in state.arrays.values() if array.shape[:1] == (ENTITIES,)) // ENTITIES
    return statistics.median(whole), statistics.median(between) if between else 0.0, size


def run() -> list[Result]:
    """Returns the seconds of one tick of the ensemble and the seasonal detector."""
    known = [signal for signal in catalog.signals().values() if signal.entity is EntityKind.GPU]
    signals = [one.name for one in known if one.kind is SignalKind.GAUGE][:SIGNALS]
    assert len(signals) == SIGNALS
    ensemble, between, size = _ticks(MultivariateDetector(EntityKind.GPU, signals), signals, SLOT_SECONDS)
    seasonal, _, seasonal_size = _ticks(SeasonalDetector(EntityKind.GPU, signals), signals, 15.0)
    random = np.random.default_rng(4)
    bare = IsolationForest(n_estimators=TREES, max_samples=SUBSAMPLE, random_state=1)
    bare.fit(random.standard_normal((4096, FEATURES)).astype(np.float32))
    rows = random.standard_normal((ENTITIES, FEATURES)).astype(np.float32)
    peer = best_of(3, lambda: bare.score_samples(rows))
    total = ensemble + seasonal
    return [
        result("detect_tick", total, "s", TARGET, total <= TARGET, "scikit-learn forest alone", peer, peer / total,
               ensemble_seconds=round(ensemble, 4), seasonal_seconds=round(seasonal, 4),
               cycle_between_seconds=round(between + seasonal, 4), bytes_an_entity=size + seasonal_size),
    ]  # fmt: skip


if __name__ == "__main__":
    main(run)
