"""GPUs that can be had: whole ones, MIG slices of them, and shares of them by MPS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from outrider.errors import UsageError
from planner.performance.gpu_catalog import Cut, GpuSpec, Purchase, terms
from planner.performance.queueing import StepTimes

MPS_SHARES = (2, 3, 4)
"""Processes that may share a GPU: with more of them each has less time than the launches of a step take."""

DEFAULT_CURRENCY = "USD"
"""That of the priors."""


@dataclass(frozen=True, slots=True)
class Offer:
    """GPUs that can be had. ``price`` is per GPU-hour, in ``currency``; ``quota`` GPUs at most, None: no limit.

    ``latency`` seconds are added to every answer for the way to ``region``. ``step_times`` are measured ones.
    ``cut``: a part of a GPU that is offered whole too; its quota counts whole GPUs, and is that of all their parts.
    """

    gpu: GpuSpec
    purchase: Purchase = "on_demand"
    price: float | None = None
    quota: int | None = None
    region: str = ""
    latency: float = 0.0
    lead_seconds: float | None = None
    step_times: StepTimes | None = None
    cut: bool = False
    currency: str = DEFAULT_CURRENCY

    def __post_init__(self) -> None:
        """Refuse prices and quotas that nobody has."""
        if self.price is not None and not (isfinite(self.price) and self.price >= 0):
            raise UsageError(f"{self.name}: a price of {self.price:g}", hint="give the price of one GPU and hour")
        if self.quota is not None and self.quota < 0:
            raise UsageError(f"{self.name}: a quota of {self.quota}", hint="0 is none, leave it out for no limit")

    @property
    def name(self) -> str:
        """What people call it."""
        return " ".join(filter(None, (self.gpu.name, self.purchase, self.region)))

    @property
    def device(self) -> str:
        """The whole GPU's offer, whose quota this one shares."""
        return " ".join(filter(None, (self.gpu.whole or self.gpu.name, self.purchase, self.region)))

    @property
    def hourly(self) -> float:
        """Price of a GPU-hour: the given one, else the prior under this contract."""
        return self.gpu.price * terms()[self.purchase].price_ratio if self.price is None else self.price

    @property
    def assumed(self) -> bool:
        """Whether the price is another device's: no public list has this one."""
        return self.price is None and self.gpu.price_assumed

    @property
    def lead(self) -> float:
        """Seconds until such a GPU is there."""
        return terms()[self.purchase].lead_seconds if self.lead_seconds is None else self.lead_seconds

    def part(self, gpu: GpuSpec) -> Offer:
        """One of ``gpu.parts`` of each of these GPUs, at its share of the price. Step times must be measured anew."""
        price = None if self.price is None else self.price / gpu.parts
        return replace(self, gpu=gpu, price=price, step_times=None, cut=True)


def default_offers(known: Mapping[str, GpuSpec]) -> list[Offer]:
    """Every known type on demand at its prior price, without a quota."""
    return [Offer(spec) for spec in known.values()]


def cuts_of(*, mig: bool, mps: bool) -> frozenset[Cut]:
    """The ways to cut GPUs that are wanted."""
    wanted: set[Cut] = set()
    if mig:
        wanted.add("mig")
    if mps:
        wanted.add("mps")
    return frozenset(wanted)


def chosen(offers: Iterable[Offer], wanted: Mapping[str, GpuSpec]) -> list[Offer]:
    """The offers of the types that are asked for by name; one that is not offered comes from the table.

    A slice is cut from its whole GPU where that is offered.
    """
    known = list(offers)
    found: list[Offer] = []
    for name, spec in wanted.items():
        mine = [offer for offer in known if offer.gpu.name == name]
        mine = mine or [offer.part(spec) for offer in known if spec.whole and offer.gpu.name == spec.whole]
        found += mine or [Offer(spec)]
    return found


def with_parts(offers: Sequence[Offer], cuts: frozenset[Cut]) -> list[Offer]:
    """The offers, and after each whole GPU its MIG slices and its MPS shares as asked for.

    A profile that is one whole GPU is none; one that is offered by itself stays as it is offered.
    """
    named = {offer.name for offer in offers}
    found: list[Offer] = []
    for offer in offers:
        found.append(offer)
        spec = offer.gpu
        parts = [spec.part(cut) for cut in spec.slices if cut.most > 1] if "mig" in cuts else []
        parts += [spec.share(count) for count in MPS_SHARES] if "mps" in cuts and spec.mps else []
        found += [part for part in map(offer.part, parts) if part.name not in named]
    return found
