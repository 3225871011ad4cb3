"""GPU offers: whole GPUs, MIG slices of them, and shares of them by MPS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from outrider.errors import UsageError
from planner.performance.gpu_catalog import Cut, GpuSpec, Purchase, terms
from planner.performance.queueing import StepTimes

MPS_SHARES = (2, 3, 4)
"""Processes that may share a GPU: with more of them, each gets less time than the launches of a step take."""

DEFAULT_CURRENCY = "USD"
"""Currency of the prior prices."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Available GPUs. ``price`` is per GPU-hour, in ``currency``; at most ``quota`` GPUs, None: no limit.

    ``latency`` seconds are added to every answer for the network path to ``region``. ``step_times`` are measured ones.
    ``cut``: a part of a GPU that is also offered whole; its quota counts whole GPUs, shared by all their parts.
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
        """Refuses impossible prices and quotas."""
        if self.price is not None and not (isfinite(self.price) and self.price >= 0):
            raise UsageError(f"{self.name}: invalid price {self.price:g}", hint="give the price of one GPU-hour")
        if self.quota is not None and self.quota < 0:
            raise UsageError(f"{self.name}: invalid quota {self.quota}", hint="0 means none; omit it for no limit")

    @property
    def name(self) -> str:
        """Display name."""
        return " ".join(filter(None, (self.gpu.name, self.purchase, self.region)))

    @property
    def device(self) -> str:
        """Name of the whole GPU's offer, whose quota this one shares."""
        return " ".join(filter(None, (self.gpu.whole or self.gpu.name, self.purchase, self.region)))

    @property
    def hourly(self) -> float:
        """Price of a GPU-hour: the given one, otherwise the prior under this contract."""
        return self.gpu.price * terms()[self.purchase].price_ratio if self.price is None else self.price

    @property
    def assumed(self) -> bool:
        """True if the price is that of another device, because no public list has this one."""
        return self.price is None and self.gpu.price_assumed

    @property
    def lead(self) -> float:
        """Seconds until such a GPU is available."""
        return terms()[self.purchase].lead_seconds if self.lead_seconds is None else self.lead_seconds

    def part(self, gpu: GpuSpec) -> Offer:
        """One of ``gpu.parts`` of each of these GPUs, at its share of the price.

        Its step times must be measured again.
        """
        price = None if self.price is None else self.price / gpu.parts
        return replace(self, gpu=gpu, price=price, step_times=None, cut=True)


def default_offers(known: Mapping[str, GpuSpec]) -> list[Offer]:
    """Every known type on demand at its prior price, without a quota."""
    return [Offer(spec) for spec in known.values()]


def cuts_of(*, mig: bool, mps: bool) -> frozenset[Cut]:
    """The requested methods to cut GPUs."""
    wanted: set[Cut] = set()
    if mig:
        wanted.add("mig")
    if mps:
        wanted.add("mps")
    return frozenset(wanted)


def select_offers(offers: Iterable[Offer], wanted: Mapping[str, GpuSpec]) -> list[Offer]:
    """The offers of the requested types; a type without an offer comes from the catalog.

    A slice is cut from its whole GPU if that is offered.
    """
    known = list(offers)
    selected: list[Offer] = []
    for name, spec in wanted.items():
        matching = [offer for offer in known if offer.gpu.name == name]
        matching = matching or [offer.part(spec) for offer in known if spec.whole and offer.gpu.name == spec.whole]
        selected += matching or [Offer(spec)]
    return selected


def with_parts(offers: Sequence[Offer], cuts: frozenset[Cut]) -> list[Offer]:
    """The offers, and after each whole GPU its MIG slices and MPS shares, as requested.

    A profile of a whole GPU is skipped; a part with its own offer keeps it.
    """
    named = {offer.name for offer in offers}
    extended: list[Offer] = []
    for offer in offers:
        extended.append(offer)
        spec = offer.gpu
        parts = [spec.part(cut) for cut in spec.slices if cut.most > 1] if "mig" in cuts else []
        parts += [spec.share(count) for count in MPS_SHARES] if "mps" in cuts and spec.mps else []
        extended += [part for part in map(offer.part, parts) if part.name not in named]
    return extended
