"""Event F1, false alarms, delay and VUS-PR on labeled servers (ASD, 5 min), compared with rival detectors.

Uses the default configuration with an alarm budget of 0.25 per entity-day. Data: ``servers/``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import detect_peers
from benchmarks.common import Result, data_folder, main, result
from service.evaluation import detection, recordings

BUDGET, STEP_SECONDS = 0.25, 300.0
# figure, unit, goal, True if higher is better
FIGURES: tuple[tuple[str, str, float | None, bool], ...] = (
    ("event_f1", "ratio", 0.60, True),
    ("precision", "ratio", None, True),
    ("recall", "ratio", None, True),
    ("false_alarms_per_day", "1/day", 0.12, False),
    ("median_delay_seconds", "s", 1500.0, False),
    ("vus_pr", "ratio", 0.57, True),
)


def run() -> list[Result]:
    """Returns one line per figure, with the best rival first and then all rivals."""
    folder = data_folder()
    if folder is None or not (folder / "servers").is_dir():
        return [result("detect_servers", None, "ratio", 0.60, None, missing="servers/ below --data or $OUTRIDER_DATA")]
    read = recordings.servers(folder / "servers", STEP_SECONDS)
    begun = time.perf_counter()
    ours = detection.figures(detection.judge_servers(read, STEP_SECONDS, BUDGET, lambda _stage, _share: None))
    seconds = time.perf_counter() - begun
    rivals: dict[str, dict[str, Any]] = {}
    for name in detect_peers.RIVALS:
        judged = detect_peers.judged(name, read, STEP_SECONDS, BUDGET)
        if judged is not None:
            rivals[name] = detection.figures(judged)
    lines = [_line(ours, rivals, *figure) for figure in FIGURES]
    share = ours["false_alarms_per_day"] / BUDGET
    lines.append(result("detect_servers_realised_of_budget", share, "ratio", 2.0, 0.3 <= share <= 2.0, at_least=0.3))
    lines.append(result("detect_servers_seconds", seconds, "s", None, None, entities=ours["entities"]))
    return lines


def _line(
    ours: dict[str, Any], rivals: dict[str, dict[str, Any]], name: str, unit: str, goal: float | None, more: bool
) -> Result:
    value = ours[name]
    known = {rival: results[name] for rival, results in rivals.items() if results[name] is not None}
    best = (max if more else min)(known, key=lambda rival: known[rival]) if known else None
    against = known[best] if best else None
    holds = None if goal is None or value is None else (value >= goal if more else value <= goal)
    ratio = None
    if value and against:
        ratio = value / against if more else against / value
    return result(f"detect_servers_{name}", value, unit, goal, holds, best, against, ratio, rivals=known)


if __name__ == "__main__":
    main(run)
