"""Runs the statistical ensemble causally over labeled recordings and scores it.

Nothing is tuned here: the detectors use the shipped constants, and the false-alarm budget is the only setting. Only the
scores see labels. Every reading is scored with earlier readings only.
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
BLOCK = 48  # readings per call
BUDGET = 0.25  # alarms per entity-day
NAB_READINGS_A_DAY = 288  # the benchmark's budget is per readings, independent of their interval


@dataclass(frozen=True, slots=True)
class ScoredRecording:
    """Scores and alarms of one recording's test part; all of shape (times,)."""

    times: Floats
    scores: Floats
    limits: Floats
    points: NDArray[np.bool_]
    labels: NDArray[np.bool_]
    step_seconds: float


def servers(folder: Path, *, step_seconds: float, budget: float, progress: Progress) -> dict[str, Any]:
    """Runs ``detect backtest --format servers``."""
    read = recordings.servers(folder, step_seconds)
    return figures(judge_servers(read, step_seconds, budget, progress))


def judge_servers(
    read: Sequence[Recording], step_seconds: float, budget: float, progress: Progress
) -> dict[str, ScoredRecording]:
    """Scores servers; those with the same number of metrics are one class and share ensemble members and limits."""
    classes: dict[int, list[Recording]] = {}
    for recording in read:
        classes.setdefault(recording.values.shape[1], []).append(recording)
    judged: dict[str, ScoredRecording] = {}
    for index, members in enumerate(classes.values()):
        begin = index / len(classes)

        def report(share: float, begin: float = begin) -> None:
            progress("backtest", begin + share / len(classes))

        judged |= _judge_class(members, step_seconds, budget, report)
    return {recording.name: judged[recording.name] for recording in read}


def _judge_class(
    members: Sequence[Recording], step_seconds: float, budget: float, progress: Callable[[float], None]
) -> dict[str, ScoredRecording]:
    """Scores one class. Recordings are aligned at the start of their test parts; absent readings are missing."""
    train = max(recording.train for recording in members)
    length = train + max(recording.times.size - recording.train for recording in members)
    ensemble = Ensemble(members[0].values.shape[1], budget)
    memory, pool = ensemble.empty(len(members)), ensemble.empty_pool()
    parts: list[EnsembleScore] = []
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        values = np.full((len(members), stop - start, members[0].values.shape[1]), np.nan)
        for row, recording in enumerate(members):
            shift = train - recording.train
            first, last = max(start, shift), min(stop, shift + recording.times.size)
            if first < last:
                values[row, first - start : last - start] = recording.values[first - shift : last - shift]
        parts.append(
            ensemble.evaluate(
                memory, pool, values, step_seconds * np.arange(start, stop, dtype=np.float64), step_seconds
            )
        )
        progress(stop / length)
    scores = _joined(parts)
    spans = {recording.name: slice(train, train - recording.train + recording.times.size) for recording in members}
    return {
        recording.name: _judged(recording, scores, row, spans[recording.name], step_seconds)
        for row, recording in enumerate(members)
    }


def _joined(parts: Sequence[EnsembleScore]) -> EnsembleScore:
    return EnsembleScore(
        np.concatenate([part.scores for part in parts], axis=1),
        np.concatenate([part.limits for part in parts], axis=1),
        np.concatenate([part.alarms for part in parts], axis=1),
        np.concatenate([part.fresh for part in parts], axis=1),
    )


def _judged(recording: Recording, scores: EnsembleScore, row: int, span: slice, step_seconds: float) -> ScoredRecording:
    return ScoredRecording(
        times=recording.times[recording.train :],
        scores=scores.scores[row, span],
        limits=scores.limits[row, span],
        points=scores.alarms[row, span],
        labels=recording.labels[recording.train :],
        step_seconds=step_seconds,
    )


def nab_corpus(folder: Path, *, budget: float, progress: Progress) -> dict[str, Any]:
    """Runs ``detect backtest --format nab``: each series is its own class and learns from its own history."""
    judged = judge_nab(recordings.nab(folder), budget, progress)
    counts = nab.total(nab.count(nab.spaced(item.points), nab.windows(item.labels)) for item in judged.values())
    return figures(judged) | {"nab_standard": counts.score}


def judge_nab(read: Sequence[Recording], budget: float, progress: Progress) -> dict[str, ScoredRecording]:
    """Returns the scores and alarm points of every series."""
    judged = {}
    for index, series in enumerate(read):
        step = float(np.median(np.diff(series.times))) if series.times.size > 1 else 1.0
        ensemble = Ensemble(series.values.shape[1], budget * 86400.0 / (NAB_READINGS_A_DAY * step))
        memory, pool = ensemble.empty(1), ensemble.empty_pool()
        blocks = [slice(start, start + BLOCK) for start in range(0, series.times.size, BLOCK)]
        parts = [
            ensemble.evaluate(memory, pool, series.values[None, span], series.times[span], step) for span in blocks
        ]
        judged[series.name] = _judged(series, _joined(parts), 0, slice(None), step)
        progress("backtest", (index + 1) / len(read))
    return judged


def figures(judged: dict[str, ScoredRecording]) -> dict[str, Any]:
    """Returns the figures of all entities together and of each."""
    counts = {name: count(item) for name, item in judged.items()}
    volumes = {name: vus.vus_pr(item.scores, item.labels) for name, item in judged.items()}
    known = [volume for volume in volumes.values() if volume is not None]
    by_entity = {name: _row(counts[name]) | {"vus_pr": volumes[name]} for name in judged}
    mean = float(np.mean(known)) if known else None
    return {"entities": len(judged)} | _row(events.total(counts.values())) | {"vus_pr": mean, "by_entity": by_entity}


def count(judged: ScoredRecording) -> events.EventCounts:
    """Counts events and alarms of one entity."""
    return events.count(np.maximum.accumulate(judged.times), judged.points, judged.labels, judged.step_seconds)


def _row(counts: events.EventCounts) -> dict[str, Any]:
    return {
        "event_f1": counts.f1,
        "precision": counts.precision,
        "recall": counts.recall,
        "false_alarms_per_day": counts.false_alarms_per_day,
        "median_delay_seconds": counts.median_delay_seconds,
        "events": counts.events,
        "alarms": counts.alarms,
    }
