"""Runs the statistical ensemble causally over labelled recordings and scores it.

Nothing is tuned here: the detectors' constants are the frozen configuration, and the false-alarm budget is
the only setting. Labels go to the scores alone. Every reading is judged by what was known before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.statistics.ensemble import Ensemble, EnsembleScore
from outrider.model import Floats
from service.evaluation import events, nab, recordings, vus
from service.evaluation.recordings import Recording

Progress = Callable[[str, float], None]
BLOCK = 48  # readings looked at together
BUDGET = 0.25  # alarms per entity-day
NAB_READINGS_A_DAY = 288  # the benchmark counts in readings: its budget is per so many, whatever their spacing


@dataclass(frozen=True, slots=True)
class Judged:
    """What was said of one recording's test part; all of shape (times,)."""

    times: Floats
    scores: Floats
    limits: Floats
    points: NDArray[np.bool_]
    labels: NDArray[np.bool_]
    step_seconds: float


def servers(folder: Path, *, step_seconds: float, budget: float, progress: Progress) -> dict[str, Any]:
    """``detect backtest --format servers``."""
    read = recordings.servers(folder, step_seconds)
    return figures(judge_servers(read, step_seconds, budget, progress))


def judge_servers(
    read: Sequence[Recording], step_seconds: float, budget: float, progress: Progress
) -> dict[str, Judged]:
    """Servers with the same number of metrics are one class: they share voters and lend each other their limits."""
    classes: dict[int, list[Recording]] = {}
    for one in read:
        classes.setdefault(one.values.shape[1], []).append(one)
    found: dict[str, Judged] = {}
    for place, alike in enumerate(classes.values()):
        begin = place / len(classes)

        def tell(share: float, begin: float = begin) -> None:
            progress("backtest", begin + share / len(classes))

        found |= _judge_class(alike, step_seconds, budget, tell)
    return {one.name: found[one.name] for one in read}


def _judge_class(
    alike: Sequence[Recording], step_seconds: float, budget: float, progress: Callable[[float], None]
) -> dict[str, Judged]:
    """Recordings are laid side by side so that their tests begin together; what one lacks is missing."""
    train = max(one.train for one in alike)
    length = train + max(one.times.size - one.train for one in alike)
    ensemble = Ensemble(alike[0].values.shape[1], budget)
    memory, pool = ensemble.empty(len(alike)), ensemble.empty_pool()
    said: list[EnsembleScore] = []
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        values = np.full((len(alike), stop - start, alike[0].values.shape[1]), np.nan)
        for row, one in enumerate(alike):
            shift = train - one.train
            first, last = max(start, shift), min(stop, shift + one.times.size)
            if first < last:
                values[row, first - start : last - start] = one.values[first - shift : last - shift]
        said.append(
            ensemble.evaluate(
                memory, pool, values, step_seconds * np.arange(start, stop, dtype=np.float64), step_seconds
            )
        )
        progress(stop / length)
    whole = _joined(said)
    spans = {one.name: slice(train, train - one.train + one.times.size) for one in alike}
    return {one.name: _judged(one, whole, row, spans[one.name], step_seconds) for row, one in enumerate(alike)}


def _joined(said: Sequence[EnsembleScore]) -> EnsembleScore:
    return EnsembleScore(
        np.concatenate([part.scores for part in said], axis=1),
        np.concatenate([part.limits for part in said], axis=1),
        np.concatenate([part.alarms for part in said], axis=1),
        np.concatenate([part.fresh for part in said], axis=1),
    )


def _judged(one: Recording, said: EnsembleScore, row: int, span: slice, step_seconds: float) -> Judged:
    return Judged(
        times=one.times[one.train :],
        scores=said.scores[row, span],
        limits=said.limits[row, span],
        points=said.alarms[row, span],
        labels=one.labels[one.train :],
        step_seconds=step_seconds,
    )


def nab_corpus(folder: Path, *, budget: float, progress: Progress) -> dict[str, Any]:
    """``detect backtest --format nab``: each series is a class of its own, learnt from its own past."""
    judged = judge_nab(recordings.nab(folder), budget, progress)
    counted = nab.total(nab.count(nab.spaced(one.points), nab.windows(one.labels)) for one in judged.values())
    return figures(judged) | {"nab_standard": counted.score}


def judge_nab(read: Sequence[Recording], budget: float, progress: Progress) -> dict[str, Judged]:
    """Scores and alarm points of every series."""
    found = {}
    for place, one in enumerate(read):
        step = float(np.median(np.diff(one.times))) if one.times.size > 1 else 1.0
        ensemble = Ensemble(one.values.shape[1], budget * 86400.0 / (NAB_READINGS_A_DAY * step))
        memory, pool = ensemble.empty(1), ensemble.empty_pool()
        parts = [slice(start, start + BLOCK) for start in range(0, one.times.size, BLOCK)]
        said = [ensemble.evaluate(memory, pool, one.values[None, span], one.times[span], step) for span in parts]
        found[one.name] = _judged(one, _joined(said), 0, slice(None), step)
        progress("backtest", (place + 1) / len(read))
    return found


def figures(judged: dict[str, Judged]) -> dict[str, Any]:
    """The figures of the contract, and the same for each entity."""
    counts = {name: count(one) for name, one in judged.items()}
    volumes = {name: vus.vus_pr(one.scores, one.labels) for name, one in judged.items()}
    known = [volume for volume in volumes.values() if volume is not None]
    by_entity = {name: _row(counts[name]) | {"vus_pr": volumes[name]} for name in judged}
    mean = float(np.mean(known)) if known else None
    return {"entities": len(judged)} | _row(events.total(counts.values())) | {"vus_pr": mean, "by_entity": by_entity}


def count(one: Judged) -> events.EventCounts:
    """Events and alarms of one entity."""
    return events.count(np.maximum.accumulate(one.times), one.points, one.labels, one.step_seconds)


def _row(counted: events.EventCounts) -> dict[str, Any]:
    return {
        "event_f1": counted.f1,
        "precision": counted.precision,
        "recall": counted.recall,
        "false_alarms_per_day": counted.false_alarms_per_day,
        "median_delay_seconds": counted.median_delay_seconds,
        "events": counted.events,
        "alarms": counted.alarms,
    }
