"""A replica with continuous batching as a queue: latencies at a load, and the largest load within an SLO.

A step of the engine gives every running sequence one token and computes prompts with the rest of its token budget. It
takes ``base + sequence x n + context x tokens read + prompt x prompt tokens``. With ``rate`` requests per second, a
step of length T computes ``rate x T`` prompts, so n running sequences make steps of

    T(n) = (base + (sequence + context x mean context) x n) / (1 - rate x prompt seconds of a request)

and leave at ``n / ((output - 1) x T(n))`` per second. Below the number of seats (the most sequences, or those whose KV
fits) the replica shares its processor among all. The number in it is a birth-death chain, whose stationary law needs
only the mean of the work (insensitivity of processor sharing). Above, requests wait for a seat, as in M/G/c with the
usual correction (1 + cv^2) / 2. References: Kleinrock, Queueing Systems II; Allen and Cunneen's approximation of M/G/c.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import inf, log, sqrt
from typing import NamedTuple

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats

SAFE_LOAD = 0.8
"""Planned share of an engine's maximum load if no objective limits it, or if none can be met.

At the maximum itself the queue grows without limit.
"""
_DRAWS = 2048
_NEVER_FULL = 1e-12
_CLOSE = 1e-3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step: ``base``, plus those of each running sequence, context token and computed prompt token.

    ``front`` seconds pass before the scheduler gets a request. ``source`` is a measurement or the prior in use.
    """

    base: float
    sequence: float
    context: float
    prompt: float
    front: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        """Refuses impossible times."""
        terms = (self.base, self.sequence, self.context, self.prompt, self.front)
        if not np.isfinite(terms).all() or min(terms) < 0 or self.base <= 0:
            raise UsageError(f"invalid step times: {terms} seconds", hint="give a base above 0, others 0 or more")

    def decode(self, running: float, context_tokens: float) -> float:
        """Seconds of a step without prompts."""
        return self.base + (self.sequence + self.context * context_tokens) * running


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a replica: concurrent sequences, KV cache and step budget in tokens, tokens of a KV block."""

    sequences: int
    kv_tokens: float = inf
    token_budget: int = 8192
    block: int = 16


@dataclass(frozen=True, slots=True)
class Work:
    """Size of requests: tokens of prompts and answers with their coefficients of variation.

    ``cached_ratio`` is the share of a prompt in the prefix cache.
    """

    prompt: float
    output: float
    prompt_cv: float = 1.0
    output_cv: float = 1.0
    cached_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuses impossible sizes."""
        if not (self.prompt >= 1 and self.output >= 1 and self.prompt_cv >= 0 and self.output_cv >= 0):
            raise UsageError(
                "a request needs a prompt and an answer of at least one token", hint="give both in tokens per request"
            )
        if not 0 <= self.cached_ratio < 1:
            raise UsageError(f"invalid cached ratio {self.cached_ratio:g}", hint="give the share of a prompt, below 1")

    @property
    def computed(self) -> float:
        """Prompt tokens that the engine computes itself."""
        return self.prompt * (1.0 - self.cached_ratio)

    @property
    def context(self) -> float:
        """Mean tokens of a running sequence: long answers are observed more often, hence E[x^2] / 2 E[x]."""
        return self.prompt + self.output * (1.0 + self.output_cv**2) / 2.0


@dataclass(frozen=True, slots=True)
class Slo:
    """The SLO: ``quantile`` of requests get their first token, and each further one, within these seconds."""

    ttft: float = inf
    tpot: float = inf
    quantile: float = 0.95


@dataclass(frozen=True, slots=True)
class Prediction:
    """A replica at ``rate`` requests per second. Latencies are seconds; those of an unstable queue are infinite.

    ``ttft`` and ``tpot`` are at the requested quantile. ``load_ratio`` is the rate over the maximum rate.
    """

    rate: float
    load_ratio: float
    running: float
    waits_ratio: float
    kv_ratio: float
    ttft_mean: float
    ttft: float
    tpot_mean: float
    tpot: float

    @property
    def stable(self) -> bool:
        """True if the queue stays finite."""
        return self.load_ratio < 1.0

    def meets(self, slo: Slo) -> bool:
        """True if this load meets the SLO."""
        return self.stable and self.ttft <= slo.ttft and self.tpot <= slo.tpot


class SloReason(StrEnum):
    """Reasons why no load meets an SLO."""

    TTFT_TOO_SHORT = "ttft_too_short"  # even alone, a request's TTFT is longer
    TPOT_TOO_SHORT = "tpot_too_short"


@dataclass(frozen=True, slots=True)
class AtSlo:
    """The largest load of one replica within an SLO; ``binds`` is its limit: ttft, tpot or stability."""

    prediction: Prediction
    binds: str


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """No load meets the SLO: ``best`` is an idle replica."""

    reason: SloReason
    best: Prediction


def seats(bounds: Bounds, work: Work) -> int:
    """Concurrent sequences: the engine's own limit, or as many as fit their mean context into the KV cache.

    A sequence fills half of its last block on average.
    """
    tokens_per_sequence = work.context + bounds.block / 2.0
    fitting = bounds.kv_tokens / tokens_per_sequence
    return max(0, int(min(bounds.sequences, fitting, bounds.token_budget)))


def most(times: StepTimes, bounds: Bounds, work: Work) -> float:
    """Requests per second of one replica with every seat taken, regardless of latency."""
    count = seats(bounds, work)
    if count < 1:
        return 0.0
    steps, prompt = max(work.output - 1.0, 1.0), work.computed * times.prompt
    decoding = count / (steps * times.decode(count, work.context) + count * prompt)
    room = bounds.token_budget - count
    if room <= 0:
        return decoding
    full = times.decode(count, work.context) + times.prompt * room
    return min(decoding, room / (work.computed * full))


def predict(times: StepTimes, bounds: Bounds, work: Work, rate: float, quantile: float = 0.95) -> Prediction:
    """Latencies of one replica at ``rate`` requests per second (Poisson arrivals)."""
    limit = most(times, bounds, work)
    count = seats(bounds, work)
    load = rate / limit if limit > 0 else inf
    if not load < 1.0 - _NEVER_FULL:
        return Prediction(rate, max(load, 1.0), float(count), 1.0, 1.0, inf, inf, inf, inf)
    prompts = rate * work.computed * times.prompt  # share of time spent on prompts
    per_sequence = times.sequence + times.context * work.context
    steps = max(work.output - 1.0, 1.0)
    law = _chain(rate, count, times.base, per_sequence, steps * 1.0 / (1.0 - prompts))
    running = np.arange(law.size)
    full_rate = count / (steps * times.decode(count, work.context) / (1.0 - prompts))
    tail = float(law[-1]) / (1.0 - rate / full_rate)  # all seats taken, including the waiting requests
    scale = float(law[:-1].sum()) + tail
    law, waits = law / scale, min(1.0, tail / scale)
    mean = float((running[:-1] * law[:-1]).sum()) + count * waits
    busy = 1.0 - float(law[0]) if count > 0 else 1.0
    # an arriving request sees the chain and takes a seat in it
    joined = np.minimum(running + 1, count)
    weights = law.copy()
    weights[-1] = waits
    step_joined = (times.base + per_sequence * joined) / (1.0 - prompts)
    tpot_mean = float((weights * step_joined).sum())
    tpot = _tpot_quantile(step_joined, weights, tpot_mean, quantile)
    idle_rate = full_rate - rate
    spread = (1.0 + work.output_cv**2) / 2.0
    ttft_mean, ttft = _first_token(
        times, bounds, work, prompts, busy, float((weights * joined).sum()), waits, spread / idle_rate, quantile
    )
    kv = min(1.0, mean * (work.context + bounds.block / 2.0) / bounds.kv_tokens)
    return Prediction(rate, load, mean, waits, kv, ttft_mean, ttft, tpot_mean, tpot)


def at_slo(times: StepTimes, bounds: Bounds, work: Work, slo: Slo) -> AtSlo | OutOfReach:
    """Finds the largest rate of one replica within the SLO by bisection."""
    limit = most(times, bounds, work)
    idle = predict(times, bounds, work, limit * 1e-6, slo.quantile)
    if not idle.meets(slo):
        reason = SloReason.TPOT_TOO_SHORT if idle.tpot > slo.tpot else SloReason.TTFT_TOO_SHORT
        return OutOfReach(reason, idle)
    low, high = limit * 1e-6, limit * (1.0 - 1e-6)
    best = idle
    violated = predict(times, bounds, work, high, slo.quantile)
    if violated.meets(slo):
        return AtSlo(violated, "stability")
    while high - low > _CLOSE * high:
        middle = (low + high) / 2.0
        prediction = predict(times, bounds, work, middle, slo.quantile)
        if prediction.meets(slo):
            low, best = middle, prediction
        else:
            high, violated = middle, prediction
    binds = "tpot" if violated.tpot > slo.tpot else "ttft" if violated.ttft > slo.ttft else "stability"
    return AtSlo(best, binds)


def _chain(rate: float, count: int, base: float, per_sequence: float, steps: float) -> Floats:
    """Weights of 0 .. ``count`` requests in service, relative to each other; waiting ones are added later."""
    running = np.arange(1, count + 1, dtype=np.float64)
    leave = running / (steps * (base + per_sequence * running))
    logs = np.concatenate([[0.0], np.cumsum(log(max(rate, 1e-300)) - np.log(leave))])
    weights: Floats = np.exp(logs - logs.max())
    return weights


def _tpot_quantile(steps: Floats, weights: Floats, mean: float, quantile: float) -> float:
    """Quantile of a request's mean step. It spans many steps, so half of the spread averages out."""
    spread = sqrt(max(0.0, float((weights * (steps - mean) ** 2).sum())))
    return mean + _normal_quantile(quantile) * spread


def _first_token(
    times: StepTimes,
    bounds: Bounds,
    work: Work,
    prompts: float,
    busy: float,
    running: float,
    waits: float,
    seat_seconds: float,
    quantile: float,
) -> tuple[float, float]:
    """Mean and quantile of TTFT.

    It is the sum of the front, the rest of the current step, the wait for a seat, the prompts ahead (a queue of their
    own, M/G/1), and the request's own prompt with the decode steps of the same time.
    """
    known = draws()
    decode = times.decode(running, work.context)
    own_seconds = work.computed * times.prompt
    rest = np.where(known.chance_rest < busy, known.uniform * (decode + own_seconds * min(1.0, prompts * 2)), 0.0)
    seat = np.where(known.chance < waits, known.exponential * seat_seconds, 0.0)
    behind = own_seconds * (1.0 + work.prompt_cv**2) / 2.0 / max(1.0 - prompts, 1e-9)
    queue = np.where(known.chance_ahead < prompts, known.ahead * behind, 0.0)
    sigma = sqrt(log(1.0 + work.prompt_cv**2))
    lengths = work.computed * np.exp(sigma * known.normal - sigma**2 / 2.0)
    room = max(bounds.token_budget - running, 1.0)
    own = lengths * times.prompt + decode * np.maximum(1.0, np.ceil(lengths / room))
    total = times.front + rest + seat + queue + own
    return float(total.mean()), float(np.quantile(total, quantile))


class Draws(NamedTuple):
    """Stratified draws for the parts of TTFT, independent of each other."""

    uniform: Floats
    exponential: Floats
    ahead: Floats
    chance_ahead: Floats
    chance: Floats
    chance_rest: Floats
    normal: Floats


@cache
def draws() -> Draws:
    """Stratified draws, the same on every call: quantiles of a sum without noise between calls."""
    random = np.random.default_rng(20)
    even = (np.arange(_DRAWS) + 0.5) / _DRAWS

    def shuffled() -> Floats:
        return np.asarray(random.permutation(even), dtype=np.float64)

    def exponential() -> Floats:
        return np.asarray(-np.log1p(-shuffled()), dtype=np.float64)

    from scipy.special import ndtri  # noqa: PLC0415

    return Draws(
        shuffled(), exponential(), exponential(), shuffled(), shuffled(), shuffled(), np.asarray(ndtri(shuffled()))
    )


def _normal_quantile(quantile: float) -> float:
    from scipy.special import ndtri  # noqa: PLC0415

    return float(ndtri(quantile))
