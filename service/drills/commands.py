"""What ``outrider drill`` does, as documents for ``-o json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider import jsonable
from service.drills import choose, dataset, live
from service.drills.run import Progress, job, run, run_all
from simulator.scenarios import Scenario
from simulator.score import Run, drill_result, false_pages_of, pages_of, score


def listed() -> list[dict[str, Any]]:
    """``drill list``."""
    return [
        {
            "id": scenario.id,
            "faults": [planned.fault for planned in scenario.faults],
            "negative": scenario.negative,
            "storm": scenario.storm,
            "load": scenario.load,
            "minutes": scenario.minutes,
            "note": scenario.note,
        }
        for scenario in choose.scenarios()
    ]


def run_one(name: str, *, seed: int, load: str | None, progress: Progress) -> dict[str, Any]:
    """``drill run`` on a private platform."""
    scenario = choose.one(name, load)
    prepared = job(scenario, seed)
    progress("prepare", 1.0)
    seen = run(prepared, lambda share: progress("drills", share))
    return result(scenario, seen, seed)


def run_live(name: str, *, api: str, token: str, seed: int, progress: Progress) -> dict[str, Any]:
    """``drill run --api``: the same on a running platform that watches a simulated fleet."""
    return live.drill(choose.one(name), api=api, token=token, seed=seed, progress=progress)


def result(scenario: Scenario, seen: Run, seed: int) -> dict[str, Any]:
    """What became of a run, negative states too: these are passed when nothing loud was opened."""
    fault = scenario.faults[0].fault
    if scenario.negative:
        figures = score([seen])
        return {
            "fault": fault,
            "seed": seed,
            "detected": bool(seen.incidents),
            "detect_seconds": None,
            "named_entity_correct": False,
            "named_fault_correct": False,
            "notified": pages_of(seen) > 0,
            "remediated": False,
            "recover_seconds": None,
            "pages": pages_of(seen),
            "false_pages": false_pages_of(seen),
            "passed": figures["right_abstention"] == 1.0,
            "negative": True,
            "truth": {"fault": None, "state": fault},
        }
    first = min(seen.injected, key=lambda one: one.start)
    truth = {
        "fault": first.fault,
        "entity": jsonable.entity(first.entity),
        "start": jsonable.instant(first.start),
        "end": jsonable.instant(first.end),
    }
    return {**asdict(drill_result(seen, fault, seed, truth)), "negative": False}


def score_all(
    *, seed: int, only: Sequence[str] | None, workers: int, baselines: bool, progress: Progress
) -> dict[str, Any]:
    """``drill score``: every scenario, and simple detectors on the same runs."""
    runs = run_all(choose.some(only), seed, progress, workers=workers, rivals=baselines)
    found = {"seed": seed, **score([one.run for one in runs])}
    if baselines:
        names = list(runs[0].rivals) if runs else []
        found["baselines"] = {name: _short(score([one.rivals[name] for one in runs])) for name in names}
    return found


def _short(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in figures.items() if name != "by_fault"}


def export(folder: Path, *, seed: int, only: Sequence[str] | None, workers: int, progress: Progress) -> dict[str, Any]:
    """``drill export``."""
    chosen = choose.some(only)
    dataset.make_folder(folder)
    seen = run_all(chosen, seed, progress, workers=workers, folder=folder)
    return dataset.write_index(folder, chosen, [one.run for one in seen], seed)
