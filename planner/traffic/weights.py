"""Weights of replicas for a load balancer: by predicted wait, KV headroom and prefix-cache affinity.

The wait at a replica is its queued tokens over the tokens per second of its GPU type. Weights fill the shortest queues
first (water filling) until the arrivals of ``horizon`` seconds are distributed. Then every replica with a share ends
with the same wait, which no other weights make shorter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import inf

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats
from outrider.text.i18n import Language, translate

WATERMARK = 0.9
"""KV use above which a replica admits nothing: the next sequences would be preempted."""
HORIZON_SECONDS = 15.0
_DIGITS = re.compile(r"(\d+)")
MOST_TOKENS = 1e12
"""Largest rate in tokens per second: higher ones are typing errors."""
MOST_LOAD = 0.9  # share of the total speed: above it the wait grows without limit, regardless of the weights
_MOST_REQUESTS = 20_000  # of a replay: enough for a p95, in less than a second


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """Current state of a replica: tokens still to generate for queued and running requests, and its speed.

    ``kv_ratio`` of its cache is used; ``cached_ratio`` of its usual prompts is in its cache.
    """

    name: str
    queued_tokens: float
    tokens_per_second: float
    kv_ratio: float = 0.0
    cached_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuses impossible values."""
        numbers = (self.queued_tokens, self.kv_ratio, self.cached_ratio)
        if not (self.tokens_per_second > 0 and np.isfinite(self.tokens_per_second)):
            raise UsageError(
                f"{self.name}: invalid speed {self.tokens_per_second:g} tokens/s", hint="calibrate it first"
            )
        if not np.isfinite(numbers).all() or min(numbers) < 0 or max(self.kv_ratio, self.cached_ratio) > 1:
            values = (
                f"{self.queued_tokens:g} queued tokens, KV use {self.kv_ratio:g}, cached share {self.cached_ratio:g}"
            )
            message = f"{self.name}: {values}: a value is out of range"
            raise UsageError(message, hint="tokens are 0 or more, ratios 0 to 1")

    @property
    def wait_seconds(self) -> float:
        """Seconds until the queue is done."""
        return self.queued_tokens / self.tokens_per_second


class BalanceReason(StrEnum):
    """Reasons of the weights."""

    BY_WAIT = "by_wait"
    NO_GAIN = "no_gain"  # a replay shows no shorter wait than even weights, which therefore stay
    ALL_FULL = "all_full"  # every replica is above its watermark: steering cannot help, replicas are missing


@dataclass(frozen=True, slots=True)
class Weights:
    """Whole weights that add up to ``total``, with the predicted wait of each replica before the next request.

    ``closed`` are those above the watermark. ``affinity_loss_seconds`` is the additional prefill of an average request
    because requests move away from the warmest cache, relative to weights by speed alone.
    """

    weights: Mapping[str, int]
    waits: Mapping[str, float]
    closed: tuple[str, ...]
    reason: BalanceReason
    affinity_loss_seconds: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """Plain values, as for a traffic action."""
        return {
            "weights": dict(self.weights),
            "waits_seconds": dict(self.waits),
            "closed": list(self.closed),
            "reason": self.reason.value,
            "affinity_loss_seconds": self.affinity_loss_seconds,
        }

    def lines(self, language: Language = "en") -> list[str]:
        """One line per replica."""
        text = []
        if self.reason is BalanceReason.ALL_FULL:
            text.append(translate("capacity.balance_all_full", language))
        for name, weight in sorted(self.weights.items(), key=lambda entry: _natural_key(entry[0])):
            closed = translate("capacity.balance_closed", language) if name in self.closed else ""
            numbers = {"replica": name, "weight": str(weight), "wait": f"{self.waits[name]:.2f}", "closed": closed}
            text.append(translate("capacity.balance_line", language, **numbers))
        if self.affinity_loss_seconds > 0:
            loss = f"{self.affinity_loss_seconds * 1000:.1f}"
            text.append(translate("capacity.balance_affinity", language, lost=loss))
        return text


def weigh(
    replicas: Sequence[ReplicaLoad],
    arriving_tokens_per_second: float,
    *,
    horizon: float = HORIZON_SECONDS,
    watermark: float = WATERMARK,
    prefill_seconds: float = 0.0,
    total: int = 100,
) -> Weights:
    """Computes weights for the next ``horizon`` seconds of traffic.

    ``prefill_seconds`` is the time to compute a whole prompt. A replica with part of it in its cache is ahead by that
    much: requests leave it only for a wait that is shorter by more.
    """
    if not replicas:
        raise UsageError("no replica is given", hint="give at least one")
    _check(arriving_tokens_per_second, horizon, watermark, prefill_seconds)
    names = [replica.name for replica in replicas]
    duplicate = next((name for name, count in Counter(names).items() if count > 1), None)
    if duplicate is not None:
        raise UsageError(f"two replicas are named {duplicate!r}", hint="give each replica its own name")
    waits = {replica.name: replica.wait_seconds for replica in replicas}
    open_ = np.array([replica.kv_ratio < watermark for replica in replicas])
    closed = tuple(replica.name for replica, is_open in zip(replicas, open_, strict=True) if not is_open)
    speed = np.array([replica.tokens_per_second for replica in replicas])
    if not open_.any():
        by_speed = _whole(speed, total)
        return Weights(_named(replicas, by_speed), waits, closed, BalanceReason.ALL_FULL)
    queued = np.array([replica.queued_tokens for replica in replicas])
    cached = np.array([replica.cached_ratio for replica in replicas])
    head = (cached.max() - cached) * prefill_seconds  # extra seconds of a colder cache
    arriving = max(arriving_tokens_per_second * horizon, 1e-9)
    filled = _fill(np.where(open_, queued / speed + head, inf), speed, arriving)
    share = filled / filled.sum()
    proportional = speed * open_ / (speed * open_).sum()
    loss = float(((share - proportional).clip(min=0.0) * head).sum())
    return Weights(_named(replicas, _whole(share, total)), waits, closed, BalanceReason.BY_WAIT, loss)


def even_weights(weights: Weights, total: int = 100) -> Weights:
    """Even weights of the admitting replicas, used if a replay shows no gain of others."""
    share = np.array([0.0 if name in weights.closed else 1.0 for name in weights.weights])
    even = dict(zip(weights.weights, map(int, _whole(share, total)), strict=True))
    return replace(weights, weights=even, reason=BalanceReason.NO_GAIN, affinity_loss_seconds=0.0)


def _natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key with natural numbers: ``r-2`` before ``r-10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(name)]


def _check(arriving: float, horizon: float, watermark: float, prefill: float) -> None:
    """Refuses values out of range, with their name."""
    if not 0 <= arriving <= MOST_TOKENS:
        raise UsageError(
            f"invalid arrival rate {arriving:g} tokens/s", hint=f"give --arriving from 0 to {MOST_TOKENS:g}"
        )
    if not horizon > 0:
        raise UsageError(f"invalid horizon {horizon:g} s", hint="give seconds above 0")
    if not 0 < watermark <= 1:
        raise UsageError(f"--watermark is a ratio above 0 and up to 1, not {watermark:g}", hint="90 % is written 0.9")
    if not (prefill >= 0 and np.isfinite(prefill)):
        raise UsageError(f"--prefill must be 0 s or more, not {prefill:g}", hint="seconds of an average prompt")


@dataclass(frozen=True, slots=True)
class Split:
    """Lower length of long prompts, and their share of requests and of prompt tokens."""

    split_tokens: float
    requests: float
    long_requests_ratio: float
    long_tokens_ratio: float

    def as_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def split(prompt_tokens: Sequence[float] | Floats, long_ratio: float, counts: Floats | None = None) -> Split | None:
    """Returns the prompt length from which requests go to the replicas for long prompts, None without prompts.

    ``long_ratio`` is these replicas' share of all capacity. Prompts above the result hold that share of all prompt
    tokens, so that both kinds of replicas are equally busy and short prompts never queue behind long ones. ``counts``
    is the number of requests of each length, by default 1.
    """
    if not 0 < long_ratio < 1:
        raise UsageError(
            f"invalid capacity share for long prompts: {long_ratio:g}", hint="give a ratio between 0 and 1"
        )
    lengths = np.asarray(prompt_tokens, dtype=np.float64)
    count_of_length = np.ones(lengths.size) if counts is None else counts
    used = np.isfinite(lengths) & (lengths > 0) & (count_of_length > 0)
    if not used.any():
        return None
    order = np.argsort(lengths[used], kind="stable")
    lengths, count_of_length = lengths[used][order], count_of_length[used][order]
    tokens = lengths * count_of_length
    index = min(int(np.searchsorted(np.cumsum(tokens) / tokens.sum(), 1.0 - long_ratio)), lengths.size - 1)
    point = float(lengths[index])
    long = lengths >= point
    return Split(
        point,
        float(count_of_length.sum()),
        float(count_of_length[long].sum() / count_of_length.sum()),
        float(tokens[long].sum() / tokens.sum()),
    )


def replay_rate(replicas: Sequence[ReplicaLoad], arriving_tokens_per_second: float, tokens_per_request: float) -> float:
    """Tokens per second for a meaningful replay: at least a request a minute, at most the capacity of ``replicas``."""
    speed = sum(replica.tokens_per_second for replica in replicas)
    return min(max(arriving_tokens_per_second, tokens_per_request / 60.0), MOST_LOAD * speed)


def gain(
    replicas: Sequence[ReplicaLoad],
    arriving_tokens_per_second: float,
    tokens_per_request: float,
    *,
    seconds: float = 300.0,
    seed: int = 1,
    weights: Mapping[str, int] | None = None,
) -> tuple[float, float]:
    """p95 wait of requests with even weights and with ``weights``, replayed on the same arrivals.

    Poisson arrivals with exponential lengths; each replica is a queue that works at its speed and starts with its
    current queue. Without ``weights`` they are recomputed every horizon, as in operation.
    """
    random = np.random.default_rng(seed)
    rate = arriving_tokens_per_second / tokens_per_request
    seconds = min(seconds, _MOST_REQUESTS / max(rate, 1e-12))  # a busy fleet shows as much in less time
    count = max(1, round(rate * seconds))
    at = np.sort(random.random(count)) * seconds
    tokens = random.exponential(tokens_per_request, count)
    draw = random.random(count)
    unweighted = _replay(replicas, at, tokens, draw, None, arriving_tokens_per_second, renew=False)
    weighted = _replay(replicas, at, tokens, draw, weights, arriving_tokens_per_second, renew=weights is None)
    return float(np.quantile(unweighted, 0.95)), float(np.quantile(weighted, 0.95))


def _replay(
    replicas: Sequence[ReplicaLoad],
    at: Floats,
    tokens: Floats,
    draw: Floats,
    weights: Mapping[str, int] | None,
    arriving: float,
    *,
    renew: bool,
) -> Floats:
    speed = np.array([replica.tokens_per_second for replica in replicas])
    left = np.array([replica.queued_tokens for replica in replicas])
    share = np.ones(len(replicas)) / len(replicas)
    if weights is not None:
        share = np.array([float(weights[replica.name]) for replica in replicas])
        share /= share.sum()
    waits, clock, due = np.empty(at.size), 0.0, 0.0
    for number, (now, size, chance) in enumerate(zip(at, tokens, draw, strict=True)):
        left = np.maximum(left - speed * (now - clock), 0.0)
        clock = now
        if renew and now >= due:
            filled = _fill(left / speed, speed, max(arriving * HORIZON_SECONDS, 1e-9))
            share, due = filled / filled.sum(), now + HORIZON_SECONDS
        index = min(int(np.searchsorted(np.cumsum(share), chance)), left.size - 1)
        waits[number] = left[index] / speed[index]
        left[index] += size
    return waits


def _fill(level: Floats, speed: Floats, amount: float) -> Floats:
    """Tokens for each replica so that all with a share end at one level (seconds); ``level`` inf gets none."""
    order = np.argsort(level)
    sorted_level, sorted_speed = level[order], speed[order]
    known = np.isfinite(sorted_level)
    cumulated = np.cumsum(np.where(known, sorted_speed, 0.0))
    level_tokens = np.cumsum(np.where(known, sorted_speed * np.where(known, sorted_level, 0.0), 0.0))
    surface = (amount + level_tokens) / cumulated
    # the surface over the first n is right if it does not reach the next one's level
    following = np.append(sorted_level[1:], inf)
    index = int(np.argmax(surface <= following))
    filled: Floats = np.maximum(surface[index] - level, 0.0) * speed
    return np.where(np.isfinite(level), filled, 0.0)


def _whole(share: Floats, total: int) -> np.ndarray:
    """Whole numbers that add up to ``total`` by largest remainders; rounding removes no share."""
    exact = share / share.sum() * total
    whole = np.floor(exact)
    whole = np.where((whole == 0) & (exact > 0.25), 1.0, whole)
    rest = int(total - whole.sum())
    for index in np.argsort(whole - exact)[: max(rest, 0)]:
        whole[index] += 1
    while whole.sum() > total:
        whole[int(np.argmax(whole))] -= 1
    return whole.astype(int)


def _named(replicas: Sequence[ReplicaLoad], weights: np.ndarray) -> dict[str, int]:
    return {replica.name: int(weight) for replica, weight in zip(replicas, weights, strict=True)}
