"""Weights of replicas for a load balancer: by predicted wait, KV headroom and what prefix caches are worth.

The wait that a request meets at a replica is its queued tokens over the tokens a second of its GPU type. Weights fill
the shortest queues first, as water does, until what arrives in ``horizon`` seconds is shared out: then every replica
that gets any ends with the same wait, which no other weights make shorter.
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
"""KV use from which a replica admits nothing: what comes next would be preempted."""
HORIZON_SECONDS = 15.0
_DIGITS = re.compile(r"(\d+)")
MOST_TOKENS = 1e12
"""A second: what is above is a slip of the pen."""
MOST_LOAD = 0.9  # of all speed: what is above waits without end sooner or later, and no weights help
_MOST_REQUESTS = 20_000  # of a replay: enough for a p95, and less than a second


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica as it is: tokens still to generate for those queued and running, and how fast it makes them.

    ``kv_ratio`` of its cache is used; ``cached_ratio`` of the prompts that it usually gets is found in its cache.
    """

    name: str
    queued_tokens: float
    tokens_per_second: float
    kv_ratio: float = 0.0
    cached_ratio: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no engine reports."""
        numbers = (self.queued_tokens, self.kv_ratio, self.cached_ratio)
        if not (self.tokens_per_second > 0 and np.isfinite(self.tokens_per_second)):
            raise UsageError(f"{self.name}: a speed of {self.tokens_per_second:g} tokens/s", hint="calibrate it first")
        if not np.isfinite(numbers).all() or min(numbers) < 0 or max(self.kv_ratio, self.cached_ratio) > 1:
            told = f"{self.queued_tokens:g} queued tokens, KV use {self.kv_ratio:g}, cached share {self.cached_ratio:g}"
            said = f"{self.name}: {told}: one is out of its range"
            raise UsageError(said, hint="tokens are 0 or more, ratios 0 to 1")

    @property
    def wait_seconds(self) -> float:
        """Until what is queued is done."""
        return self.queued_tokens / self.tokens_per_second


class BalanceReason(StrEnum):
    """Why weights are what they are."""

    BY_WAIT = "by_wait"
    NO_GAIN = "no_gain"  # a replay shows no shorter wait than with even weights, which therefore stay
    ALL_FULL = "all_full"  # every replica is above its watermark: nothing may be steered, replicas are missing


@dataclass(frozen=True, slots=True)
class Weights:
    """Whole weights that add up to ``total``, with the predicted wait of each replica before the next request.

    ``closed`` are those above the watermark. ``affinity_loss_seconds`` is the prefill that a usual request costs more
    because requests are moved away from the warmest cache, beside weights by speed alone.
    """

    weights: Mapping[str, int]
    waits: Mapping[str, float]
    closed: tuple[str, ...]
    reason: BalanceReason
    affinity_loss_seconds: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """Plain values, as a traffic action takes them."""
        return {
            "weights": dict(self.weights),
            "waits_seconds": dict(self.waits),
            "closed": list(self.closed),
            "reason": self.reason.value,
            "affinity_loss_seconds": self.affinity_loss_seconds,
        }

    def lines(self, language: Language = "en") -> list[str]:
        """One line a replica."""
        said = []
        if self.reason is BalanceReason.ALL_FULL:
            said.append(translate("capacity.balance_all_full", language))
        for name, weight in sorted(self.weights.items(), key=lambda one: _counted(one[0])):
            closed = translate("capacity.balance_closed", language) if name in self.closed else ""
            numbers = {"replica": name, "weight": str(weight), "wait": f"{self.waits[name]:.2f}", "closed": closed}
            said.append(translate("capacity.balance_line", language, **numbers))
        if self.affinity_loss_seconds > 0:
            lost = f"{self.affinity_loss_seconds * 1000:.1f}"
            said.append(translate("capacity.balance_affinity", language, lost=lost))
        return said


def weigh(
    replicas: Sequence[ReplicaLoad],
    arriving_tokens_per_second: float,
    *,
    horizon: float = HORIZON_SECONDS,
    watermark: float = WATERMARK,
    prefill_seconds: float = 0.0,
    total: int = 100,
) -> Weights:
    """Weights for the next ``horizon`` seconds of traffic.

    ``prefill_seconds`` is what computing a whole prompt takes: a replica that finds part of it in its cache is that
    much ahead, so requests leave it only for a wait that is shorter by more.
    """
    if not replicas:
        raise UsageError("no replica to weigh", hint="give at least one")
    _check(arriving_tokens_per_second, horizon, watermark, prefill_seconds)
    names = [replica.name for replica in replicas]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"two replicas are named {twice!r}", hint="a weight belongs to one: give each its own name")
    waits = {replica.name: replica.wait_seconds for replica in replicas}
    open_ = np.array([replica.kv_ratio < watermark for replica in replicas])
    closed = tuple(replica.name for replica, is_open in zip(replicas, open_, strict=True) if not is_open)
    speed = np.array([replica.tokens_per_second for replica in replicas])
    if not open_.any():
        even = _whole(speed, total)
        return Weights(_named(replicas, even), waits, closed, BalanceReason.ALL_FULL)
    queued = np.array([replica.queued_tokens for replica in replicas])
    cached = np.array([replica.cached_ratio for replica in replicas])
    head = (cached.max() - cached) * prefill_seconds  # seconds that a colder cache costs
    arriving = max(arriving_tokens_per_second * horizon, 1e-9)
    filled = _fill(np.where(open_, queued / speed + head, inf), speed, arriving)
    share = filled / filled.sum()
    proportional = speed * open_ / (speed * open_).sum()
    loss = float(((share - proportional).clip(min=0.0) * head).sum())
    return Weights(_named(replicas, _whole(share, total)), waits, closed, BalanceReason.BY_WAIT, loss)


def even(found: Weights, total: int = 100) -> Weights:
    """Even weights of those that admit requests, in place of some that a replay shows no gain of."""
    share = np.array([0.0 if name in found.closed else 1.0 for name in found.weights])
    weights = dict(zip(found.weights, map(int, _whole(share, total)), strict=True))
    return replace(found, weights=weights, reason=BalanceReason.NO_GAIN, affinity_loss_seconds=0.0)


def _counted(name: str) -> list[tuple[int, str]]:
    """For sorting names as people count: ``r-2`` before ``r-10``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(name)]


def _check(arriving: float, horizon: float, watermark: float, prefill: float) -> None:
    """Refuse what is out of its range, by its name."""
    if not 0 <= arriving <= MOST_TOKENS:
        raise UsageError(f"{arriving:g} tokens/s arrive", hint=f"give --arriving from 0 to {MOST_TOKENS:g}")
    if not horizon > 0:
        raise UsageError(f"a horizon of {horizon:g} s", hint="give seconds above 0")
    if not 0 < watermark <= 1:
        raise UsageError(f"--watermark is a ratio above 0 and up to 1, not {watermark:g}", hint="90 % is written 0.9")
    if not (prefill >= 0 and np.isfinite(prefill)):
        raise UsageError(f"--prefill must be 0 s or more, not {prefill:g}", hint="seconds of a usual prompt")


@dataclass(frozen=True, slots=True)
class Split:
    """Where long prompts begin, and what goes to their replicas: a share of requests, and of prompt tokens."""

    split_tokens: float
    requests: float
    long_requests_ratio: float
    long_tokens_ratio: float

    def as_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def split(prompt_tokens: Sequence[float] | Floats, long_ratio: float, counts: Floats | None = None) -> Split | None:
    """The prompt length from which requests go to the replicas for long prompts, None without prompts.

    ``long_ratio`` is their share of all capacity; the prompts longer than the answer hold that share of all prompt
    tokens, so that both kinds of replicas are equally busy and short prompts never stand behind long ones. ``counts``
    says how often each length came, once when not given.
    """
    if not 0 < long_ratio < 1:
        raise UsageError(f"{long_ratio:g} of the capacity for long prompts", hint="give a ratio between 0 and 1")
    lengths = np.asarray(prompt_tokens, dtype=np.float64)
    often = np.ones(lengths.size) if counts is None else counts
    used = np.isfinite(lengths) & (lengths > 0) & (often > 0)
    if not used.any():
        return None
    order = np.argsort(lengths[used], kind="stable")
    lengths, often = lengths[used][order], often[used][order]
    tokens = lengths * often
    place = min(int(np.searchsorted(np.cumsum(tokens) / tokens.sum(), 1.0 - long_ratio)), lengths.size - 1)
    point = float(lengths[place])
    long = lengths >= point
    return Split(
        point,
        float(often.sum()),
        float(often[long].sum() / often.sum()),
        float(tokens[long].sum() / tokens.sum()),
    )


def split_point(prompt_tokens: Sequence[float], long_ratio: float) -> float | None:
    """``split`` as its length alone."""
    found = split(prompt_tokens, long_ratio)
    return None if found is None else found.split_tokens


def replay_rate(replicas: Sequence[ReplicaLoad], arriving_tokens_per_second: float, tokens_per_request: float) -> float:
    """Tokens a second at which a replay shows something: a request a minute or more, and what ``replicas`` can do."""
    speed = sum(one.tokens_per_second for one in replicas)
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

    Poisson arrivals with exponential lengths, each replica a queue that works at its speed and starts with what it
    has queued. Weights are renewed every horizon when not given, as they would be.
    """
    random = np.random.default_rng(seed)
    rate = arriving_tokens_per_second / tokens_per_request
    seconds = min(seconds, _MOST_REQUESTS / max(rate, 1e-12))  # a busy fleet shows as much in less time
    count = max(1, round(rate * seconds))
    at = np.sort(random.random(count)) * seconds
    tokens = random.exponential(tokens_per_request, count)
    draw = random.random(count)
    even = _replay(replicas, at, tokens, draw, None, arriving_tokens_per_second, renew=False)
    chosen = _replay(replicas, at, tokens, draw, weights, arriving_tokens_per_second, renew=weights is None)
    return float(np.quantile(even, 0.95)), float(np.quantile(chosen, 0.95))


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
        place = min(int(np.searchsorted(np.cumsum(share), chance)), left.size - 1)
        waits[number] = left[place] / speed[place]
        left[place] += size
    return waits


def _fill(level: Floats, speed: Floats, amount: float) -> Floats:
    """Tokens for each replica so that all that get any end at one level (seconds); ``level`` inf gets none."""
    order = np.argsort(level)
    sorted_level, sorted_speed = level[order], speed[order]
    known = np.isfinite(sorted_level)
    cumulated = np.cumsum(np.where(known, sorted_speed, 0.0))
    held = np.cumsum(np.where(known, sorted_speed * np.where(known, sorted_level, 0.0), 0.0))
    surface = (amount + held) / cumulated
    # the surface over the first n is right when it does not reach the next one's level
    following = np.append(sorted_level[1:], inf)
    place = int(np.argmax(surface <= following))
    filled: Floats = np.maximum(surface[place] - level, 0.0) * speed
    return np.where(np.isfinite(level), filled, 0.0)


def _whole(share: Floats, total: int) -> np.ndarray:
    """Whole numbers that add up to ``total`` by largest remainders; nobody who gets any gets none by rounding."""
    exact = share / share.sum() * total
    found = np.floor(exact)
    found = np.where((found == 0) & (exact > 0.25), 1.0, found)
    rest = int(total - found.sum())
    for place in np.argsort(found - exact)[: max(rest, 0)]:
        found[place] += 1
    while found.sum() > total:
        found[int(np.argmax(found))] -= 1
    return found.astype(int)


def _named(replicas: Sequence[ReplicaLoad], weights: np.ndarray) -> dict[str, int]:
    return {replica.name: int(weight) for replica, weight in zip(replicas, weights, strict=True)}
