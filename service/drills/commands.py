"""What ``outrider drill`` does, as documents for ``-o json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.documents import serialization
from service.drills import dataset, remote_drill, scenario_choice
from service.drills.runner import Progress, Seen, job, quiet_run, run, run_all
from simulator.scenarios import TUNING_SEEDS, Scenario
from simulator.scoring.score import (
    InjectedFault,
    Run,
    Verdict,
    drill_result,
    false_pages_of,
    has_remedy,
    pages_of,
    passed,
    repaired,
    score,
    verdicts,
)


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
        for scenario in scenario_choice.scenarios()
    ]


def run_one(name: str, *, seed: int, load: str | None, progress: Progress) -> dict[str, Any]:
    """``drill run`` on a private platform."""
    scenario = scenario_choice.one(name, load)
    prepared = job(scenario, seed)
    progress("prepare", 1.0)
    seen = run(prepared, lambda share: progress("drills", share))
    return result(scenario, seen, seed)


def run_live(name: str, *, api: str, token: str, seed: int, progress: Progress) -> dict[str, Any]:
    """``drill run --api``: the same on a running platform that watches a simulated fleet."""
    return remote_drill.drill(scenario_choice.one(name), api=api, token=token, seed=seed, progress=progress)


def result(scenario: Scenario, seen: Run, seed: int) -> dict[str, Any]:
    """What became of a run, negative states too: these are passed when nothing loud was opened.

    Of several faults the first one is described, its truth lists the others, and every one of them has to pass.
    """
    if scenario.negative:
        state, figures = scenario.faults[0].fault, score([seen])
        return {
            "fault": state,
            "seed": seed,
            "detected": bool(seen.incidents),
            "detect_seconds": None,
            "named_entity_correct": False,
            "named_fault_correct": False,
            "notified": any(incident.notified_at is not None for incident in seen.incidents),
            "remediated": False,
            "recover_seconds": None,
            "pages": pages_of(seen),
            "false_pages": false_pages_of(seen),
            "passed": figures["right_abstention"] == 1.0,
            "negative": True,
            "truth": {"fault": None, "state": state},
        }
    first, *others = (_truth(verdict.injected) for verdict in verdicts(seen))
    judged = [_judged(verdict) for verdict in verdicts(seen)]
    return {**asdict(drill_result(seen, seed, {**first, "others": others})), "negative": False, "verdicts": judged}


def _judged(verdict: Verdict) -> dict[str, Any]:
    """What was named for a fault, and whether it had to be put right and was."""
    incident = verdict.incident
    entity, fault = incident.hypotheses[0] if incident and incident.hypotheses else (None, None)
    return {
        "fault": verdict.injected.fault,
        "named": None if entity is None else {"fault": fault, "entity": serialization.entity(entity)},
        "has_remedy": has_remedy(verdict.injected.fault),
        "remediated": repaired(verdict),
        "passed": passed(verdict),
    }


def _truth(injected: InjectedFault) -> dict[str, Any]:
    return {
        "fault": injected.fault,
        "entity": serialization.entity(injected.entity),
        "start": serialization.instant(injected.start),
        "end": serialization.instant(injected.end),
    }


def score_all(*, seed: int, only: Sequence[str] | None, workers: int, progress: Progress) -> dict[str, Any]:
    """``drill score``: the figures of every scenario."""
    seen = run_all(scenario_choice.some(only), seed, progress, workers=workers)
    return {"seed": seed, "tuning_seed": seed in TUNING_SEEDS, **table(seen)}


def table(seen: Sequence[Seen]) -> dict[str, Any]:
    """The pooled figures of these runs, of one or more seeds, and those of the compared detectors."""
    found = score([one.run for one in seen])
    names = list(seen[0].rivals) if seen else []
    if names:
        found["baselines"] = {name: _short(score([one.rivals[name] for one in seen])) for name in names}
    return found


def _short(figures: Mapping[str, Any]) -> dict[str, Any]:
    left_out = ("by_fault", "by_storm", "calibration_error", "reliability")
    return {name: value for name, value in figures.items() if name not in left_out}


def export(folder: Path, *, seed: int, only: Sequence[str] | None, workers: int, progress: Progress) -> dict[str, Any]:
    """``drill export``."""
    chosen = scenario_choice.some(only)
    with dataset.filling(folder):
        dataset.write_quiet(folder, quiet_run(seed))
        seen = run_all(chosen, seed, progress, workers=workers, folder=folder)
        return dataset.write_index(folder, chosen, [one.run for one in seen], seed)
