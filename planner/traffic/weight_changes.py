"""Proposed weight changes of replicas: allowed changes of the current weights, within bounds, and their gain.

``weights`` computes the best weights for the next seconds; proposed weights stay until somebody changes them. So they
are computed for that long, and every replica stays within its bounds. A replica without values keeps its weight, a
drained one stays drained. A proposal requires a gain in a replay of the same arrivals, and enough capacity of the other
replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import Any

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats
from planner.traffic import weights as traffic_weights
from planner.traffic.weights import WATERMARK, ReplicaLoad

TOTAL = 100
LEAST_OF_EVEN, MOST_OF_EVEN = 0.25, 2.0
"""Default bounds as multiples of an even share: a wrong value of one replica neither starves nor floods another."""
LEAST_GAIN = 0.05
"""Default minimum gain of the p95 wait. Less would be reversed by other arrivals."""
_FINE = 10_000  # weights are bounded and rounded once, here


class SteerReason(StrEnum):
    """Reasons why weights are proposed, or are not."""

    BY_WAIT = "by_wait"
    NO_GAIN = "no_gain"
    ALL_FULL = "all_full"
    OVERLOAD = (
        "overload"  # the admitting replicas cannot generate the arriving tokens: replicas are missing, not weights
    )
    BOUNDS = "bounds"  # the admitting replicas cannot take the rest within their bounds
    NOTHING_TO_STEER = "nothing_to_steer"  # fewer than two replicas, or no values


@dataclass(frozen=True, slots=True)
class SteeringRules:
    """Limits of weight changes. ``least`` and ``most`` are weights of 100, by default from the even share.

    ``refill`` names backends at 0 that may get traffic again.
    """

    stands_seconds: float = 300.0
    watermark: float = WATERMARK
    prefill_seconds: float = 0.0
    tokens_per_request: float = 250.0
    least: int | None = None
    most: int | None = None
    refill: tuple[str, ...] = ()

    def bounds(self, count: int) -> tuple[int, int]:
        """Least and most weight of one of ``count``. Raises UsageError for bounds that no weights can meet."""
        even = TOTAL / count
        least = max(1, int(even * LEAST_OF_EVEN)) if self.least is None else self.least  # 0 would be drained
        most = min(TOTAL, ceil(even * MOST_OF_EVEN)) if self.most is None else self.most
        if not 0 <= least <= most <= TOTAL:
            bounds = f"weights from {least} to {most}"
            raise UsageError(f"invalid bounds: {bounds}", hint="give --least up to --most, both from 0 to 100")
        return least, most


@dataclass(frozen=True, slots=True)
class WeightProposal:
    """``weights`` of every backend, whole numbers that add up to 100; those of ``current`` without a proposal.

    ``kept`` have no values, ``drained`` were set to 0 and stay there, ``closed`` are above the watermark. ``arriving``
    tokens per second are for the others, which generate ``speed``. Waits are the p95 of the replay over all admitting
    replicas, with even weights, current ones (None if none of them admits) and proposed ones.
    """

    reason: SteerReason
    weights: Mapping[str, int]
    current: Mapping[str, int]
    kept: tuple[str, ...] = ()
    drained: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    least: int = 0
    most: int = TOTAL
    waits: Mapping[str, float] = field(default_factory=dict)
    arriving: float = 0.0
    speed: float = 0.0
    affinity_loss_seconds: float = 0.0
    even_seconds: float | None = None
    current_seconds: float | None = None
    proposed_seconds: float | None = None

    @property
    def proposed(self) -> bool:
        """True if there is something to apply."""
        return self.reason is SteerReason.BY_WAIT

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; without a proposal ``weights`` are the current ones."""
        return {
            "reason": self.reason.value,
            "weights": dict(self.weights),
            "current": dict(self.current),
            "kept": list(self.kept),
            "drained": list(self.drained),
            "closed": list(self.closed),
            "arriving_tokens_per_second": self.arriving,
            "speed_tokens_per_second": self.speed,
            "bounds": {"least": self.least, "most": self.most},
            "waits_seconds": dict(self.waits),
            "affinity_loss_seconds": self.affinity_loss_seconds,
            "p95_wait_even_seconds": self.even_seconds,
            "p95_wait_current_seconds": self.current_seconds,
            "p95_wait_seconds": self.proposed_seconds,
        }


def propose(
    backends: Sequence[str],
    loads: Sequence[ReplicaLoad],
    arriving_tokens_per_second: float,
    current: Mapping[str, float] | None = None,
    rules: SteeringRules | None = None,
) -> WeightProposal:
    """Proposes weights for ``backends``; ``loads`` has the values of some of them, by name.

    ``current`` weights have any sum, and are even by default. A backend at 0 among others stays there unless ``rules``
    name it. Raises UsageError for more backends than whole weights can distinguish, for unknown names, and for values
    that ``weigh`` refuses.
    """
    rules = rules or SteeringRules()
    _check(backends, loads, rules)
    now = _whole_weights(np.array([float((current or {}).get(name, 0.0)) for name in backends], dtype=np.float64))
    before = dict(zip(backends, now.tolist(), strict=True))
    known = {load.name: load for load in loads}
    kept = tuple(name for name in backends if name not in known)
    drained = tuple(name for name in known if not before[name] and name not in rules.refill)
    open_ = [load for load in loads if load.name not in drained]
    least, most = rules.bounds(max(sum(1 for name in backends if before[name] or name in rules.refill), 1))
    facts: dict[str, Any] = {"kept": kept, "drained": drained, "least": least, "most": most}
    if len(backends) < 2 or not open_:
        return WeightProposal(SteerReason.NOTHING_TO_STEER, before, before, **facts)
    rest = TOTAL - sum(before[name] for name in kept)
    rate = arriving_tokens_per_second * rest / TOTAL  # those without values keep their share of all arrivals
    weighed = traffic_weights.weigh(
        open_, rate, horizon=rules.stands_seconds, watermark=rules.watermark,
        prefill_seconds=rules.prefill_seconds, total=_FINE,
    )  # fmt: skip
    admitting = [name for name in backends if name in known and name not in (*drained, *weighed.closed)]
    speed = sum(known[name].tokens_per_second for name in admitting)
    waits_now = {load.name: load.wait_seconds for load in loads}
    facts |= {"closed": weighed.closed, "waits": waits_now, "arriving": rate, "speed": speed}
    if weighed.reason is traffic_weights.BalanceReason.ALL_FULL:
        return WeightProposal(SteerReason.ALL_FULL, before, before, **facts)
    if rate > traffic_weights.MOST_LOAD * speed:
        return WeightProposal(SteerReason.OVERLOAD, before, before, **facts)
    wanted = np.array([max(weighed.weights[name], 1e-6 * _FINE) for name in admitting], dtype=np.float64)
    bounded = _bounded(wanted, rest, least, most)
    if bounded is None:
        return WeightProposal(SteerReason.BOUNDS, before, before, **facts)
    weights = dict.fromkeys(backends, 0) | {name: before[name] for name in kept}
    weights |= dict(zip(admitting, bounded.tolist(), strict=True))
    waits = _replay_waits([known[name] for name in admitting], rate, before, weights, rules)
    return _decide(weights, before, waits, weighed, facts)


def _decide(
    weights: Mapping[str, int],
    before: Mapping[str, int],
    waits: tuple[float | None, float | None, float | None],
    weighed: traffic_weights.Weights,
    facts: Mapping[str, Any],
) -> WeightProposal:
    """The weights if the replay shows a gain, otherwise the previous ones."""
    sheltered = any(before[name] for name in weighed.closed)  # relieve a full cache regardless of the queues
    reference = waits[0] if waits[1] is None else waits[1]
    gains = waits[2] is not None and reference is not None and waits[2] <= (1.0 - LEAST_GAIN) * reference
    reason = SteerReason.BY_WAIT if weights != before and (gains or sheltered) else SteerReason.NO_GAIN
    return WeightProposal(
        reason, weights if reason is SteerReason.BY_WAIT else before, before, **facts,
        affinity_loss_seconds=weighed.affinity_loss_seconds, even_seconds=waits[0], current_seconds=waits[1],
        proposed_seconds=waits[2],
    )  # fmt: skip


def shift_ratios(weights: Mapping[str, int]) -> dict[str, float]:
    """Weights as parameters of the action ``shift_traffic``: of each replica's full share, 1 for the largest weight."""
    largest = max(weights.values(), default=0)
    return {name: weight / largest if largest else 1.0 for name, weight in weights.items()}


def _check(backends: Sequence[str], loads: Iterable[ReplicaLoad], rules: SteeringRules) -> None:
    if len(set(backends)) != len(backends):
        raise UsageError("a backend is named twice", hint="give each backend its own name")
    if len(backends) > TOTAL:
        message = f"{len(backends)} backends cannot share {TOTAL} whole weights"
        raise UsageError(message, hint="steer pools of replicas, each a backend of its own")
    unknown = [load.name for load in loads if load.name not in backends]
    if unknown:
        raise UsageError(f"{unknown[0]} is not a backend", hint=f"backends are {', '.join(backends)}")
    for name in rules.refill:
        if name not in backends:
            raise UsageError(f"--refill: {name} is not a backend", hint=f"backends are {', '.join(backends)}")
    if not rules.stands_seconds > 0:
        raise UsageError(
            f"--stands is {rules.stands_seconds:g} s", hint="the time that weights stay in effect, such as 5m"
        )
    if not rules.tokens_per_request >= 1.0:
        message = f"--tokens must be 1 or more, not {rules.tokens_per_request:g}"
        raise UsageError(message, hint="tokens generated per request, such as 250")


def _whole_weights(shares: Floats) -> np.ndarray:
    """Whole weights of 100 in proportion, even ones if all are zero; any share gets 1 or more."""
    wanted = shares if shares.sum() > 0 else np.ones_like(shares)
    weights = np.zeros(wanted.size, dtype=int)
    positive = _bounded(wanted[wanted > 0], TOTAL, 1, TOTAL)
    assert positive is not None  # at most as many as weights
    weights[wanted > 0] = positive
    return weights


def _bounded(wanted: Floats, total: int, least: int, most: int) -> np.ndarray | None:
    """Whole numbers from ``least`` to ``most`` that add up to ``total``, in proportion; None if impossible.

    One factor on all that are wanted, clipped at the bounds; the remainders go to the largest.
    """
    if wanted.size == 0:
        return wanted.astype(int)
    if not least * wanted.size <= total <= most * wanted.size:
        return None
    low, high = 0.0, max(most, 1) / max(float(wanted[wanted > 0].min(initial=1.0)), 1e-12)
    for _ in range(200):  # bisection: beyond the precision of a float
        factor = (low + high) / 2.0
        if np.clip(wanted * factor, least, most).sum() < total:
            low = factor
        else:
            high = factor
    exact = np.clip(wanted * high, least, most)
    whole = np.floor(exact + 1e-9)
    for index in np.argsort(whole - exact, kind="stable"):
        if whole.sum() >= total:
            break
        whole[index] += whole[index] < most
    for index in np.argsort(exact - whole, kind="stable"):
        if whole.sum() <= total:
            break
        whole[index] -= whole[index] > least
    return whole.astype(int)


def _replay_waits(
    admitting: Sequence[ReplicaLoad],
    rate: float,
    before: Mapping[str, int],
    after: Mapping[str, int],
    rules: SteeringRules,
) -> tuple[float | None, float | None, float | None]:
    """The p95 wait with even, current and proposed weights, on the same arrivals."""
    rate = traffic_weights.replay_rate(admitting, rate, rules.tokens_per_request)

    def waits(weights: Mapping[str, int]) -> tuple[float | None, float | None]:
        chosen = {load.name: weights[load.name] for load in admitting}
        if not any(chosen.values()):
            return None, None
        return traffic_weights.gain(
            admitting, rate, rules.tokens_per_request, seconds=rules.stands_seconds, weights=chosen
        )  # fmt: skip

    (_, current), (even, proposed) = waits(before), waits(after)
    return even, current, proposed
