"""Root-cause accuracy on a call graph: PetShop's labeled incidents, our ranking against simple rankers.

All traffic folders under ``petshop/`` of the data are scored with the same settings. The results include figures by
part and kind of incident, and the calibration of the confidences. Calibration uses the original incidents and copies
with noise, missing values and missing links.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Result, data_folder, main, result
from benchmarks.rootcause_rivals import RIVALS
from detectors.rca.call_excess import Calls, Symptom
from detectors.rca.call_graph import CallGraph, Ranking, rank
from outrider.vocabulary.reliability import calibration_error, curve
from service.evaluation import rootcause
from service.evaluation.rootcause import Answer, RankedIncident, RankingInput, RootCauseBacktest

TARGETS = {1: 0.75, 3: 0.96}
ENTITIES, LARGE_STEPS, CHAIN = 10_000, 96, [0, 1, 6, 31]
COPIES = 5
# latency noise (standard deviation of its logarithm), share of missing values, share of missing links
SPOILED = (
    *((noise, 0.0, 0.0) for noise in (0.1, 0.2, 0.3)),
    *((0.0, missing, 0.0) for missing in (0.1, 0.2)),
    *((0.0, 0.0, unlinked) for unlinked in (0.1, 0.2)),
)


def run() -> list[Result]:
    """Returns top-1 and top-3 with rivals, seconds per case and on ten thousand entities, and calibration."""
    data = data_folder()
    folders = sorted((data / "petshop").glob("*/")) if data else []
    lines: list[Result] = [_large()]
    if not folders:
        print("rootcause_petshop needs recorded data: --data DIR with petshop/<traffic>/", file=sys.stderr)
        return [
            *(result(f"rootcause_petshop_top{k}", None, "ratio", goal, None) for k, goal in TARGETS.items()),
            *lines,
        ]
    for folder in folders:
        lines = [*_scores(folder), *lines]
    return [*lines, *_reliability(folders)]


def _scores(folder: Path) -> list[Result]:
    ours = rootcause.backtest(folder, timer=time.perf_counter)
    rivals = {name: rootcause.backtest(folder, ranker=ranker) for name, ranker in RIVALS.items()}
    lines = []
    for places, goal in TARGETS.items():
        value = ours.top(places)
        known = {name: results.top(places) for name, results in rivals.items()}
        best = max(known, key=lambda name: known[name])
        lines.append(result(
            f"rootcause_petshop_top{places}", value, "ratio", goal, value >= goal, best, known[best],
            value / known[best] if known[best] else None,
            traffic=folder.name, cases=len(ours.cases), rivals={name: round(each, 3) for name, each in known.items()},
            groups={name: round(ours.top(places, cases), 3) for name, cases in (ours.parts() | ours.kinds()).items()},
            missed=_missed(ours, places),
        ))  # fmt: skip
    seconds = ours.as_dict()["seconds_per_case"]
    return [*lines, result("rootcause_petshop_seconds", seconds, "s/case", None, None, traffic=folder.name)]


def _missed(backtest: RootCauseBacktest, places: int) -> list[dict[str, Any]]:
    return [
        {"case": f"{case.part}/{case.name}", "cause": case.cause, "place": case.place, "named": list(case.named)}
        for case in backtest.cases
        if case.place is None or case.place > places
    ]


def _reliability(folders: Sequence[Path]) -> list[Result]:
    plain = [case for folder in folders for case in rootcause.backtest(folder).cases]
    spoiled: list[RankedIncident] = []
    for number, how in enumerate(SPOILED):
        for copy in range(COPIES):
            random = np.random.default_rng([number, copy])
            ranker = _spoiling(random, *how)
            for folder in folders:
                spoiled += rootcause.backtest(folder, ranker=ranker).cases
    return [_curve("rootcause_calibration_error", plain), _curve("rootcause_calibration_error_spoiled", spoiled)]


def _spoiling(random: np.random.Generator, noise: float, missing: float, unlinked: float) -> Any:
    def spoil(calls: Calls) -> Calls:
        latency = calls.latency_seconds * np.exp(random.normal(0.0, noise, calls.requests.shape))
        lost = [random.random(calls.requests.shape) < missing for _ in range(3)]
        values = (calls.requests, latency, calls.success_ratio)
        return Calls(*(np.where(gone, np.nan, value) for gone, value in zip(lost, values, strict=True)))

    def ranker(case: RankingInput) -> Answer:
        linked = random.random(case.graph.caller.size) >= unlinked
        graph = CallGraph(case.graph.size, case.graph.caller[linked], case.graph.callee[linked])
        worse = replace(case, graph=graph, before=spoil(case.before), incident=spoil(case.incident))
        return rootcause.by_calls(worse)

    return ranker


def _curve(name: str, cases: Sequence[RankedIncident]) -> Result:
    answered = [case for case in cases if case.named]
    bins = curve([case.confidence for case in answered], [case.place == 1 for case in answered])
    shown = [
        {
            "from": one.low,
            "count": one.count,
            "confidence": round(one.confidence, 3),
            "accuracy": round(one.accuracy, 3),
        }
        for one in bins
    ]
    right = sum(case.place == 1 for case in answered) / len(answered)
    return result(
        name, calibration_error(bins), "ratio", None, None, cases=len(cases), top1=round(right, 3), curve=shown
    )


def _large() -> Result:
    """Ranks one incident in a synthetic graph of ten thousand services with five callees each."""
    random = np.random.default_rng(0)
    caller = np.repeat(np.arange(ENTITIES), 5)
    callee = np.minimum(caller * 5 + np.tile(np.arange(1, 6), ENTITIES), ENTITIES - 1)
    graph = CallGraph.of(ENTITIES, zip(caller.tolist(), callee.tolist(), strict=True))
    shape = (ENTITIES, LARGE_STEPS)
    normal = Calls(random.poisson(100, shape) + 1.0, random.lognormal(-3, 0.1, shape), np.ones(shape))
    slow = normal.latency_seconds[:, :20].copy()
    slow[CHAIN] += 0.5
    incident = Calls(normal.requests[:, :20], slow, normal.success_ratio[:, :20])
    begun = time.perf_counter()
    answer = rank(graph, normal, incident, 0, Symptom.LATENCY)
    seconds = time.perf_counter() - begun
    right = isinstance(answer, Ranking) and answer.suspects[0].entity == CHAIN[-1]
    return result("rootcause_large_graph", seconds, "s", None, None, entities=ENTITIES, named_first=right)


if __name__ == "__main__":
    main(run)
