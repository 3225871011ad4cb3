"""A replica of a prefill pool: prompts one after the other, then their keys and values over a link.

Both are queues M/G/1; model and references are in ``disaggregated``, which sizes both pools.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf, isfinite

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats
from planner.performance import queueing
from planner.performance.memory_fit import Setup
from planner.performance.model_specs import ModelShape
from planner.performance.queueing import AtSlo, Bounds, OutOfReach, Prediction, Slo, SloReason, StepTimes, Work

NETWORK_BYTES = 50e9
"""Prior: one 400 Gbit/s port per GPU, as in a server of eight H100 or H200."""
TRANSFER_SECONDS = 2e-3
"""Prior: set-up of a transfer and notification of the decode replica."""
CLOSE = 1e-3
_NO_BUDGET = 2**31  # no prompt competes for the steps of a decode replica


@dataclass(frozen=True, slots=True)
class PoolRole:
    """The replica of one pool: step times, limits, GPUs and name."""

    times: StepTimes
    bounds: Bounds
    gpus: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """Link for keys and values from a prefill replica: ``bytes_per_token`` of a prompt at ``rate`` bytes/s."""

    bytes_per_token: float
    rate: float
    latency: float = TRANSFER_SECONDS

    def __post_init__(self) -> None:
        """Refuses links without capacity."""
        figures = (self.bytes_per_token, self.rate, self.latency)
        if not all(isfinite(value) and value >= 0 for value in figures) or self.rate == 0:
            raise UsageError(
                f"invalid link: {self.rate:g} bytes/s for {self.bytes_per_token:g} bytes per token",
                hint="give --link above 0, such as 50e9 for a 400 Gbit/s port",
            )

    def seconds(self, tokens: float) -> float:
        """Seconds of one prompt's transfer on an idle link."""
        return self.latency + tokens * self.bytes_per_token / self.rate


class Bind(StrEnum):
    """Limit of a pool's load."""

    TTFT = "ttft"
    TPOT = "tpot"
    LINK = "link"
    KV = "kv"
    STABILITY = "stability"


def decoding(side: PoolRole) -> tuple[StepTimes, Bounds]:
    """Steps without prompts: those belong to the other pool, with their seconds and budget."""
    return replace(side.times, prompt=0.0, front=0.0), replace(side.bounds, token_budget=_NO_BUDGET)


def prompt_seconds(side: PoolRole, work: Work) -> float:
    """Seconds of one average prompt on an idle prefill replica, in as many steps as its budget requires."""
    steps = max(1.0, np.ceil(work.computed / max(side.bounds.token_budget, 1)))
    return float(side.times.base * steps + side.times.prompt * work.computed)


def link_of(shape: ModelShape, setup: Setup, rate: float = NETWORK_BYTES) -> Link:
    """Link of a group: every GPU sends its own heads through its own port; one of them sends a latent."""
    ports = 1 if shape.latent else min(setup.tp, shape.kv_heads)
    return Link(shape.kv_values(1, shape.layers) * setup.kv_bits / 8.0, rate * ports)


def prompts_at(side: PoolRole, link: Link, work: Work, rate: float, quantile: float, after: float = 0.0) -> Prediction:
    """A prefill replica at ``rate`` requests per second; first tokens follow ``after`` seconds later from decode.

    ``running`` are the prompts in the replica, including waiting ones (Little's law). TPOT is not predicted.
    """
    busy = rate * max(prompt_seconds(side, work), link.seconds(work.prompt))
    if busy >= 1.0:
        return Prediction(rate, busy, inf, 1.0, 0.0, inf, inf, 0.0, 0.0)
    ttft = _first_tokens(side, link, work, rate) + after
    inside = float(_prompts(side, work, rate)[0].mean())
    late = float(np.quantile(ttft, quantile))
    return Prediction(rate, busy, rate * inside, busy, 0.0, float(ttft.mean()), late, 0.0, 0.0)


def prompts_at_slo(side: PoolRole, link: Link, work: Work, slo: Slo, after: float = 0.0) -> AtSlo | OutOfReach:
    """The largest rate of a prefill replica within a TTFT objective."""
    rate, binds = largest(side, link, work, slo.ttft - after, slo.quantile)
    prediction = prompts_at(side, link, work, rate, slo.quantile, after)
    if rate <= 0:
        return OutOfReach(SloReason.TTFT_TOO_SHORT, prediction)
    return AtSlo(prediction, "ttft" if binds is Bind.TTFT else "stability")


def largest(side: PoolRole, link: Link, work: Work, ttft: float, quantile: float) -> tuple[float, Bind]:
    """The largest rate of a prefill replica whose part of the TTFT takes ``ttft`` seconds, and its limit."""
    per_prompt, per_transfer = prompt_seconds(side, work), link.seconds(work.prompt)
    slowest = max(per_prompt, per_transfer)
    high, low = (1.0 - 1e-6) / slowest, 0.0
    stable = Bind.LINK if per_transfer > per_prompt else Bind.STABILITY
    if first_token(side, link, work, high, quantile) <= ttft:
        return high, stable
    if first_token(side, link, work, 0.0, quantile) > ttft:
        return 0.0, Bind.TTFT
    while high - low > CLOSE * high:
        middle = (low + high) / 2.0
        if first_token(side, link, work, middle, quantile) <= ttft:
            low = middle
        else:
            high = middle
    return low, Bind.LINK if per_transfer > per_prompt and low > 0.9 / slowest else Bind.TTFT


def first_token(side: PoolRole, link: Link, work: Work, rate: float, quantile: float) -> float:
    """Quantile of front, wait, prompt, wait for the link and transfer at ``rate`` requests per second."""
    return float(np.quantile(_first_tokens(side, link, work, rate), quantile))


def _first_tokens(side: PoolRole, link: Link, work: Work, rate: float) -> Floats:
    """The same for each of the sampled requests."""
    inside, ratio = _prompts(side, work, rate)
    transfer = link.latency + (link.seconds(work.prompt) - link.latency) * ratio
    draws = queueing.draws()
    at_link = _wait(rate, transfer, draws.ahead, draws.chance_ahead)
    seconds: Floats = side.times.front + inside + at_link + transfer
    return seconds


def _prompts(side: PoolRole, work: Work, rate: float) -> tuple[Floats, Floats]:
    """Seconds of wait and prompt of each sampled request, and the ratio of its prompt to the mean prompt.

    A wait in M/G/1 is zero, or else exponential with the mean of Pollaczek and Khinchine, which is exact in heavy
    traffic.
    """
    draws = queueing.draws()
    sigma = np.sqrt(np.log1p(work.prompt_cv**2))
    ratio: Floats = np.exp(sigma * draws.normal - sigma**2 / 2.0)
    steps = np.maximum(1.0, np.ceil(work.computed * ratio / max(side.bounds.token_budget, 1)))
    service = side.times.base * steps + side.times.prompt * work.computed * ratio
    inside: Floats = _wait(rate, service, draws.exponential, draws.chance) + service
    return inside, ratio


def _wait(rate: float, service: Floats, exponential: Floats, chance: Floats) -> Floats:
    busy = min(rate * float(service.mean()), 1.0 - 1e-9)
    behind = float((service**2).mean()) / (2.0 * float(service.mean())) / (1.0 - busy)
    return np.where(chance < busy, exponential * behind, 0.0)
