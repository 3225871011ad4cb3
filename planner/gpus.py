"""Accelerators and their priors: memory, bandwidth, arithmetic, slices, prices. ``gpus.yaml`` holds the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml

from outrider.errors import UsageError
from outrider.i18n import Language, translate

Purchase = Literal["on_demand", "spot", "reserved", "owned"]
PURCHASES: tuple[Purchase, ...] = ("on_demand", "spot", "reserved", "owned")
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG profile: its share of the device's compute, its memory, and how many fit on a device."""

    name: str
    compute_ratio: float
    memory_bytes: float
    most: int


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A device. Rates are per second; ``price`` is USD per GPU-hour on demand; ``node`` devices make a server.

    ``specs_source`` and ``price_source`` say where the figures come from; they begin with "prior" until an
    operator's own replace them.
    """

    name: str
    memory_bytes: float
    bandwidth: float
    fp16: float
    fp8: float
    int8: float
    link: float
    node: int
    price: float
    specs_source: str
    price_source: str
    slices: tuple[Slice, ...] = ()

    def flops(self, bits: float) -> float:
        """Dense arithmetic for weights of so many bits: what the device cannot do natively runs as 16 bit."""
        if bits <= 8 and self.fp8:
            return self.fp8
        return self.fp16

    def part(self, cut: Slice) -> GpuSpec:
        """One slice as a device of its own: bandwidth follows its memory, the price its share of the device."""
        memory = cut.memory_bytes / self.memory_bytes
        return replace(
            self,
            name=f"{self.name} {cut.name}",
            memory_bytes=cut.memory_bytes,
            bandwidth=self.bandwidth * min(1.0, memory),
            fp16=self.fp16 * cut.compute_ratio,
            fp8=self.fp8 * cut.compute_ratio,
            int8=self.int8 * cut.compute_ratio,
            link=0.0,
            node=self.node * cut.most,
            price=self.price / cut.most,
            slices=(),
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """A way to get devices: its price as a ratio of on demand, and how long it takes."""

    purchase: Purchase
    price_ratio: float
    lead_seconds: float
    source: str


@cache
def _document() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load(resources.files("planner").joinpath("gpus.yaml").read_text("utf-8"))
    return found


@cache
def gpus() -> Mapping[str, GpuSpec]:
    """Every known device by its short name."""
    document = _document()
    sources = document["sources"]
    return {
        name: GpuSpec(
            name=name,
            memory_bytes=float(row["memory_mebibytes"]) * MEBIBYTE,
            bandwidth=float(row["bandwidth"]),
            fp16=float(row["fp16"]),
            fp8=float(row["fp8"]),
            int8=float(row["int8"]),
            link=float(row["link"]),
            node=int(row["node"]),
            price=float(row["price"]),
            specs_source=sources[row["specs"]],
            price_source=sources[row["price_source"]],
            slices=tuple(
                Slice(cut, float(share), float(size) * MEBIBYTE, int(most))
                for cut, (share, size, most) in row.get("mig", {}).items()
            ),
        )
        for name, row in document["gpus"].items()
    }


def source_text(source: str, language: Language) -> str:
    """Where a figure of the table comes from, in a language; an operator's own words stay as they are."""
    for key, known in _document()["sources"].items():
        if known == source:
            return source if language == "en" else translate(f"capacity.source_{key}", language)
    return source


@cache
def terms() -> Mapping[Purchase, Terms]:
    """The ways to get devices, by name."""
    found: dict[Purchase, Terms] = {}
    for name in PURCHASES:
        row = _document()[name]
        found[name] = Terms(name, float(row["price_ratio"]), float(row["lead_seconds"]), row["source"])
    return found


def gpu(name: str) -> GpuSpec:
    """The device that a name means: ``H100``, ``h100``, ``NVIDIA H100 80GB HBM3``. Raises UsageError for another."""
    known = gpus()
    wanted = _plain(name)
    if not wanted:
        raise UsageError("a GPU type without a name", hint=f"known types: {', '.join(known)}")
    # the longest name first, so that an A100 is no A10
    for short in sorted(known, key=len, reverse=True):
        if _plain(short) in wanted or wanted == _plain(short).removeprefix("ascend").removeprefix("rtx"):
            return known[short]
    raise UsageError(f"no GPU type is known as {name!r}", hint=f"known types: {', '.join(known)}")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
