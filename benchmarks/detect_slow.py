"""Level shifts and slow leaks added to real recordings: detected share, delay, false alarms.

The recordings are servers (ASD, 5 min). Every sixth metric is monitored, with one other metric as its load. A shift
moves a metric permanently by 0.3 of the range of its last week; a leak adds as much per day. Each is added to a copy
of the recording after its training part, at a random time; labels are not used. A finding in an unchanged recording
counts as false, even in a labeled incident. The rival is the z-score of a metric against its last week: three
readings beyond three standard deviations. ``OUTRIDER_QUICK=1`` runs one server.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Result, data_folder, main, quick, result
from detectors.anomaly.drift import DriftDetector
from detectors.anomaly.level_shift import LevelShiftDetector
from outrider.clock import from_unix
from outrider.model import EntityKind, EntityRef, Finding, Floats, Window
from outrider.topology import Topology
from service.evaluation import recordings

STEP, DAY = 300.0, 288
BEGIN = 1_800_000_000.0
PAST, LASTS = 10 * DAY, 4 * DAY  # learning period, then scored period
SIZE = 0.3  # of the range of the last week
EVERY = 6
SIGNAL, LOAD = "hw_accel_memory_used_bytes", "hw_accel_utilization_ratio"
BYTES = 1e12  # value of a metric of 1; makes the floor of the unit negligible
Z_LIMIT, Z_READINGS = 3.0, 3
Make = Callable[[EntityKind, tuple[str, ...], str], LevelShiftDetector | DriftDetector]


@dataclass(frozen=True, slots=True)
class Score:
    """Result of one detector: detected share, delay, and false alarms per metric and day."""

    found: float
    delay_hours: float | None
    false_per_day: float


def _cases() -> tuple[Floats, Floats, NDArray[np.intp]]:
    """Returns metrics (cases, times), their loads, and the start index of each addition."""
    folder = data_folder()
    assert folder is not None
    rows, loads = [], []
    for server in recordings.servers(folder / "servers", STEP)[: 1 if quick() else None]:
        part = server.values[server.train - PAST : server.train + LASTS]
        for metric in range(0, part.shape[1] - 1, EVERY):
            rows.append(part[:, metric])
            loads.append(part[:, metric + 1])
    begins = PAST + np.random.default_rng(7).integers(6, DAY, len(rows))
    return 1.0 + np.array(rows), np.array(loads), begins


def _ours(make: Make, values: Floats, loads: Floats) -> NDArray[np.bool_]:
    """Returns True if a finding is open at a reading, shape (cases, scored readings)."""
    detector = make(EntityKind.GPU, (SIGNAL,), LOAD)
    columns = {SIGNAL: BYTES * values, LOAD: loads}
    plane = np.stack([columns.get(key.name, np.full(values.shape, np.nan)) for key in detector.keys], axis=2)
    status = np.where(np.isnan(plane), 4, 0).astype(np.uint8)
    # each metric is its own class: servers are not peers, and one case must not explain another
    entities = tuple(EntityRef("bench", EntityKind.GPU, None, f"case-{row:03}") for row in range(values.shape[0]))
    times = BEGIN + STEP * np.arange(float(values.shape[1]))
    alarms = np.zeros((values.shape[0], values.shape[1] - PAST), dtype=np.bool_)
    for row, entity in enumerate(entities):

        def part(shown: slice, row: int = row, entity: EntityRef = entity) -> Window:
            own = slice(row, row + 1)
            return Window(
                EntityKind.GPU, (entity,), times[shown], detector.keys, plane[own, shown], status[own, shown],
                timedelta(seconds=STEP),
            )  # fmt: skip

        state = detector.warm(detector.initial(), part(slice(0, PAST)))
        for slot in range(PAST, times.size):
            window = part(slice(slot - 1, slot + 1))
            state, results = detector.detect(state, window, Topology.build(()), from_unix(float(times[slot])))
            alarms[row, slot - PAST] = any(isinstance(one, Finding) for one in results)
    return alarms


def _z_score(values: Floats) -> NDArray[np.bool_]:
    alarms = np.zeros((values.shape[0], values.shape[1] - PAST), dtype=np.bool_)
    run = np.zeros(values.shape[0], dtype=np.intp)
    for slot in range(PAST - Z_READINGS, values.shape[1]):
        past = values[:, slot - 7 * DAY : slot]
        far = np.abs(values[:, slot] - past.mean(axis=1)) > Z_LIMIT * np.maximum(past.std(axis=1), 1e-9)
        run = np.where(far, run + 1, 0)
        if slot >= PAST:
            alarms[:, slot - PAST] = run >= Z_READINGS
    return alarms


def _score(bare: NDArray[np.bool_], added: NDArray[np.bool_], begins: NDArray[np.intp]) -> Score:
    """Scores one detector: an alarm detects an addition if it starts later and the unchanged recording lacks it."""
    delays = []
    for row, begin in enumerate(begins - PAST):
        fresh = np.flatnonzero(added[row, begin:] & ~bare[row, begin:])
        if fresh.size:
            delays.append(float(fresh[0]) * STEP / 3600.0)
    begun = (bare[:, 1:] & ~bare[:, :-1]).sum() + bare[:, 0].sum()
    delay = float(np.median(delays)) if delays else None
    return Score(len(delays) / begins.size, delay, float(begun) / (bare.size / DAY))


def run() -> list[Result]:
    """Returns detected share, median delay, and false alarms per metric and day, with those of the z-score."""
    folder = data_folder()
    if folder is None or not (folder / "servers").is_dir():
        return [result("detect_shift", None, "ratio", 0.5, None, missing="servers/ below --data or $OUTRIDER_DATA")]
    values, loads, begins = _cases()
    spread = SIZE * np.ptp(values[:, PAST - 7 * DAY : PAST], axis=1)[:, None]
    since = np.arange(values.shape[1]) - begins[:, None]
    moves = spread > 0
    lines = []
    shapes: tuple[tuple[str, Make, Floats], ...] = (
        ("shift", LevelShiftDetector, np.where(since >= 0, spread, 0.0)),
        ("leak", DriftDetector, np.maximum(since, 0) / DAY * spread),
    )
    alive = moves[:, 0]
    for name, make, added in shapes:
        worse = (values + added)[alive]
        bare, more = (_ours(make, shown, loads[alive]) for shown in (values[alive], worse))
        ours = _score(bare, more, begins[alive])
        rival = _score(_z_score(values[alive]), _z_score(worse), begins[alive])
        lines += _lines(name, ours, rival, int(alive.sum()))
    return lines


def _lines(name: str, ours: Score, rival: Score, cases: int) -> list[Result]:
    peer = "z-score of a week"
    ratios = (
        ours.found / rival.found if rival.found else None,
        rival.delay_hours / ours.delay_hours if ours.delay_hours and rival.delay_hours else None,
        rival.false_per_day / ours.false_per_day if ours.false_per_day else None,
    )
    return [
        result(f"detect_{name}_found", ours.found, "ratio", None, None, peer, rival.found, ratios[0], cases=cases),
        result(f"detect_{name}_delay", ours.delay_hours, "h", None, None, peer, rival.delay_hours, ratios[1]),
        result(
            f"detect_{name}_false_per_day", ours.false_per_day, "1/day", 0.25, ours.false_per_day <= 0.25, peer,
            rival.false_per_day, ratios[2],
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(run)
