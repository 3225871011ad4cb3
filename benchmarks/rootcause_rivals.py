"""Simple root-cause rankers from published baselines, with the same input as our ranker.

Each scores every service by the metric of the symptom: latency or failure ratio. None may name the target, which is
never the cause in PetShop.
"""

from __future__ import annotations

import numpy as np

from detectors.rca.call_excess import Calls, Symptom, quantile
from detectors.rca.call_graph import CallGraph
from outrider.model import Floats
from service.evaluation.rootcause import Answer, RankingInput

RESTART = 0.15  # of a random walk, as in PageRank
ROUNDS = 100
_TINY = 1e-12


def largest_z(case: RankingInput) -> Answer:
    """Ranks by the deviation from the median of the normal window, in interquartile ranges."""
    normal, incident = _metric(case.normal, case.issue.symptom), _metric(case.incident, case.issue.symptom)
    return _best_first(_z(normal, incident), case.target)


def correlation(case: RankingInput) -> Answer:
    """Ranks by correlation with the target's metric, from the step before the incident to its end."""
    return _best_first(_likeness(case), case.target)


def random_walk(case: RankingInput) -> Answer:
    """Ranks by a random walk from the target along calls, weighted by correlation with the target (as MicroRCA)."""
    likeness = np.maximum(_likeness(case), 0.0)
    likeness[case.target] = 0.0
    return _best_first(_walk(case.graph, likeness, case.target), case.target)


def z_along_calls(case: RankingInput) -> Answer:
    """Ranks by correlation x log z, minus 0.9 x the best callee's, plus 0.3 x the best caller's: our first ranker."""
    normal, incident = _metric(case.normal, case.issue.symptom), _metric(case.incident, case.issue.symptom)
    score = np.maximum(_likeness(case), 0.0) * np.log1p(np.maximum(_z(normal, incident, level=0.02), 0.0))
    callee, caller = np.zeros_like(score), np.zeros_like(score)
    np.maximum.at(callee, case.graph.caller, score[case.graph.callee])
    np.maximum.at(caller, case.graph.callee, score[case.graph.caller])
    return _best_first(score - 0.9 * callee + 0.3 * caller, case.target)


RIVALS = {
    "largest z": largest_z,
    "correlation with the target": correlation,
    "random walk": random_walk,
    "correlation x z along calls": z_along_calls,
}


def _metric(calls: Calls, symptom: Symptom) -> Floats:
    return calls.latency_seconds if symptom is Symptom.LATENCY else 1.0 - calls.success_ratio


def _z(normal: Floats, incident: Floats, level: float = 0.0) -> Floats:
    """Returns z-scores of the incident against the normal window, (n,); ``level`` x median is a floor of the scale."""
    median = quantile(normal, 0.5)
    spread = quantile(normal, 0.75) - quantile(normal, 0.25)
    floor = np.maximum(level * np.abs(median), quantile(normal, 0.99) / 4.0 if level else 1e-3)
    known = np.isfinite(incident)
    mean = np.divide(np.where(known, incident, 0.0).sum(axis=1), np.maximum(known.sum(axis=1), 1))
    result: Floats = np.nan_to_num((mean - median) / np.maximum(np.maximum(spread, floor), _TINY))
    return np.where(known.any(axis=1), result, 0.0)


def _likeness(case: RankingInput) -> Floats:
    """Returns the correlation of each service's metric with the target's over all steps, (n,); 0 if unknown."""
    values = np.concatenate([_metric(part, case.issue.symptom) for part in (case.before, case.incident)], axis=1)
    filled = np.where(np.isfinite(values), values, quantile(values, 0.5)[:, None])
    away = np.nan_to_num(filled - filled.mean(axis=1, keepdims=True))
    size = np.sqrt((away**2).sum(axis=1))
    return (away @ away[case.target]) / np.maximum(size * size[case.target], _TINY)


def _walk(graph: CallGraph, likeness: Floats, target: int) -> Floats:
    weight = likeness[graph.callee] + _TINY
    total = np.bincount(graph.caller, weight, minlength=graph.size)
    share = weight / total[graph.caller]
    here = np.zeros(graph.size)
    here[target] = 1.0
    for _ in range(ROUNDS):
        moved = np.bincount(graph.callee, here[graph.caller] * share, minlength=graph.size)
        stays = np.where(total > 0, 0.0, here)  # services without callees
        here = (1.0 - RESTART) * (moved + stays)
        here[target] += RESTART
    return here


def _best_first(score: Floats, target: int) -> Answer:
    order = np.argsort(-score, kind="stable")
    return Answer(tuple((int(number), 0.0) for number in order if number != target))
