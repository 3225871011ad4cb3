"""Every scenario once, on an unseen seed: what our detectors find, name and repair, and what simple ones do.

The peers are rival detectors on the very same values (``service/drills/yardsticks.py``); the best of them
stands beside each figure. The seed is none of those used for tuning.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, result
from outrider import log
from service.drills import commands

SEED = int(os.environ.get("OUTRIDER_DRILL_SEED", "11"))
LIMIT_SECONDS = 600.0
# figure, unit, goal, True when more is better
FIGURES: tuple[tuple[str, str, float | None, bool], ...] = (
    ("precision", "ratio", 0.90, True),
    ("recall", "ratio", 0.85, True),
    ("median_delay_seconds", "s", 120.0, False),
    ("p95_delay_seconds", "s", None, False),
    ("ac1", "ratio", None, True),
    ("ac3", "ratio", None, True),
    ("right_abstention", "ratio", None, True),
    ("folding_ratio", "ratio", None, True),
    ("remediated_ratio", "ratio", 0.90, True),
    ("distinct_incidents_lost", "faults", None, False),
    ("false_pages", "pages", None, False),
)


def run() -> list[Result]:
    """One line a figure, and the time it took."""
    log.configure(level="critical")
    started = time.perf_counter()
    scored = commands.score_all(seed=SEED, only=None, workers=2, baselines=True, progress=_tell)
    seconds = time.perf_counter() - started
    rivals = scored["baselines"]
    lines = [_line(scored, rivals, *figure) for figure in FIGURES]
    events = {"scenarios": scored["scenarios"], "events": scored["events"], "seed": SEED}
    took = result("drill_seconds", seconds, "s", LIMIT_SECONDS, seconds <= LIMIT_SECONDS, **events)
    return [*lines, took]


def _line(
    scored: dict[str, Any], rivals: dict[str, Any], name: str, unit: str, goal: float | None, more_is_better: bool
) -> Result:
    value = scored[name]
    known = {rival: found[name] for rival, found in rivals.items() if found[name] is not None}
    best = (max if more_is_better else min)(known, key=lambda rival: known[rival]) if known else None
    against = known[best] if best else None
    holds = None if goal is None or value is None else (value >= goal if more_is_better else value <= goal)
    ratio = None
    if value and against:
        ratio = value / against if more_is_better else against / value
    shown = float("nan") if value is None else float(value)
    return result(f"drill_{name}", shown, unit, goal, holds, best, against, ratio)


def _tell(stage: str, share: float) -> None:
    print(f"\r{stage} {share:4.0%}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(run)
