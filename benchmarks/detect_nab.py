"""The Numenta Anomaly Benchmark, standard profile, with the shipped configuration. Data: ``nab/``.

The peer is the per-point z-score against an expanding mean and deviation, alarming beyond four.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Result, data_folder, main, result
from outrider.model import Floats
from service.evaluation import detection, nab, recordings

GOAL = 55.0
Z_LIMIT = 4.0


def expanding_z(values: Floats) -> Floats:
    """Returns the z-score of each value against all values before it; shape of ``values`` (times,)."""
    count = np.arange(values.size)
    safe = np.maximum(count, 1)
    before = np.concatenate(([0.0], np.cumsum(values)[:-1])) / safe
    square = np.concatenate(([0.0], np.cumsum(values**2)[:-1])) / safe
    spread = np.sqrt(np.maximum(square - before**2, 1e-18))
    results: Floats = np.where(count > 1, np.abs(values - before) / spread, 0.0)
    return results


def run() -> list[Result]:
    """Returns the score with its parts, and the score of a plain z-score."""
    folder = data_folder()
    if folder is None or not (folder / "nab").is_dir():
        return [result("detect_nab", None, "points", GOAL, None, missing="nab/ below --data or $OUTRIDER_DATA")]
    read = recordings.nab(folder / "nab")
    begun = time.perf_counter()
    judged = detection.judge_nab(read, detection.BUDGET, lambda _stage, _share: None)
    seconds = time.perf_counter() - begun
    counts = {one.name: nab.count(nab.spaced(judged[one.name].points), nab.windows(one.labels)) for one in read}
    ours = nab.total(counts.values())
    plain = nab.total(
        nab.count(nab.spaced(expanding_z(one.values[:, 0]) > Z_LIMIT), nab.windows(one.labels)) for one in read
    )
    score, peer = ours.score or 0.0, plain.score or 0.0
    ratio = score / peer if peer > 0 else None
    worst = sorted(counts, key=lambda name: counts[name].raw)[:8]
    return [
        result("detect_nab", score, "points", GOAL, score >= GOAL, "expanding z-score", peer, ratio,
               windows=ours.windows, found=ours.found, false_alarms=ours.false_alarms, seconds=round(seconds, 1),
               worst={name: round(counts[name].raw, 2) for name in worst}),
    ]  # fmt: skip


if __name__ == "__main__":
    main(run)
