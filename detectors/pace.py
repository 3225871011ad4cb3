"""How long a decode step takes, and how long it should at the batch it carries.

A step of continuous batching costs a fixed part (weights are read once), a part for each sequence in it and
a part for the prompt tokens computed beside them. So time per token is only slow or fast given the batch:
``read`` takes both from the page, ``Line`` learns the three parts from a replica and its peers (same services,
model and GPU type), and ``expected`` says what a step should take, and how sure that is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detectors.memory import Arrays
from outrider import catalog
from outrider.model import SUM_BUCKET, CellStatus, Floats, SignalKey, Window

TRAILING_SECONDS = 60.0
MIN_TOKENS = 30.0  # a mean over fewer gaps between tokens is one prompt's luck
MIN_SAMPLES = 24.0  # three parts of a step from fewer readings would be guesses
MEMORY_SECONDS = 6 * 3600.0  # of the line: model, flags and driver change by the day
# What is assumed before anything is known, relative to the mean step: a batch twice as large lengthens a step
# by a third at most engines and by no more than itself; prompts by a little.
PRIOR_MEAN = (0.3, 0.1)
PRIOR_DEVIATION = (0.3, 0.2)
LEAST_NOISE = 0.02
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
SUMS = ("n", "x", "p", "y", "xx", "xp", "pp", "xy", "py", "yy")
DEFAULTS: dict[str, float] = {f"sum_{name}": 0.0 for name in SUMS}


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


def trailing(window: Window, values: Floats, seconds: float) -> Floats:
    """Sums over the trailing ``seconds`` that end at each column, NaN counting as nothing."""
    sums = np.concatenate((np.zeros((values.shape[0], 1)), np.cumsum(np.nan_to_num(values), axis=1)), axis=1)
    ends = np.arange(window.times.size)
    begins = np.minimum(np.searchsorted(window.times, window.times - seconds + 1e-6, side="right"), ends)
    found: Floats = sums[:, ends + 1] - sums[:, begins]
    return found


def stretched(window: Window, pace: Pace, expected: Floats, error: Floats) -> tuple[Floats, Floats]:
    """By which share the gaps of the trailing minute were longer than they should be, and the error of that share.

    Every scrape is compared at its own batch, and weighs by its tokens: while a batch fills or empties, its
    mean over the minute is not the one that most tokens were made in.
    """
    judged = ~np.isnan(expected) & (pace.gaps > 0)
    gaps = np.where(judged, pace.gaps, 0.0)
    due = trailing(window, np.where(judged, gaps * expected, 0.0), TRAILING_SECONDS)
    took = trailing(window, np.where(judged, pace.gap_seconds, 0.0), TRAILING_SECONDS)
    unsure = trailing(window, np.where(judged, gaps * expected * error, 0.0), TRAILING_SECONDS)
    enough = (trailing(window, gaps, TRAILING_SECONDS) >= MIN_TOKENS) & (due > 0)
    over = np.divide(took, due, out=np.full_like(due, np.nan), where=enough) - 1.0
    return over, np.divide(unsure, due, out=np.full_like(due, np.nan), where=enough)


def learn(memory: Arrays, pace: Pace, where: NDArray[np.bool_], forget: float) -> None:
    """Take up the cells ``where`` (entities, times), after multiplying what is known by ``forget``."""
    step = pace.step
    use = where & ~np.isnan(step) & ~np.isnan(pace.batch)
    values = {"n": np.ones_like(step), "x": pace.batch, "p": pace.prompt, "y": step}
    for name in SUMS:
        product = values[name[0]] * (values[name[1]] if len(name) == 2 else 1.0)
        memory[f"sum_{name}"] = memory[f"sum_{name}"] * forget + np.where(use, product, 0.0).sum(axis=1)


@dataclass(frozen=True, slots=True)
class Line:
    """The parts of a step by entity, relative to the mean one; arrays of shape (entities,)."""

    samples: Floats
    batch: Floats
    prompt: Floats
    step: Floats
    slopes: tuple[Floats, Floats]
    covariance: tuple[Floats, Floats, Floats]
    noise: Floats

    def expected(self, pace: Pace) -> tuple[Floats, Floats]:
        """Seconds a step should take and the standard error as a share of it, (entities, times); NaN unknown."""
        with np.errstate(invalid="ignore", divide="ignore"):
            more = pace.batch / self.batch[:, None] - 1.0
            prompts = np.where(self.prompt[:, None] > 0, pace.prompt / self.prompt[:, None] - 1.0, 0.0)
        (one, two), (var_one, both, var_two) = self.slopes, self.covariance
        share = np.maximum(1.0 + one[:, None] * more + two[:, None] * prompts, 0.2)
        spread = var_one[:, None] * more**2 + 2 * both[:, None] * more * prompts + var_two[:, None] * prompts**2
        error = np.sqrt(np.maximum(spread, 0.0) + (self.noise**2 / np.maximum(self.samples, 1.0))[:, None]) / share
        known = (self.samples >= MIN_SAMPLES)[:, None]
        return np.where(known, self.step[:, None] * share, np.nan), np.where(known, error, np.nan)


def fit(memory: Arrays, group: NDArray[np.intp]) -> Line:
    """The line of each entity from the sums of its group; entities of group -1 have their own.

    Bayesian linear regression on values relative to their group's mean, with the priors above.
    """
    groups = int(group.max(initial=-1)) + 1
    place = np.where(group >= 0, group, groups + np.arange(group.size))
    totals = {
        name: np.bincount(place, weights=memory[f"sum_{name}"], minlength=groups + group.size)[place] for name in SUMS
    }
    n = np.asarray(totals["n"], dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        x, p, y = (totals[name] / n for name in ("x", "p", "y"))
        low_p = np.where(p > 0, p, np.inf)
        xx, xy = totals["xx"] / x**2 - n, totals["xy"] / (x * y) - n
        pp, xp = totals["pp"] / low_p**2 - n * (p > 0), totals["xp"] / (x * low_p) - n * (p > 0)
        py, yy = totals["py"] / (low_p * y) - n * (p > 0), totals["yy"] / y**2 - n
    noise = np.full(n.size, 0.05)
    slopes = (np.zeros(n.size), np.zeros(n.size))
    covariance = (slopes[0], slopes[0], slopes[0])
    for _ in range(2):  # the second time with the noise that the first one left
        slopes, covariance = _solve((xx, xp, pp, xy, py), noise)
        one, two = slopes
        left = yy - 2 * (one * xy + two * py) + one**2 * xx + 2 * one * two * xp + two**2 * pp
        with np.errstate(invalid="ignore", divide="ignore"):
            noise = np.maximum(np.sqrt(np.maximum(left, 0.0) / np.maximum(n - 3.0, 1.0)), LEAST_NOISE)
    return Line(n, x, p, y, slopes, covariance, noise)


def _solve(sums: tuple[Floats, ...], noise: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats, Floats]]:
    """Posterior slopes, clipped to what an engine can have (0 to 1), and their covariance."""
    xx, xp, pp, xy, py = (value / noise**2 for value in sums)
    keep_x, keep_p = (1.0 / deviation**2 for deviation in PRIOR_DEVIATION)
    a, b, c = xx + keep_x, xp, pp + keep_p
    u, v = xy + keep_x * PRIOR_MEAN[0], py + keep_p * PRIOR_MEAN[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        over = a * c - b**2
        one, two = (c * u - b * v) / over, (a * v - b * u) / over
        covariance = (c / over, -b / over, a / over)
    return (np.clip(one, 0.0, 1.0), np.clip(two, 0.0, 1.0)), covariance


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
