"""Accelerator catalog with priors: memory, bandwidth, arithmetic, slices, prices. The table is ``gpus.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import yaml

from outrider.errors import UsageError
from outrider.text import yaml_file
from outrider.text.i18n import Language, translate
from planner import packaged_data

Purchase = Literal["on_demand", "spot", "reserved", "owned"]
Cut = Literal["mig", "mps"]
PURCHASES: tuple[Purchase, ...] = ("on_demand", "spot", "reserved", "owned")
MEBIBYTE = 2**20
GIBIBYTE = 2**30
_FAMILIES = ("ascend", "rtx")
_BRANDS = ("nvidia", "tesla", "geforce", "amd", "instinct", "huawei")  # may directly precede a name
_PROFILE = re.compile(r"\b\d+g\.\d+gb(?:\+\w+)*", re.IGNORECASE)  # as written by nvidia-smi and DCGM: 1g.10gb+me
_SIZE = re.compile(r"(?<![a-z0-9.])([0-9]+)[ _-]?gi?b?(?![a-z0-9])")  # memory size: 40GB, 80 GiB, 80G
_SIZE_SLACK = 0.15
"""Largest difference between a size in a name and the driver's value: 16 GB of a T4 are 15 GiB."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG profile: its share of the device's compute, its memory, and the most of them on a device."""

    name: str
    compute_ratio: float
    memory_bytes: float
    most: int


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """A device. Rates are per second; ``price`` is USD per GPU-hour on demand; a server has ``node`` devices.

    For a part of a device ``whole`` is its name, ``parts`` the number of parts, ``cut`` the method, and every figure is
    that of the part. ``mps``: processes can share it by CUDA MPS. ``specs_source`` and ``price_source`` are the sources
    of the figures; they begin with "prior" until replaced by an operator. ``price_assumed``: no price list has the
    device, its price is derived from another one.
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
    mps: bool = True
    whole: str = ""
    parts: int = 1
    cut: Cut | None = None
    price_assumed: bool = False

    def flops(self, bits: float) -> float:
        """Dense arithmetic for weights of ``bits``: formats without native support run as 16 bit."""
        if bits <= 8 and self.fp8:
            return self.fp8
        return self.fp16

    def part(self, cut: Slice) -> GpuSpec:
        """One MIG slice as a device: bandwidth in proportion to its memory, price to its share of the device."""
        memory = min(1.0, cut.memory_bytes / self.memory_bytes)
        return self._share(cut.name, "mig", cut.most, cut.compute_ratio, memory, cut.memory_bytes)

    def share(self, count: int) -> GpuSpec:
        """The share of one of ``count`` MPS processes while all of them are busy.

        Memory is limited by each engine, not by the device. Raises UsageError for a device without MPS.
        """
        if count < 2 or not self.mps or self.whole:
            raise UsageError(
                f"{self.name} cannot be shared by {count} processes", hint="2 or more, on a whole NVIDIA GPU"
            )
        return self._share(f"MPS 1/{count}", "mps", count, 1.0 / count, 1.0 / count, self.memory_bytes / count)

    def _share(self, name: str, cut: Cut, count: int, compute: float, bandwidth: float, memory_bytes: float) -> GpuSpec:
        return replace(
            self,
            name=f"{self.name} {name}",
            memory_bytes=memory_bytes,
            bandwidth=self.bandwidth * bandwidth,
            fp16=self.fp16 * compute,
            fp8=self.fp8 * compute,
            int8=self.int8 * compute,
            link=0.0,
            node=self.node * count,
            price=self.price / count,
            slices=(),
            mps=False,
            whole=self.name,
            parts=count,
            cut=cut,
        )


@dataclass(frozen=True, slots=True)
class Terms:
    """Purchase terms of devices: price as a ratio of on demand, and lead time."""

    purchase: Purchase
    price_ratio: float
    lead_seconds: float
    source: str


@cache
def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = yaml.safe_load(packaged_data.gpus_yaml())
    return document


@cache
def gpus() -> Mapping[str, GpuSpec]:
    """Every known device by its short name."""
    return parse_gpus(_document())


def parse_gpus(document: Mapping[str, Any]) -> Mapping[str, GpuSpec]:
    """The devices of a parsed ``gpus.yaml``, by short name."""
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
            mps=bool(row.get("mps", True)),
            price_assumed=row["price_source"] in document["assumed_prices"],
        )
        for name, row in document["gpus"].items()
    }


def source_text(source: str, language: Language) -> str:
    """Source text of a figure, in a language; an operator's own text stays as it is."""
    for key, known in _document()["sources"].items():
        if known == source:
            return source if language == "en" else translate(f"capacity.source_{key}", language)
    return source


@cache
def terms() -> Mapping[Purchase, Terms]:
    """The purchase terms by name."""
    by_name: dict[Purchase, Terms] = {}
    for name in PURCHASES:
        row = _document()[name]
        by_name[name] = Terms(name, float(row["price_ratio"]), float(row["lead_seconds"]), row["source"])
    return by_name


def gpu(name: str) -> GpuSpec:
    """Finds a device by name: ``H100``, ``h100``, ``NVIDIA H100 80GB HBM3``; a slice: ``H100 1g.10gb``.

    A memory size in the name selects among devices of one name (an A100 has 80 GB unless 40 is given). Raises
    UsageError for an unknown device, for a size the device does not have, and for a MIG profile it does not have.
    """
    known = gpus()
    profile = _PROFILE.search(name)
    wanted = (name if profile is None else name.replace(profile.group(0), " ")).lower()
    if not any(letter.isalnum() for letter in wanted):
        raise UsageError("the GPU type has no name", hint=f"known types: {', '.join(known)}")
    # the longest name first, so that an L40S is found before a shorter name in it
    for short in sorted(map(_plain, known), key=len, reverse=True):
        if _name_pattern(short).search(wanted):
            devices = [spec for spec in known.values() if _plain(spec.name) == short]
            cut = None if profile is None else profile.group(0).lower()
            device = _of_size(name, devices, _SIZE.search(wanted), cut)
            return device if cut is None else _slice_of(device, cut)
    message = f"unknown GPU type {name!r}{yaml_file.near(name, known)}"
    raise UsageError(message, hint=f"known types: {', '.join(known)}")


def known_gpu(name: str) -> GpuSpec | None:
    """Like ``gpu``, but None for an unknown device."""
    try:
        return gpu(name)
    except UsageError:
        return None


def _plain(short: str) -> str:
    """A device's name without the memory size that distinguishes it from others of that name."""
    return _SIZE.sub("", short.lower()).strip()


def _of_size(name: str, devices: Sequence[GpuSpec], size: re.Match[str] | None, cut: str | None) -> GpuSpec:
    """The device with the given size, otherwise with the profile; the first by default."""
    if size is None:
        return next((spec for spec in devices if cut in [profile.name for profile in spec.slices]), devices[0])
    size_gb = float(size.group(1))
    nearest = min(devices, key=lambda spec: abs(spec.memory_bytes / GIBIBYTE - size_gb))
    if abs(size_gb * GIBIBYTE / nearest.memory_bytes - 1.0) > _SIZE_SLACK:
        has = " or ".join(f"{spec.memory_bytes / GIBIBYTE:.0f} GiB" for spec in devices)
        raise UsageError(
            f"{name!r} has {size_gb:g} GB of memory; the known {devices[0].name} has {has}",
            hint=f"known types: {', '.join(gpus())}",
        )
    return nearest


@cache
def _name_pattern(short: str) -> re.Pattern[str]:
    """Pattern of a name as exporters, clouds and operators write it, with any marks between its parts.

    No digit may follow a final digit, and no letter may precede an initial letter: an H1000 is not an H100, an A3000
    not an A30, a GH200 not an H200. Ascend and RTX may be omitted if the number is given alone.
    """
    parts = re.findall(r"[a-z]+|[0-9]+", short.lower())
    body = r"[\W_]*".join(parts)
    if parts[0].isalpha():
        body = rf"(?:(?<![a-z])|{'|'.join(f'(?<={brand})' for brand in _BRANDS)}){body}"
    if parts[0] in _FAMILIES:
        number = r"[\W_]*".join(parts[1:])
        body = rf"(?:{body}|^[\W_]*{number}[\W_]*$)"
    return re.compile(body + (r"(?![0-9])" if parts[-1].isdigit() else ""))


def _slice_of(device: GpuSpec, profile: str) -> GpuSpec:
    for cut in device.slices:
        if cut.name == profile:
            return device.part(cut)
    has = ", ".join(cut.name for cut in device.slices)
    raise UsageError(
        f"{device.name} has no MIG profile {profile!r}",
        hint=f"its profiles: {has}" if has else f"{device.name} has no MIG; A30, A100, H100, H200 and B200 have",
    )
