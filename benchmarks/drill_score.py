"""Every scenario on each scoring seed: figures of the platform and of rival detectors.

The runs of all seeds are pooled into one table. The peers are rival detectors on the same values
(``benchmarks/fleet/rival_detectors.py``); the best of them is the peer of each figure. ``OUTRIDER_DRILL_SEEDS=11``
restricts the seeds; ``OUTRIDER_QUICK=1`` runs a few scenarios of each type.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, result
from benchmarks.fleet import rival_detectors
from outrider import log
from service.drills import commands, scenario_choice
from service.drills.runner import DrillRun, run_all
from simulator.scenarios import SCORING_SEEDS, TUNING_SEEDS

LIMIT_SECONDS = 600.0  # for the scenarios of one seed
QUICK = ("engine-hung", "gpu-lost", "idle-replica", "gateway-fault-of-all-services")
# figure, unit, goal, True if higher is better
FIGURES: tuple[tuple[str, str, float | None, bool], ...] = (
    ("precision", "ratio", 0.90, True),
    ("recall", "ratio", 0.85, True),
    ("median_delay_seconds", "s", 120.0, False),
    ("p95_delay_seconds", "s", None, False),
    ("ac1", "ratio", 0.85, True),
    ("ac3", "ratio", 0.95, True),
    ("right_abstention", "ratio", 0.90, True),
    ("folding_ratio", "ratio", 0.95, True),
    ("folding_ratio_by_incident", "ratio", None, True),
    ("pairwise_f1", "ratio", 0.90, True),
    ("pairwise_precision", "ratio", None, True),
    ("pairwise_recall", "ratio", None, True),
    ("remediated_ratio", "ratio", 0.90, True),
    ("remediated_ratio_of_endable", "ratio", 0.90, True),
    ("harmful_actions", "actions", 0.0, False),
    ("distinct_incidents_lost", "faults", 0.0, False),
    ("false_pages", "pages", None, False),
    ("false_pages_by_call", "pages", None, False),
    ("second_incidents", "incidents", None, False),
    ("second_pages", "pages", 0.0, False),
    ("false_pages_per_target_day_upper95", "pages/day", None, False),
)


def run() -> list[Result]:
    """Returns one line per figure, and the run time of the slowest seed."""
    log.configure(level="critical")
    quick = os.environ.get("OUTRIDER_QUICK", "") not in ("", "0")
    seeds, seen, seconds = _seeds(), list[DrillRun](), list[float]()
    for seed in seeds:
        started = time.perf_counter()
        seen += run_all(scenario_choice.select(QUICK if quick else None), seed, _tell, compare=rival_detectors.compare)
        seconds.append(time.perf_counter() - started)
    scored = commands.table(seen)
    lines = [_line(scored, *figure) for figure in FIGURES]
    error, curve = scored["calibration_error"], scored["reliability"]
    lines.append(result("drill_calibration_error", error, "ratio", None, None, curve=curve))
    judged = {"by_fault": scored["by_fault"], "beyond_repair": scored["beyond_repair"]}
    lines.append(result("drill_target_days", scored["target_days"], "days", None, None, **judged))
    storms = sum(one.run.storm for one in seen)
    lines.append(result("drill_storms", float(storms), "storms", None, None, by_storm=scored["by_storm"]))
    ran = {"scenarios": scored["scenarios"], "events": scored["events"], "seeds": list(seeds)}
    slowest = max(seconds)
    tuned = any(seed in TUNING_SEEDS for seed in seeds)
    duration = result("drill_seconds", slowest, "s", LIMIT_SECONDS, slowest <= LIMIT_SECONDS, **ran, tuning_seed=tuned)
    return [*lines, duration]


def _seeds() -> tuple[int, ...]:
    written = os.environ.get("OUTRIDER_DRILL_SEEDS", "").replace(",", " ").split()
    return tuple(map(int, written)) or SCORING_SEEDS


def _line(scored: dict[str, Any], name: str, unit: str, goal: float | None, more_is_better: bool) -> Result:
    value = scored[name]
    known = {rival: results[name] for rival, results in scored["baselines"].items() if results[name] is not None}
    best = (max if more_is_better else min)(known, key=lambda rival: known[rival]) if known else None
    against = known[best] if best else None
    holds = None if goal is None or value is None else (value >= goal if more_is_better else value <= goal)
    ratio = None
    if value and against:
        ratio = value / against if more_is_better else against / value
    return result(f"drill_{name}", value, unit, goal, holds, best, against, ratio, rivals=known)


def _tell(stage: str, share: float) -> None:
    print(f"\r{stage} {share:4.0%}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(run)
