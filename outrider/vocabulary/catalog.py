"""The signal catalog: meaning, unit, kind, direction and entity kind of each canonical signal.

Detectors, rules, charts and reports read units and labels from here, the same for every engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np
import yaml

from outrider.model import SUM_BUCKET, EntityKind, Floats, Layer, SignalKey, SignalKind

KPI_PREFIX = "kpi_"
"""Name prefix of signals that users push themselves; they are not in the catalog."""

_ROUNDING = 1e-6
_SHARE_TOLERANCE = 0.05  # numerator and denominator are not read at the same time
_NEVER_NEGATIVE = {
    "count", "requests", "tokens", "replicas", "cores", "bytes", "hertz", "watts", "per_second", "bytes_per_second",
    "tokens_per_second",
}  # fmt: skip
_SIGNED = {"autoscaler_gap_replicas"}
_BEYOND_ONE = {  # a surge, an overcommitted node, a limit exceeded briefly, a queue beyond its bound
    "workload_available_ratio", "node_accel_allocated_ratio", "container_memory_limit_ratio",
    "svc_pool_saturation_ratio",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signal:
    """One canonical signal. ``bounds`` are the upper bucket bounds of a histogram, without +Inf.

    ``of_parts`` is the same quantity on the parts, which this signal sums or merges; empty if there is none.
    """

    name: str
    tier: Literal["core", "extended"]
    layer: Layer
    unit: str
    kind: SignalKind
    entity: EntityKind
    good: Literal["higher", "lower", "range", "state"]
    means: str
    bounds: tuple[float, ...] = ()
    of_parts: str = ""

    @property
    def quantity(self) -> str:
        """The signal that stands for this quantity on the whole and on its parts."""
        return self.of_parts or self.name

    @property
    def plausible(self) -> tuple[float, float]:
        """Plausible minimum and maximum of a value: counts and sizes from 0, ratios up to slightly above 1.

        Unbounded: histograms, signals that may be negative, and ratios of a limit that may be exceeded.
        """
        if self.kind is SignalKind.HISTOGRAM or self.name in _SIGNED:
            return -math.inf, math.inf
        if self.unit == "ratio":
            return -_ROUNDING, math.inf if self.name in _BEYOND_ONE else 1.0 + _SHARE_TOLERANCE
        return (-_ROUNDING, math.inf) if self.unit in _NEVER_NEGATIVE else (-math.inf, math.inf)

    @property
    def bucket_keys(self) -> tuple[SignalKey, ...]:
        """The raw columns of a histogram: one per bucket, +Inf included, then the sum."""
        numbered = [SignalKey(self.name, bucket=i) for i in range(len(self.bounds) + 1)]
        return (*numbered, SignalKey(self.name, bucket=SUM_BUCKET))


@cache
def signals() -> dict[str, Signal]:
    """Every signal by name, in catalog order."""
    text = resources.files("outrider.vocabulary").joinpath("catalog.yaml").read_text(encoding="utf-8")
    document = yaml.safe_load(text)
    ladders = {name: tuple(map(float, bounds)) for name, bounds in document["ladders"].items()}
    return {
        entry["name"]: Signal(
            name=entry["name"],
            tier=entry["tier"],
            layer=Layer(entry["layer"]),
            unit=entry["unit"],
            kind=SignalKind(entry["kind"]),
            entity=EntityKind(entry["entity"]),
            good=entry["good"],
            means=entry["means"],
            bounds=ladders.get(entry.get("ladder", ""), ()),
            of_parts=entry.get("of_parts", ""),
        )
        for entry in document["signals"]
    }


def signal(name: str) -> Signal:
    """The signal with that name, also a user's KPI. Raises KeyError with the name if there is none."""
    match = signals().get(name)
    return _kpi(name) if match is None and name.startswith(KPI_PREFIX) else signals()[name]


def known(name: str) -> bool:
    """True for every signal of the catalog, and for a possible user KPI."""
    return name in signals() or name.startswith(KPI_PREFIX)


@cache
def _kpi(name: str) -> Signal:
    """A KPI of a service, pushed by its owner: its unit and direction are unknown."""
    means = "A business KPI pushed by its owner"
    return Signal(name, "extended", Layer.BUSINESS, "value", SignalKind.GAUGE, EntityKind.SERVICE, "range", means)


def bucket_quantile(increments: Floats, bounds: tuple[float, ...], quantile: float) -> tuple[Floats, Floats]:
    """Quantile of histograms given as bucket increments, by linear interpolation inside the bucket.

    ``increments`` has shape (..., len(bounds) + 1), the last entry being +Inf. Returns ``(values, below)`` of shape
    (...): ``values`` is NaN if nothing was counted; ``below`` is 1.0 if the quantile is in the first bucket, so that
    only "< first bound" is known (``values`` then holds that bound). Above the last bound the last bound is returned,
    as in PromQL; see ``above_last_bucket``.
    """
    filled = np.nan_to_num(increments, nan=0.0)
    cumulated = np.cumsum(filled, axis=-1)
    total = cumulated[..., -1]
    rank = quantile * total
    index = np.sum(cumulated < rank[..., None], axis=-1)
    index = np.minimum(index, len(bounds))
    uppers = np.array([*bounds, bounds[-1]], dtype=np.float64)
    lowers = np.array([0.0, *bounds[:-1], bounds[-1]], dtype=np.float64)
    inside = np.take_along_axis(filled, index[..., None], axis=-1)[..., 0]
    before = np.take_along_axis(cumulated, index[..., None], axis=-1)[..., 0] - inside
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(inside > 0, (rank - before) / inside, 0.0)
    values = lowers[index] + (uppers[index] - lowers[index]) * share
    below = (index == 0) & (total > 0)
    values = np.where(below, bounds[0], values)
    return np.where(total > 0, values, np.nan), below.astype(np.float64)


def above_last_bucket(increments: Floats, quantile: float) -> Floats:
    """1.0 if the quantile is in the +Inf bucket, so that only "> last bound" is known; shapes as above."""
    filled = np.nan_to_num(increments, nan=0.0)
    total = filled.sum(axis=-1)
    result: Floats = ((total > 0) & (total - filled[..., -1] < quantile * total)).astype(np.float64)
    return result
