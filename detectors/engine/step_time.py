"""Decode step time, and its expectation at the current batch.

A step of continuous batching has a fixed part (weights are read once), a part per sequence, and a part for prompt
tokens computed in the same step. Time per token is therefore only meaningful given the batch. ``read`` takes both from
the page. The three parts are learned per replica and its peers (same services, model and GPU type;
``online_regression``). ``expected`` returns the step time and its standard error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics.online_regression import DriverModel, trailing
from outrider.model import SUM_BUCKET, CellStatus, Floats, SignalKey, Window, signal_keys
from outrider.vocabulary import catalog

TRAILING_SECONDS = 60.0
MIN_TOKENS = 30.0  # a mean over fewer gaps between tokens depends on single prompts
MEMORY_SECONDS = 6 * 3600.0  # memory of the line; model, flags and driver change by the day
# Of batch and prompt: doubling the batch lengthens a step by a third at most engines, and at most
# doubles it; prompts add little. Three parts from fewer than 24 readings would be guesses.
STEP = DriverModel("xp", (0.3, 0.1), (0.3, 0.2), least_noise=0.02, least_share=0.2, min_samples=24.0)
_GAPS = ("engine_itl_seconds", "engine_tpot_seconds")
SIGNALS = (
    "engine_generation_tokens_total",
    "engine_iterations_total",
    "engine_prompt_tokens_total",
    "engine_requests_running",
    "engine_batch_tokens",
)
KEYS: tuple[SignalKey, ...] = (
    *signal_keys(*SIGNALS),
    *(key for name in _GAPS for key in catalog.signal(name).bucket_keys),
)
DEFAULTS: dict[str, float] = STEP.defaults


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Values of each scrape, (entities, times), NaN unknown.

    ``gap_seconds`` and ``gaps`` are the sum and the number of gaps between tokens. ``batch`` are the tokens of a step,
    ``prompt`` the prompt tokens in the same step.
    """

    gap_seconds: Floats
    gaps: Floats
    batch: Floats
    prompt: Floats

    @property
    def step(self) -> Floats:
        """Seconds per step; NaN for too few tokens."""
        return np.divide(
            self.gap_seconds, self.gaps, out=np.full_like(self.gaps, np.nan), where=self.gaps >= MIN_TOKENS
        )


def read(window: Window) -> StepTiming:
    """The values of each scrape by itself."""
    itl, tpot = (_gaps(window, name) for name in _GAPS)
    # If an engine exports only the mean gap of finished responses, each counts as many gaps.
    known = itl[1] > 0
    seconds, gaps = (np.where(known, item, other * MIN_TOKENS) for item, other in zip(itl, tpot, strict=True))
    tokens, steps, prompt = (_delta(window, name) for name in SIGNALS[:3])
    per_step = window.column("engine_batch_tokens")
    with np.errstate(invalid="ignore", divide="ignore"):
        batch = np.where(steps > 0, tokens / steps, window.column("engine_requests_running"))
        beside = np.where(np.isnan(per_step), np.where(steps > 0, prompt / steps, 0.0), per_step - batch)
    return StepTiming(seconds, gaps, batch, np.maximum(np.nan_to_num(beside), 0.0))


def stretched(window: Window, pace: StepTiming, due: Floats, error: Floats) -> tuple[Floats, Floats]:
    """Relative excess of the gaps of the trailing minute over the expectation, and its standard error.

    Every scrape is compared at its own batch and weighted by its tokens: while a batch fills or drains, the mean batch
    of the minute is not the one that most tokens saw.
    """
    judged = ~np.isnan(due) & (pace.gaps > 0)
    gaps = np.where(judged, pace.gaps, 0.0)
    should = trailing(window, np.where(judged, gaps * due, 0.0), TRAILING_SECONDS)
    took = trailing(window, np.where(judged, pace.gap_seconds, 0.0), TRAILING_SECONDS)
    unsure = trailing(window, np.where(judged, gaps * due * error, 0.0), TRAILING_SECONDS)
    enough = (trailing(window, gaps, TRAILING_SECONDS) >= MIN_TOKENS) & (should > 0)
    over = np.divide(took, should, out=np.full_like(should, np.nan), where=enough) - 1.0
    return over, np.divide(unsure, should, out=np.full_like(should, np.nan), where=enough)


def learn(memory: Arrays, pace: StepTiming, where: NDArray[np.bool_], forget: float) -> None:
    """Adds the cells ``where`` (entities, times), after multiplying the sums by ``forget``."""
    STEP.learn(memory, (pace.batch, pace.prompt), pace.step, where, forget)


def expected(memory: Arrays, group: NDArray[np.intp], pace: StepTiming) -> tuple[Floats, Floats]:
    """Expected seconds per step and the relative standard error, (entities, times); NaN unknown.

    Uses what an entity's group has learned; entities of group -1 use their own.
    """
    return STEP.fit(memory, group).expected((pace.batch, pace.prompt))


def _gaps(window: Window, name: str) -> tuple[Floats, Floats]:
    """Sum and count of the histogram ``name`` at each scrape."""
    counts = np.zeros(window.values.shape[:2])
    for key in catalog.signal(name).bucket_keys:
        if key.bucket != SUM_BUCKET:
            counts += np.nan_to_num(_delta(window, key))
    sums = np.nan_to_num(_delta(window, SignalKey(name, bucket=SUM_BUCKET)))
    there = (counts > 0) & (sums > 0)
    return np.where(there, sums, 0.0), np.where(there, counts, 0.0)


def _delta(window: Window, key: SignalKey | str) -> Floats:
    """Increases; NaN after a counter reset."""
    values: Floats = np.where(window.column_status(key) <= CellStatus.BELOW_FIRST_BUCKET, window.column(key), np.nan)
    return values
