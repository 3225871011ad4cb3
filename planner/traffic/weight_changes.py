"""Weights of replicas as a proposal: what may be changed of what is set now, within bounds, and what it gains.

``balance`` says what would be best for the traffic to come; what is proposed here stands until somebody changes it.
So the weights are those for as long as they stand, no replica gets less or more than its bounds, one without values
keeps what it has, one that somebody drained stays drained, and nothing is proposed that a replay of the same arrivals
does not show to be better, nor for more traffic than the others can take.
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
"""Prior bounds as multiples of an even share: a wrong value of one replica neither starves nor floods another."""
LEAST_GAIN = 0.05
"""Prior: of the p95 wait. What is less, other arrivals would turn round."""
_FINE = 10_000  # weights are bounded and rounded once, here


class SteerReason(StrEnum):
    """Why weights are proposed, or are not."""

    BY_WAIT = "by_wait"
    NO_GAIN = "no_gain"
    ALL_FULL = "all_full"
    OVERLOAD = "overload"  # those that admit cannot generate what arrives: replicas are missing, not weights
    BOUNDS = "bounds"  # those that admit cannot take the rest within their bounds
    NOTHING_TO_STEER = "nothing_to_steer"  # fewer than two replicas, or values of none


@dataclass(frozen=True, slots=True)
class Rules:
    """How weights may be changed. ``least`` and ``most`` are weights of 100, by the even share when not given.

    ``refill`` names backends that are at 0 now and may get traffic again.
    """

    stands_seconds: float = 300.0
    watermark: float = WATERMARK
    prefill_seconds: float = 0.0
    tokens_per_request: float = 250.0
    least: int | None = None
    most: int | None = None
    refill: tuple[str, ...] = ()

    def bounds(self, count: int) -> tuple[int, int]:
        """Least and most weight of one of ``count``. Raises UsageError for bounds that no weights can keep."""
        even = TOTAL / count
        least = max(1, int(even * LEAST_OF_EVEN)) if self.least is None else self.least  # 0 would be drained
        most = min(TOTAL, ceil(even * MOST_OF_EVEN)) if self.most is None else self.most
        if not 0 <= least <= most <= TOTAL:
            said = f"weights from {least} to {most}"
            raise UsageError(f"{said} are no bounds", hint="give --least up to --most, both from 0 to 100")
        return least, most


@dataclass(frozen=True, slots=True)
class Steering:
    """``weights`` of every backend, whole numbers that add up to 100; those of ``current`` where none are proposed.

    ``kept`` have no values, ``drained`` were set to 0 and stay there, ``closed`` are above the watermark. ``arriving``
    tokens a second are for the others, which generate ``speed``. Waits are p95 of the replay over all that admit, of
    even weights, of those set now (None where none of them admits) and of those proposed.
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
        """True where there is something to apply."""
        return self.reason is SteerReason.BY_WAIT

    def as_dict(self) -> dict[str, Any]:
        """As JSON; without a proposal ``weights`` are those set now."""
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
    rules: Rules | None = None,
) -> Steering:
    """Weights for ``backends``, of which ``loads`` has the values of some, by name.

    ``current`` weights of any sum, even ones when not given; what is at 0 among others stays there unless ``rules``
    name it. Raises UsageError for more backends than whole weights can tell apart, for names that do not match and for
    what ``balance.weigh`` refuses.
    """
    rules = rules or Rules()
    _check(backends, loads, rules)
    now = _shared(np.array([float((current or {}).get(name, 0.0)) for name in backends], dtype=np.float64))
    before = dict(zip(backends, now.tolist(), strict=True))
    known = {one.name: one for one in loads}
    kept = tuple(name for name in backends if name not in known)
    drained = tuple(name for name in known if not before[name] and name not in rules.refill)
    open_ = [one for one in loads if one.name not in drained]
    least, most = rules.bounds(max(sum(1 for name in backends if before[name] or name in rules.refill), 1))
    told: dict[str, Any] = {"kept": kept, "drained": drained, "least": least, "most": most}
    if len(backends) < 2 or not open_:
        return Steering(SteerReason.NOTHING_TO_STEER, before, before, **told)
    rest = TOTAL - sum(before[name] for name in kept)
    rate = arriving_tokens_per_second * rest / TOTAL  # those without values take their share of all that arrives
    made = traffic_weights.weigh(
        open_, rate, horizon=rules.stands_seconds, watermark=rules.watermark,
        prefill_seconds=rules.prefill_seconds, total=_FINE,
    )  # fmt: skip
    admitting = [name for name in backends if name in known and name not in (*drained, *made.closed)]
    speed = sum(known[name].tokens_per_second for name in admitting)
    waits_now = {one.name: one.wait_seconds for one in loads}
    told |= {"closed": made.closed, "waits": waits_now, "arriving": rate, "speed": speed}
    if made.reason is traffic_weights.BalanceReason.ALL_FULL:
        return Steering(SteerReason.ALL_FULL, before, before, **told)
    if rate > traffic_weights.MOST_LOAD * speed:
        return Steering(SteerReason.OVERLOAD, before, before, **told)
    wanted = np.array([max(made.weights[name], 1e-6 * _FINE) for name in admitting], dtype=np.float64)
    bounded = _bounded(wanted, rest, least, most)
    if bounded is None:
        return Steering(SteerReason.BOUNDS, before, before, **told)
    weights = dict.fromkeys(backends, 0) | {name: before[name] for name in kept}
    weights |= dict(zip(admitting, bounded.tolist(), strict=True))
    waits = _replayed([known[name] for name in admitting], rate, before, weights, rules)
    return _judged(weights, before, waits, made, told)


def _judged(
    weights: Mapping[str, int],
    before: Mapping[str, int],
    waits: tuple[float | None, float | None, float | None],
    made: traffic_weights.Weights,
    told: Mapping[str, Any],
) -> Steering:
    """The weights where the replay gains by them, else those of before."""
    sheltered = any(before[name] for name in made.closed)  # a full cache is left whatever the queues say
    beside = waits[0] if waits[1] is None else waits[1]
    gains = waits[2] is not None and beside is not None and waits[2] <= (1.0 - LEAST_GAIN) * beside
    reason = SteerReason.BY_WAIT if weights != before and (gains or sheltered) else SteerReason.NO_GAIN
    return Steering(
        reason, weights if reason is SteerReason.BY_WAIT else before, before, **told,
        affinity_loss_seconds=made.affinity_loss_seconds, even_seconds=waits[0], current_seconds=waits[1],
        proposed_seconds=waits[2],
    )  # fmt: skip


def shift_ratios(weights: Mapping[str, int]) -> dict[str, float]:
    """Weights as what the action ``shift_traffic`` takes: of each replica's full share, 1 for the largest weight."""
    largest = max(weights.values(), default=0)
    return {name: weight / largest if largest else 1.0 for name, weight in weights.items()}


def _check(backends: Sequence[str], loads: Iterable[ReplicaLoad], rules: Rules) -> None:
    if len(set(backends)) != len(backends):
        raise UsageError("a backend is named twice", hint="a weight belongs to one: give each its own name")
    if len(backends) > TOTAL:
        said = f"{len(backends)} backends cannot share {TOTAL} whole weights"
        raise UsageError(said, hint="steer pools of replicas, each a backend of its own")
    strange = [one.name for one in loads if one.name not in backends]
    if strange:
        raise UsageError(f"{strange[0]} is no backend", hint=f"backends are {', '.join(backends)}")
    for name in rules.refill:
        if name not in backends:
            raise UsageError(f"--refill: {name} is no backend", hint=f"backends are {', '.join(backends)}")
    if not rules.stands_seconds > 0:
        raise UsageError(f"--stands is {rules.stands_seconds:g} s", hint="how long the weights are to stand: 5m")
    if not rules.tokens_per_request >= 1.0:
        said = f"--tokens must be 1 or more, not {rules.tokens_per_request:g}"
        raise UsageError(said, hint="generated per request, such as 250")


def _shared(shares: Floats) -> np.ndarray:
    """Whole weights of 100 in proportion, even ones where all are zero; who has any has 1 or more."""
    wanted = shares if shares.sum() > 0 else np.ones_like(shares)
    found = np.zeros(wanted.size, dtype=int)
    some = _bounded(wanted[wanted > 0], TOTAL, 1, TOTAL)
    assert some is not None  # at most as many as weights
    found[wanted > 0] = some
    return found


def _bounded(wanted: Floats, total: int, least: int, most: int) -> np.ndarray | None:
    """Whole numbers from ``least`` to ``most`` that add up to ``total``, else as ``wanted``; None if there are none.

    One factor on all that are wanted, cut at the bounds, and the remainders to the largest.
    """
    if wanted.size == 0:
        return wanted.astype(int)
    if not least * wanted.size <= total <= most * wanted.size:
        return None
    low, high = 0.0, max(most, 1) / max(float(wanted[wanted > 0].min(initial=1.0)), 1e-12)
    for _ in range(200):  # halves: past the precision of a float
        factor = (low + high) / 2.0
        if np.clip(wanted * factor, least, most).sum() < total:
            low = factor
        else:
            high = factor
    exact = np.clip(wanted * high, least, most)
    found = np.floor(exact + 1e-9)
    for place in np.argsort(found - exact, kind="stable"):
        if found.sum() >= total:
            break
        found[place] += found[place] < most
    for place in np.argsort(exact - found, kind="stable"):
        if found.sum() <= total:
            break
        found[place] -= found[place] > least
    return found.astype(int)


def _replayed(
    admitting: Sequence[ReplicaLoad], rate: float, before: Mapping[str, int], after: Mapping[str, int], rules: Rules
) -> tuple[float | None, float | None, float | None]:
    """The p95 wait with even weights, those set now and those proposed, on the same arrivals."""
    rate = traffic_weights.replay_rate(admitting, rate, rules.tokens_per_request)

    def waits(weights: Mapping[str, int]) -> tuple[float | None, float | None]:
        some = {one.name: weights[one.name] for one in admitting}
        if not any(some.values()):
            return None, None
        return traffic_weights.gain(
            admitting, rate, rules.tokens_per_request, seconds=rules.stands_seconds, weights=some
        )  # fmt: skip

    (_, current), (even, proposed) = waits(before), waits(after)
    return even, current, proposed
