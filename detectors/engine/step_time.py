"""How long a decode step takes, and how long it should at the batch it carries.

A step of continuous batching costs a fixed part (weights are read once), a part for each sequence in it and
a part for the prompt tokens computed beside them. So time per token is only slow or fast given the batch:
``read`` takes both from the page; the three parts are learnt from a replica and its peers (same services, model
and GPU type, ``lines.py``), and ``expected`` says what a step should take, and how sure that is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics.online_regression import Relation, trailing
from outrider.model import SUM_BUCKET, CellStatus, Floats, SignalKey, Window
from outrider.vocabulary import catalog

TRAILING_SECONDS = 60.0
MIN_TOKENS = 30.0  # a mean over fewer gaps between tokens is one prompt's luck
MEMORY_SECONDS = 6 * 3600.0  # of the line: model, flags and driver change by the day
# Of batch and prompt: a batch twice as large lengthens a step by a third at most engines and by no more than
# itself; prompts by a little. Three parts of a step from fewer than 24 readings would be guesses.
STEP = Relation("xp", (0.3, 0.1), (0.3, 0.2), least_noise=0.02, least_share=0.2, min_samples=24.0)
_GAPS = ("engine_itl_seconds", "engine_tpot_seconds")
SIGNALS = (
    "engine_generation_tokens_total",
    "engine_iterations_total",
    "engine_prompt_tokens_total",
    "engine_requests_running",
    "engine_batch_tokens",
)
KEYS: tuple[SignalKey, ...] = (
    *(SignalKey(name) for name in SIGNALS),
    *(key for name in _GAPS for key in catalog.signal(name).bucket_keys),
)
DEFAULTS: dict[str, float] = STEP.defaults


@dataclass(frozen=True, slots=True)
class Pace:
    """What each scrape tells, (entities, times), NaN unknown.

    ``gap_seconds`` and ``gaps`` are the sum and the number of gaps between tokens, ``batch`` the tokens of a
    step and ``prompt`` the prompt tokens beside them.
    """

    gap_seconds: Floats
    gaps: Floats
    batch: Floats
    prompt: Floats

    @property
    def step(self) -> Floats:
        """Seconds of a step; NaN where too few tokens were made to say."""
        return np.divide(
            self.gap_seconds, self.gaps, out=np.full_like(self.gaps, np.nan), where=self.gaps >= MIN_TOKENS
        )


def read(window: Window) -> Pace:
    """The pace at each scrape by itself."""
    itl, tpot = (_gaps(window, name) for name in _GAPS)
    # Where an engine tells the mean gap of finished answers only, each of them counts as many gaps.
    known = itl[1] > 0
    seconds, gaps = (np.where(known, one, other * MIN_TOKENS) for one, other in zip(itl, tpot, strict=True))
    tokens, steps, prompt = (_delta(window, name) for name in SIGNALS[:3])
    per_step = window.column("engine_batch_tokens")
    with np.errstate(invalid="ignore", divide="ignore"):
        batch = np.where(steps > 0, tokens / steps, window.column("engine_requests_running"))
        beside = np.where(np.isnan(per_step), np.where(steps > 0, prompt / steps, 0.0), per_step - batch)
    return Pace(seconds, gaps, batch, np.maximum(np.nan_to_num(beside), 0.0))


def stretched(window: Window, pace: Pace, due: Floats, error: Floats) -> tuple[Floats, Floats]:
    """By which share the gaps of the trailing minute were longer than they should be, and the error of that share.

    Every scrape is compared at its own batch, and weighs by its tokens: while a batch fills or empties, its
    mean over the minute is not the one that most tokens were made in.
    """
    judged = ~np.isnan(due) & (pace.gaps > 0)
    gaps = np.where(judged, pace.gaps, 0.0)
    should = trailing(window, np.where(judged, gaps * due, 0.0), TRAILING_SECONDS)
    took = trailing(window, np.where(judged, pace.gap_seconds, 0.0), TRAILING_SECONDS)
    unsure = trailing(window, np.where(judged, gaps * due * error, 0.0), TRAILING_SECONDS)
    enough = (trailing(window, gaps, TRAILING_SECONDS) >= MIN_TOKENS) & (should > 0)
    over = np.divide(took, should, out=np.full_like(should, np.nan), where=enough) - 1.0
    return over, np.divide(unsure, should, out=np.full_like(should, np.nan), where=enough)


def learn(memory: Arrays, pace: Pace, where: NDArray[np.bool_], forget: float) -> None:
    """Take up the cells ``where`` (entities, times), after multiplying what is known by ``forget``."""
    STEP.learn(memory, (pace.batch, pace.prompt), pace.step, where, forget)


def expected(memory: Arrays, group: NDArray[np.intp], pace: Pace) -> tuple[Floats, Floats]:
    """Seconds a step should take and the standard error as a share of it, (entities, times); NaN unknown.

    By what an entity's group has learnt; entities of group -1 have learnt alone.
    """
    return STEP.fit(memory, group).expected((pace.batch, pace.prompt))


def _gaps(window: Window, name: str) -> tuple[Floats, Floats]:
    """Sum and number of what the histogram ``name`` counted at each scrape."""
    counts = np.zeros(window.values.shape[:2])
    for key in catalog.signal(name).bucket_keys:
        if key.bucket != SUM_BUCKET:
            counts += np.nan_to_num(_delta(window, key))
    sums = np.nan_to_num(_delta(window, SignalKey(name, bucket=SUM_BUCKET)))
    there = (counts > 0) & (sums > 0)
    return np.where(there, sums, 0.0), np.where(there, counts, 0.0)


def _delta(window: Window, key: SignalKey | str) -> Floats:
    """Increases; NaN where a counter began anew."""
    values: Floats = np.where(window.column_status(key) <= CellStatus.BELOW_FIRST_BUCKET, window.column(key), np.nan)
    return values
