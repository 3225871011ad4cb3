"""Which GPUs to run a service on: every type, group size and contract that fits, as a front of cost and latency.

For each offer the largest load of one replica that keeps the promise comes from ``queueing``, on measured step times
where there are some, else on those of data sheets. ``mix`` then finds the cheapest whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from math import inf
from typing import Any

from outrider.errors import UsageError
from outrider.model import Calibration
from outrider.text.i18n import Language
from planner.cost.milp import Demand, Mix, NoMix, Option, Pool, cheapest, front
from planner.cost.offers import DEFAULT_CURRENCY, Offer, cuts_of, default_offers, with_parts
from planner.performance import measured, queueing, roofline
from planner.performance.gpu_catalog import Cut
from planner.performance.memory_fit import Fit, NoFit, Setup, fit
from planner.performance.model_specs import ModelShape
from planner.performance.queueing import SAFE_LOAD, AtSlo, Bounds, Slo, StepTimes, Work

GROUPS = (1, 2, 4, 8)
PIPELINES = (1, 2, 4)
"""Stages that are tried: with more of them most of a step is waiting for the stage before."""
LOADS = (1.0, 0.85, 0.7, 0.5, 0.3)
"""Loads at which a replica may run, relative to the largest that keeps the promise: less load answers sooner."""
MOST_LOAD = 1e9
"""Requests a second: what is above is a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted: a model, its requests, the peak and mean load, a promise, and what is allowed.

    ``buffer`` is added to the peak. A replica is TP x PP GPUs, of ``groups`` and ``pipelines``. ``tests`` are load
    tests of this model: their step times count before those of data sheets. ``regions`` are those where the data
    may go, empty: all. ``within`` seconds the GPUs must be there. ``losses`` replicas may be gone at any time;
    ``spot_ratio`` of the capacity may be on spot. ``cuts``: slices by MIG and shares by MPS are offered as well.
    """

    shape: ModelShape
    work: Work
    qps: float
    slo: Slo = field(default_factory=Slo)
    mean_qps: float | None = None
    buffer: float = 0.25
    setup: Setup = field(default_factory=Setup)
    groups: Sequence[int] = GROUPS
    pipelines: Sequence[int] = PIPELINES
    tests: Sequence[Calibration] = ()
    language: Language = "en"
    regions: frozenset[str] = frozenset()
    within: float | None = None
    losses: int = 0
    spot_ratio: float = 1.0
    whole_nodes: bool = False
    cuts: frozenset[Cut] = frozenset()


class Refusal(StrEnum):
    """Why an offer is not considered."""

    NO_FIT = "no_fit"
    SLO = "slo"
    QUOTA = "quota"
    REGION = "region"
    LEAD = "lead"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a replica, with what it was counted from."""

    offer: Offer
    setup: Setup
    rate: float
    latency: float
    prediction: queueing.Prediction
    fit: Fit
    binds: str
    source: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "gpu_type": self.offer.gpu.name,
            "cut_from": self.offer.gpu.whole or None,
            "parts_per_gpu": self.offer.gpu.parts,
            "purchase": self.offer.purchase,
            "region": self.offer.region or None,
            "tp": self.setup.tp,
            "pp": self.setup.pp,
            "requests_per_second": self.rate,
            "running": self.prediction.running,
            "ttft_seconds": self.prediction.ttft,
            "tpot_seconds": self.prediction.tpot,
            "latency_seconds": self.latency,
            "binds": self.binds,
            "source": self.source,
            "price_source": self.offer.gpu.price_source if self.offer.price is None else "given",
            "price_assumed": self.offer.assumed,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """The front, cheapest first, the ways its mixes count, and why others of the ``offers`` are not in it.

    ``slo_kept`` is False when no offer keeps the promise at any load: then the front shows what loads that leave the
    engines stable would cost, and nothing is to be pinned to it.
    """

    front: tuple[Mix, ...]
    ways: tuple[Way, ...]
    refused: tuple[tuple[str, Refusal, str], ...]
    slo_kept: bool
    nothing: NoMix | None = None
    need: float = 0.0
    offers: tuple[Offer, ...] = ()

    @property
    def currency(self) -> str:
        """What prices are in: one of all offers."""
        return self.offers[0].currency if self.offers else DEFAULT_CURRENCY

    @property
    def cheapest(self) -> Mix | None:
        """The first of the front."""
        return self.front[0] if self.front else None


def compare(request: Request, offers: Sequence[Offer]) -> Answer:
    """Every way to serve the request, and the front of cost against the latency of a usual answer.

    Raises UsageError for a request that means nothing, and for prices in several currencies.
    """
    _usable(request)
    currencies = sorted({offer.currency for offer in offers})
    if len(currencies) > 1:
        raise UsageError(
            f"prices in {' and '.join(currencies)} cannot be compared",
            hint="give every offer under gpus: a price_per_gpu_hour in one currency; prices that are not given are USD",
        )
    ways, refused = _ways(request, offers, keep_slo=True)
    kept = bool(ways) or not any(reason is Refusal.SLO for _, reason, _ in refused)
    if not kept:
        ways, _ = _ways(request, offers, keep_slo=False)
    demand = Demand(request.qps * (1.0 + request.buffer), request.losses, request.spot_ratio)
    pools, options = _problem(request, ways)
    found = front(options, pools, demand)
    if isinstance(found, NoMix):
        return Answer((), tuple(ways), tuple(refused), kept, found, demand.need, tuple(offers))
    return Answer(tuple(found), tuple(ways), tuple(refused), kept, None, demand.need, tuple(offers))


def _usable(request: Request) -> None:
    """Refuse loads, ratios and lengths that mean nothing, by the name of their option."""
    for option, load in (("--qps", request.qps), ("--mean-qps", request.mean_qps)):
        if load is not None and not 0 <= load <= MOST_LOAD:
            raise UsageError(f"{option} is {load:g} requests/s", hint=f"give 0 to {MOST_LOAD:g}")
    for option, ratio in (("--buffer", request.buffer), ("--spot-ratio", request.spot_ratio)):
        if not 0 <= ratio <= 1:
            raise UsageError(f"{option} is a ratio from 0 to 1, not {ratio:g}", hint="25 % is written 0.25 or 25%")
    length, most = request.work.prompt + request.work.output, request.shape.context
    if length > most:
        raise UsageError(
            f"a request of {length:g} tokens is longer than the {most} that {request.shape.name} takes",
            hint="give --prompt and --tokens of a usual request",
        )


def cost_per_1k_tokens(cost_per_hour: float, tokens_per_second: float) -> float | None:
    """What a thousand generated tokens cost at that rate; None without any."""
    return cost_per_hour / (tokens_per_second * 3.6) if tokens_per_second > 0 else None


def describe(request: Request, answer: Answer, mix: Mix) -> dict[str, Any]:
    """One point of the front as plain values; the mean load pays for what the peak needs."""
    mean = request.qps if request.mean_qps is None else request.mean_qps
    return {
        "cost_per_hour": mix.cost_per_hour,
        "latency_seconds": mix.latency,
        "cost_per_1k_tokens_at_peak": cost_per_1k_tokens(mix.cost_per_hour, request.qps * request.work.output),
        "cost_per_1k_tokens": cost_per_1k_tokens(mix.cost_per_hour, mean * request.work.output),
        "capacity_requests_per_second": mix.capacity,
        "gpus": dict(mix.gpus),
        "slices": dict(mix.slices),
        "replicas": [answer.ways[place].as_dict() | {"replicas": count} for place, count in mix.replicas.items()],
        "gap_ratio": mix.gap_ratio,
    }


def _ways(
    request: Request, offers: Sequence[Offer], *, keep_slo: bool
) -> tuple[list[Way], list[tuple[str, Refusal, str]]]:
    ways: list[Way] = []
    refused: list[tuple[str, Refusal, str]] = []
    for offer in with_parts(offers, request.cuts):
        why = _not_allowed(request, offer)
        if why is not None:
            if not offer.cut:  # said of the whole GPU
                refused.append((offer.name, *why))
            continue
        mine, reasons = _of_offer(request, offer, keep_slo=keep_slo)
        ways += mine
        # a slice is offered where the model fits it
        if not mine and not (offer.cut and reasons[-1][0] is Refusal.NO_FIT):
            refused.append((offer.name, *reasons[-1]))
    return ways, refused


def _not_allowed(request: Request, offer: Offer) -> tuple[Refusal, str] | None:
    if request.regions and offer.region not in request.regions:
        return Refusal.REGION, offer.region or "-"
    if offer.quota == 0:
        return Refusal.QUOTA, "0"
    if request.within is not None and offer.lead > request.within:
        return Refusal.LEAD, f"{offer.lead:g} s"
    return None


def _of_offer(request: Request, offer: Offer, *, keep_slo: bool) -> tuple[list[Way], list[tuple[Refusal, str]]]:
    ways: list[Way] = []
    reasons: list[tuple[Refusal, str]] = [(Refusal.NO_FIT, "")]
    nearest = inf
    for tp, pp in product(request.groups, request.pipelines):
        if not _possible(request, offer, tp, pp):
            continue
        setup = replace(request.setup, tp=tp, pp=pp)
        length = min(request.shape.context, int(request.work.prompt + request.work.output) + 1)
        held = fit(request.shape, offer.gpu, setup, context=length)
        if isinstance(held, NoFit):
            reasons.append((Refusal.NO_FIT, held.text(request.language)))
            continue
        if offer.quota is not None and setup.gpus > offer.quota:
            reasons.append((Refusal.QUOTA, f"{offer.quota} < {setup.gpus}"))
            continue
        found = _at_loads(request, offer, setup, held, keep_slo=keep_slo)
        if not found:
            misses, text = _alone(request, offer, setup, held)
            reasons += [(Refusal.SLO, text)] if misses < nearest else []
            nearest = min(nearest, misses)
        ways += found
    # what came nearest to serving says most: the sort keeps the order of equals, and groups that miss the promise by
    # more than one before them were left out
    order = [Refusal.NO_FIT, Refusal.QUOTA, Refusal.SLO]
    return ways, sorted(reasons, key=lambda reason: order.index(reason[0]))


def _possible(request: Request, offer: Offer, tp: int, pp: int) -> bool:
    """Whether an engine can be set up so at all: slices and shares have no link to each other."""
    if offer.gpu.whole and (tp, pp) != (1, 1):
        return False
    return tp <= offer.gpu.node and pp <= request.shape.layers


def used(request: Request, offers: Sequence[Offer]) -> list[Calibration]:
    """The tests of a request that step times of any of its groups on these offers come from."""
    found: list[Calibration] = []
    for offer in with_parts(offers, request.cuts):
        if offer.step_times is not None or _not_allowed(request, offer) is not None:
            continue
        for tp, pp in product(request.groups, request.pipelines):
            test = measured.nearest(offer.gpu, replace(request.setup, tp=tp, pp=pp), request.tests)
            if test is not None and _possible(request, offer, tp, pp) and test not in found:
                found.append(test)
    return found


def _engine(request: Request, offer: Offer, setup: Setup, held: Fit) -> tuple[StepTimes, Bounds]:
    times = offer.step_times or measured.step_times(request.shape, offer.gpu, setup, request.work, request.tests)
    return times, roofline.bounds(held, setup)


def _at_loads(request: Request, offer: Offer, setup: Setup, held: Fit, *, keep_slo: bool) -> list[Way]:
    times, limits = _engine(request, offer, setup, held)
    rate, binds = 0.0, "stability"
    if keep_slo:
        top = queueing.at_slo(times, limits, request.work, request.slo)
        if not isinstance(top, AtSlo):
            return []
        rate, binds = top.prediction.rate, top.binds
    if not keep_slo or binds == "stability":
        rate, binds = SAFE_LOAD * queueing.most(times, limits, request.work), "stability"
    ways = []
    for share in LOADS:
        said = queueing.predict(times, limits, request.work, rate * share, request.slo.quantile)
        latency = said.ttft + (request.work.output - 1.0) * said.tpot + offer.latency
        ways.append(Way(offer, setup, rate * share, latency, said, held, binds, times.source))
    return ways


def _alone(request: Request, offer: Offer, setup: Setup, held: Fit) -> tuple[float, str]:
    """How many times the promised time a request takes that is alone, and its times."""
    times, limits = _engine(request, offer, setup, held)
    idle = queueing.predict(times, limits, request.work, 0.0, request.slo.quantile)
    misses = max(idle.ttft / request.slo.ttft, idle.tpot / request.slo.tpot)
    return misses, f"{group_text(setup)}: TTFT {idle.ttft:.3g} s, TPOT {idle.tpot:.3g} s"


def _problem(request: Request, ways: Sequence[Way]) -> tuple[list[Pool], list[Option]]:
    pools: dict[str, Pool] = {}
    options = []
    for way in ways:
        offer = way.offer
        node = offer.gpu.node if request.whole_nodes else 1
        parts = offer.gpu.parts if offer.cut else 1
        spot = offer.purchase == "spot"
        pools[offer.name] = Pool(
            offer.name, offer.hourly, offer.quota, node, spot, parts, offer.device, per_gpu=offer.gpu.parts
        )
        options.append(
            Option(f"{offer.name} {group_text(way.setup)}", offer.name, way.setup.gpus, way.rate, way.latency)
        )
    return list(pools.values()), options


def group_text(setup: Setup) -> str:
    """A replica's GPUs as people write them: ``TP 4``, ``TP 4 PP 2``."""
    return f"TP {setup.tp}" + (f" PP {setup.pp}" if setup.pp > 1 else "")


__all__ = [
    "Answer",
    "Offer",
    "Refusal",
    "Request",
    "Way",
    "cheapest",
    "compare",
    "cost_per_1k_tokens",
    "cuts_of",
    "default_offers",
    "describe",
]
