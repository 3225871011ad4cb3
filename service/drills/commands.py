"""Commands of ``outrider drill``, with results as documents for ``-o json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from outrider.documents import serialization
from service.config.settings import Settings
from service.drills import dataset, remote_drill, scenario_choice
from service.drills.cluster.drill import ClusterDrill, Order
from service.drills.runner import DrillRun, Progress, job, quiet_run, run, run_all
from simulator.scenarios import TUNING_SEEDS, Scenario
from simulator.scoring.run import InjectedFault, Run
from simulator.scoring.score import (
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


def list_scenarios() -> list[dict[str, Any]]:
    """Returns the JSON of ``drill list``."""
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
    """Returns the JSON of ``drill run`` on a private platform."""
    scenario = scenario_choice.find(name, load)
    prepared = job(scenario, seed)
    progress("prepare", 1.0)
    finished = run(prepared, lambda share: progress("drills", share))
    return result(scenario, finished, seed)


def run_live(name: str, *, api: str, token: str, seed: int, progress: Progress) -> dict[str, Any]:
    """Returns the JSON of ``drill run --api``: the drill on a running platform that monitors a simulated fleet."""
    return remote_drill.drill(scenario_choice.find(name), api=api, token=token, seed=seed, progress=progress)


def run_on_cluster(order: Order, settings: Settings, *, api: str, token: str, progress: Progress) -> dict[str, Any]:
    """Returns the JSON of ``drill run --kubernetes --apply``: a fault on a real namespace, scored by its platform."""
    client = remote_drill.Api(api, token)
    cluster = settings.cluster_of(settings.drill.kubernetes)
    return _cluster_drill(settings).run(order, api=client, cluster=cluster, progress=progress)


def plan_on_cluster(order: Order, settings: Settings) -> dict[str, Any]:
    """Returns the JSON of ``drill run --kubernetes`` without ``--apply``: the exact requests."""
    return _cluster_drill(settings).plan(order)


def restore_cluster(namespace: str, settings: Settings) -> dict[str, Any]:
    """Returns the JSON of ``drill run --kubernetes --restore``."""
    return _cluster_drill(settings).restore(namespace)


def _cluster_drill(settings: Settings) -> ClusterDrill:
    return ClusterDrill(*settings.drill.kubernetes.server(), longest=settings.drill.longest)


def result(scenario: Scenario, run: Run, seed: int) -> dict[str, Any]:
    """Returns the result of a run. A negative scenario passes if no incident of high priority opened.

    With several faults, the result describes the first and its truth lists the others. All of them must pass.
    """
    if scenario.negative:
        state, figures = scenario.faults[0].fault, score([run])
        return {
            "fault": state,
            "seed": seed,
            "detected": bool(run.incidents),
            "detect_seconds": None,
            "named_entity_correct": False,
            "named_fault_correct": False,
            "notified": any(incident.notified_at is not None for incident in run.incidents),
            "remediated": False,
            "recover_seconds": None,
            "pages": pages_of(run),
            "false_pages": false_pages_of(run),
            "passed": figures["right_abstention"] == 1.0,
            "negative": True,
            "truth": {"fault": None, "state": state},
        }
    first, *others = (_truth(verdict.injected) for verdict in verdicts(run))
    results = [_verdict(verdict) for verdict in verdicts(run)]
    return {**asdict(drill_result(run, seed, {**first, "others": others})), "negative": False, "verdicts": results}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """Returns the suspected cause of a fault, and its remedy if it has one."""
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
    """Returns the JSON of ``drill score``: the figures of every scenario."""
    runs = run_all(scenario_choice.select(only), seed, progress, workers=workers)
    return {"seed": seed, "tuning_seed": seed in TUNING_SEEDS, **table(runs)}


def table(runs: Sequence[DrillRun]) -> dict[str, Any]:
    """Returns the pooled figures of runs of one or more seeds, and those of the compared detectors."""
    figures = score([drill.run for drill in runs])
    names = list(runs[0].rivals) if runs else []
    if names:
        figures["baselines"] = {name: _short(score([drill.rivals[name] for drill in runs])) for name in names}
    return figures


def _short(figures: Mapping[str, Any]) -> dict[str, Any]:
    left_out = ("by_fault", "by_storm", "calibration_error", "reliability")
    return {name: value for name, value in figures.items() if name not in left_out}


def export(folder: Path, *, seed: int, only: Sequence[str] | None, workers: int, progress: Progress) -> dict[str, Any]:
    """Writes the data set of ``drill export``. Returns its JSON."""
    chosen = scenario_choice.select(only)
    with dataset.filling(folder):
        dataset.write_quiet(folder, quiet_run(seed))
        runs = run_all(chosen, seed, progress, workers=workers, folder=folder)
        return dataset.write_index(folder, chosen, [drill.run for drill in runs], seed)
