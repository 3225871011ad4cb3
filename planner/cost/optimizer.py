"""Cost optimizer: every GPU type, group size and contract that fits a service, as a front of cost and latency.

For each offer, ``queueing`` gives the largest load of one replica within the SLO, on measured step times if available,
otherwise on those of data sheets. ``milp`` then finds the cheapest whole numbers.
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
"""Pipeline stages that are tried: with more, most of a step is waiting for the stage before."""
LOADS = (1.0, 0.85, 0.7, 0.5, 0.3)
"""Loads of a replica, relative to the largest within the SLO: less load has lower latency."""
MOST_LOAD = 1e9
"""Largest rate in requests per second: higher ones are typing errors."""


@dataclass(frozen=True, slots=True)
class CostRequest:
    """Workload to serve: a model, its requests, peak and mean load, an SLO, and constraints.

    ``buffer`` is added to the peak. A replica is TP x PP GPUs, of ``groups`` and ``pipelines``. ``tests`` are load
    tests of this model: their step times take precedence over data sheets. ``regions`` are the allowed regions, empty:
    all. The GPUs must be available ``within`` seconds. ``losses`` replicas may be lost at any time; ``spot_ratio`` of
    the capacity may be on spot. ``cuts``: MIG slices and MPS shares are offered as well.
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
    """Reasons why an offer is not considered."""

    NO_FIT = "no_fit"
    SLO = "slo"
    QUOTA = "quota"
    REGION = "region"
    LEAD = "lead"


@dataclass(frozen=True, slots=True)
class CostOption:
    """One option to run a replica, with the figures behind it."""

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
class CostComparison:
    """The front, cheapest first, the options its mixes refer to, and the reasons of refused ``offers``.

    ``slo_kept`` is False if no offer meets the SLO at any load: then the front shows the cost of loads that keep the
    engines stable, and no latency is guaranteed.
    """

    front: tuple[Mix, ...]
    options: tuple[CostOption, ...]
    refused: tuple[tuple[str, Refusal, str], ...]
    slo_kept: bool
    nothing: NoMix | None = None
    need: float = 0.0
    offers: tuple[Offer, ...] = ()

    @property
    def currency(self) -> str:
        """Currency of the prices, the same for all offers."""
        return self.offers[0].currency if self.offers else DEFAULT_CURRENCY

    @property
    def cheapest(self) -> Mix | None:
        """The first mix of the front."""
        return self.front[0] if self.front else None


def compare(request: CostRequest, offers: Sequence[Offer]) -> CostComparison:
    """Finds every option to serve the request, and the front of cost against the latency of an average answer.

    Raises UsageError for an invalid request, and for prices in several currencies.
    """
    _check_request(request)
    currencies = sorted({offer.currency for offer in offers})
    if len(currencies) > 1:
        raise UsageError(
            f"prices in {' and '.join(currencies)} cannot be compared",
            hint="give every offer under gpus: a price_per_gpu_hour in one currency; default prices are in USD",
        )
    options, refused = _cost_options(request, offers, keep_slo=True)
    slo_kept = bool(options) or not any(reason is Refusal.SLO for _, reason, _ in refused)
    if not slo_kept:
        options, _ = _cost_options(request, offers, keep_slo=False)
    demand = Demand(request.qps * (1.0 + request.buffer), request.losses, request.spot_ratio)
    pools, choices = _problem(request, options)
    points = front(choices, pools, demand)
    if isinstance(points, NoMix):
        return CostComparison((), tuple(options), tuple(refused), slo_kept, points, demand.need, tuple(offers))
    return CostComparison(tuple(points), tuple(options), tuple(refused), slo_kept, None, demand.need, tuple(offers))


def _check_request(request: CostRequest) -> None:
    """Refuses invalid loads, ratios and lengths, with the name of their option."""
    for option, load in (("--qps", request.qps), ("--mean-qps", request.mean_qps)):
        if load is not None and not 0 <= load <= MOST_LOAD:
            raise UsageError(f"{option} is {load:g} requests/s", hint=f"give 0 to {MOST_LOAD:g}")
    for option, ratio in (("--buffer", request.buffer), ("--spot-ratio", request.spot_ratio)):
        if not 0 <= ratio <= 1:
            raise UsageError(f"{option} is a ratio from 0 to 1, not {ratio:g}", hint="25 % is written 0.25 or 25%")
    length, most = request.work.prompt + request.work.output, request.shape.context
    if length > most:
        raise UsageError(
            f"a request of {length:g} tokens exceeds the context of {request.shape.name}, {most} tokens",
            hint="give --prompt and --tokens of an average request",
        )


def cost_per_1k_tokens(cost_per_hour: float, tokens_per_second: float) -> float | None:
    """Cost of a thousand generated tokens at that rate; None without any."""
    return cost_per_hour / (tokens_per_second * 3.6) if tokens_per_second > 0 else None


def describe(request: CostRequest, answer: CostComparison, mix: Mix) -> dict[str, Any]:
    """One point of the front as plain values; the mean load shares the cost of the peak's capacity."""
    mean = request.qps if request.mean_qps is None else request.mean_qps
    return {
        "cost_per_hour": mix.cost_per_hour,
        "latency_seconds": mix.latency,
        "cost_per_1k_tokens_at_peak": cost_per_1k_tokens(mix.cost_per_hour, request.qps * request.work.output),
        "cost_per_1k_tokens": cost_per_1k_tokens(mix.cost_per_hour, mean * request.work.output),
        "capacity_requests_per_second": mix.capacity,
        "gpus": dict(mix.gpus),
        "slices": dict(mix.slices),
        "replicas": [answer.options[index].as_dict() | {"replicas": count} for index, count in mix.replicas.items()],
        "gap_ratio": mix.gap_ratio,
    }


def _cost_options(
    request: CostRequest, offers: Sequence[Offer], *, keep_slo: bool
) -> tuple[list[CostOption], list[tuple[str, Refusal, str]]]:
    options: list[CostOption] = []
    refused: list[tuple[str, Refusal, str]] = []
    for offer in with_parts(offers, request.cuts):
        refusal = _not_allowed(request, offer)
        if refusal is not None:
            if not offer.cut:  # reported for the whole GPU
                refused.append((offer.name, *refusal))
            continue
        fitting, reasons = _of_offer(request, offer, keep_slo=keep_slo)
        options += fitting
        # a slice is offered only if the model fits it
        if not fitting and not (offer.cut and reasons[-1][0] is Refusal.NO_FIT):
            refused.append((offer.name, *reasons[-1]))
    return options, refused


def _not_allowed(request: CostRequest, offer: Offer) -> tuple[Refusal, str] | None:
    if request.regions and offer.region not in request.regions:
        return Refusal.REGION, offer.region or "-"
    if offer.quota == 0:
        return Refusal.QUOTA, "0"
    if request.within is not None and offer.lead > request.within:
        return Refusal.LEAD, f"{offer.lead:g} s"
    return None


def _of_offer(
    request: CostRequest, offer: Offer, *, keep_slo: bool
) -> tuple[list[CostOption], list[tuple[Refusal, str]]]:
    options: list[CostOption] = []
    reasons: list[tuple[Refusal, str]] = [(Refusal.NO_FIT, "")]
    nearest = inf
    for tp, pp in product(request.groups, request.pipelines):
        if not _possible(request, offer, tp, pp):
            continue
        setup = replace(request.setup, tp=tp, pp=pp)
        length = min(request.shape.context, int(request.work.prompt + request.work.output) + 1)
        memory = fit(request.shape, offer.gpu, setup, context=length)
        if isinstance(memory, NoFit):
            reasons.append((Refusal.NO_FIT, memory.text(request.language)))
            continue
        if offer.quota is not None and setup.gpus > offer.quota:
            reasons.append((Refusal.QUOTA, f"{offer.quota} < {setup.gpus}"))
            continue
        at_loads = _at_loads(request, offer, setup, memory, keep_slo=keep_slo)
        if not at_loads:
            misses, text = _alone(request, offer, setup, memory)
            reasons += [(Refusal.SLO, text)] if misses < nearest else []
            nearest = min(nearest, misses)
        options += at_loads
    # The nearest miss is reported last: the sort is stable, and groups that miss the SLO by more than an
    # earlier one were left out.
    order = [Refusal.NO_FIT, Refusal.QUOTA, Refusal.SLO]
    return options, sorted(reasons, key=lambda reason: order.index(reason[0]))


def _possible(request: CostRequest, offer: Offer, tp: int, pp: int) -> bool:
    """True if an engine supports the setup: slices and shares have no link to each other."""
    if offer.gpu.whole and (tp, pp) != (1, 1):
        return False
    return tp <= offer.gpu.node and pp <= request.shape.layers


def used_tests(request: CostRequest, offers: Sequence[Offer]) -> list[Calibration]:
    """The tests that the step times of a request's groups on these offers come from."""
    used: list[Calibration] = []
    for offer in with_parts(offers, request.cuts):
        if offer.step_times is not None or _not_allowed(request, offer) is not None:
            continue
        for tp, pp in product(request.groups, request.pipelines):
            test = measured.nearest(offer.gpu, replace(request.setup, tp=tp, pp=pp), request.tests)
            if test is not None and _possible(request, offer, tp, pp) and test not in used:
                used.append(test)
    return used


def _engine(request: CostRequest, offer: Offer, setup: Setup, memory: Fit) -> tuple[StepTimes, Bounds]:
    times = offer.step_times or measured.step_times(request.shape, offer.gpu, setup, request.work, request.tests)
    return times, roofline.bounds(memory, setup)


def _at_loads(request: CostRequest, offer: Offer, setup: Setup, memory: Fit, *, keep_slo: bool) -> list[CostOption]:
    times, limits = _engine(request, offer, setup, memory)
    rate, binds = 0.0, "stability"
    if keep_slo:
        limit = queueing.at_slo(times, limits, request.work, request.slo)
        if not isinstance(limit, AtSlo):
            return []
        rate, binds = limit.prediction.rate, limit.binds
    if not keep_slo or binds == "stability":
        rate, binds = SAFE_LOAD * queueing.most(times, limits, request.work), "stability"
    options = []
    for share in LOADS:
        prediction = queueing.predict(times, limits, request.work, rate * share, request.slo.quantile)
        latency = prediction.ttft + (request.work.output - 1.0) * prediction.tpot + offer.latency
        options.append(CostOption(offer, setup, rate * share, latency, prediction, memory, binds, times.source))
    return options


def _alone(request: CostRequest, offer: Offer, setup: Setup, memory: Fit) -> tuple[float, str]:
    """Latency of a single request relative to the SLO, and its latencies as text."""
    times, limits = _engine(request, offer, setup, memory)
    idle = queueing.predict(times, limits, request.work, 0.0, request.slo.quantile)
    misses = max(idle.ttft / request.slo.ttft, idle.tpot / request.slo.tpot)
    return misses, f"{group_text(setup)}: TTFT {idle.ttft:.3g} s, TPOT {idle.tpot:.3g} s"


def _problem(request: CostRequest, options: Sequence[CostOption]) -> tuple[list[Pool], list[Option]]:
    pools: dict[str, Pool] = {}
    choices = []
    for choice in options:
        offer = choice.offer
        node = offer.gpu.node if request.whole_nodes else 1
        parts = offer.gpu.parts if offer.cut else 1
        spot = offer.purchase == "spot"
        pools[offer.name] = Pool(
            offer.name, offer.hourly, offer.quota, node, spot, parts, offer.device, per_gpu=offer.gpu.parts
        )
        choices.append(
            Option(
                f"{offer.name} {group_text(choice.setup)}", offer.name, choice.setup.gpus, choice.rate, choice.latency
            )
        )
    return list(pools.values()), choices


def group_text(setup: Setup) -> str:
    """A replica's GPUs as text: ``TP 4``, ``TP 4 PP 2``."""
    return f"TP {setup.tp}" + (f" PP {setup.pp}" if setup.pp > 1 else "")


__all__ = [
    "CostComparison",
    "CostOption",
    "CostRequest",
    "Offer",
    "Refusal",
    "cheapest",
    "compare",
    "cost_per_1k_tokens",
    "cuts_of",
    "default_offers",
    "describe",
]
