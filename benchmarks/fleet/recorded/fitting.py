"""Fits step times of an engine to client latencies, by replaying many candidate models in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.fleet.recorded.reading import Recording
from benchmarks.fleet.recorded.replaying import replay
from outrider.model import Floats
from simulator.spec.parts import EngineModel

# Fitted parameters, with the initial width of the search: the standard deviation of the logarithm.
FITTED = {
    "step_seconds": 0.15,
    "step_per_sequence_seconds": 0.5,
    "step_per_context_token_seconds": 0.5,
    "prefill_per_token_seconds": 0.3,
    "prefill_per_token_pair_seconds": 0.6,
    "front_seconds": 0.4,
}
MODELS, KEPT, ROUNDS = 60, 10, 16


def fit(
    recordings: Sequence[Recording], start: EngineModel, *, models: int = MODELS, rounds: int = ROUNDS, seed: int = 0
) -> EngineModel:
    """Returns the model whose latencies are closest to every other minute of the recordings.

    The other minutes are replayed but not used. The distance of a request is the sum of |log(replayed / recorded)| of
    TTFT and E2E latency; all recordings have the same weight. Each iteration draws ``models`` models around the best so
    far and keeps the closest (cross-entropy search). The same seed gives the same result.
    """
    random = np.random.default_rng(seed)
    middle = np.log([getattr(start, name) for name in FITTED])
    width = np.array(list(FITTED.values()))
    for _ in range(rounds):
        drawn = middle + width * random.standard_normal((models, middle.size))
        drawn[0] = middle
        order = np.argsort(distances(recordings, [_with(start, values) for values in drawn]))
        best = drawn[order[: max(2, models * KEPT // MODELS)]]
        middle, width = best.mean(axis=0), 0.3 * width + 0.7 * best.std(axis=0)
    return _with(start, middle)


def distances(recordings: Sequence[Recording], models: Sequence[EngineModel]) -> Floats:
    """Returns the mean distance of each model from every other minute of the recordings, shape (models,)."""
    total = np.zeros(len(models))
    for recording in recordings:
        seen = recording.shown(recording.at)
        result = replay(recording, models)
        for ours, theirs in ((result.ttft, recording.ttft), (result.e2e, recording.e2e)):
            total += np.abs(np.log(ours[:, seen] / theirs[seen])).mean(axis=1)
    return total / len(recordings)


def _with(start: EngineModel, logarithms: Floats) -> EngineModel:
    """Returns the model with these values, rounded to four digits."""
    values: dict[str, Any] = {
        name: float(f"{np.exp(value):.4g}") for name, value in zip(FITTED, logarithms, strict=True)
    }
    return replace(start, **values)
