"""Rival detectors on the same recordings: common alternatives, with a threshold fitted to the same history.

Each learns from the training part only and scores both parts. Its threshold is the score that spends the alarm budget
on the training part. ``river`` and ``pyod`` are included if installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import IsolationForest

from outrider.model import Floats
from service.evaluation import events
from service.evaluation.detection import ScoredRecording
from service.evaluation.recordings import Recording

Scores = list[Floats]  # of each recording, (times,), training and test
Rival = Callable[[Sequence[Recording]], Scores]
STATIC_LIMIT, STATIC_READINGS = 0.95, 3


def pooled_forest(read: Sequence[Recording]) -> Scores:
    """One isolation forest over the raw training readings of all entities."""
    rows = np.concatenate([one.values[: one.train] for one in read])
    forest = IsolationForest(random_state=0).fit(np.nan_to_num(rows))
    return [-forest.score_samples(np.nan_to_num(one.values)) for one in read]


def z_score(read: Sequence[Recording]) -> Scores:
    """Largest z-score of any metric, with mean and standard deviation of the training part."""
    result = []
    for one in read:
        past = one.values[: one.train]
        spread = np.maximum(np.nanstd(past, axis=0), 1e-9)
        result.append(np.nanmax(np.abs(one.values - np.nanmean(past, axis=0)) / spread, axis=1))
    return result


def half_space_trees(read: Sequence[Recording]) -> Scores:
    """River's streaming forest with online learning."""
    from river.anomaly import HalfSpaceTrees  # noqa: PLC0415

    result = []
    for one in read:
        past = one.values[: one.train]
        low, high = past.min(axis=0), past.max(axis=0)
        scaled = np.clip((one.values - low) / np.maximum(high - low, 1e-9), 0.0, 1.0)
        trees = HalfSpaceTrees(seed=0)
        scores = np.zeros(one.times.size)
        for place, row in enumerate(scaled):
            reading = dict(enumerate(row.tolist()))
            scores[place] = trees.score_one(reading)
            trees.learn_one(reading)
        result.append(scores)
    return result


def ecod(read: Sequence[Recording]) -> Scores:
    """PyOD's ECOD, fitted to each entity's training part."""
    from pyod.models.ecod import ECOD  # noqa: PLC0415

    result = []
    for one in read:
        model = ECOD()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a constant metric has no skewness
            model.fit(one.values[: one.train])
            result.append(np.asarray(model.decision_function(one.values), dtype=np.float64))
    return result


def static_rules(read: Sequence[Recording]) -> Scores:
    """1 if any metric is beyond 95 % of its training range for three readings, else 0."""
    result = []
    for one in read:
        past = one.values[: one.train]
        low, high = past.min(axis=0), past.max(axis=0)
        beyond = ((one.values - low) > STATIC_LIMIT * np.maximum(high - low, 1e-9)).astype(np.float64)
        run = np.stack([np.roll(beyond, back, axis=0) for back in range(STATIC_READINGS)])
        result.append(run.min(axis=0).max(axis=1))
    return result


RIVALS: dict[str, Rival] = {
    "pooled isolation forest": pooled_forest,
    "z-score per metric": z_score,
    "static rules": static_rules,
    "river HalfSpaceTrees": half_space_trees,
    "pyod ECOD": ecod,
}


def judged(
    rival: str, read: Sequence[Recording], step_seconds: float, budget: float
) -> dict[str, ScoredRecording] | None:
    """Results of a rival on the test parts; None if its library is not installed."""
    try:
        scores = RIVALS[rival](read)
    except ImportError:
        return None
    result = {}
    for one, score in zip(read, scores, strict=True):
        limit = 0.5 if rival == "static rules" else past_limit(one.times[: one.train], score[: one.train], budget)
        test = score[one.train :]
        result[one.name] = ScoredRecording(
            times=one.times[one.train :],
            scores=test,
            limits=np.full(test.shape, limit),
            points=test > limit,
            labels=one.labels[one.train :],
            step_seconds=step_seconds,
        )
    return result


def past_limit(times: Floats, scores: Floats, budget: float) -> float:
    """Returns the lowest quantile of past scores that keeps alarms within the budget."""
    days = (times[-1] - times[0]) / 86400.0
    limit = float(scores.max())
    for quantile in np.quantile(scores, 1.0 - np.geomspace(1e-4, 0.1, 120)):
        beyond: NDArray[np.bool_] = scores > quantile
        if len(events.alarms(times, beyond)) > budget * days:
            break
        limit = float(quantile)
    return limit
