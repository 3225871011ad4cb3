"""The signal catalogue: what each canonical signal means, its unit, kind, direction and entity.

Detectors, rules, charts and reports take units and labels from here, so that they speak one
language whatever engine runs underneath.
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
"""What the names of signals begin with that users push themselves; they are no rows of the catalogue."""

_ROUNDING = 1e-6
_SHARE_TOLERANCE = 0.05  # numerator and denominator are not read at the same instant
_NEVER_NEGATIVE = {
    "count", "requests", "tokens", "replicas", "cores", "bytes", "hertz", "watts", "per_second", "bytes_per_second",
    "tokens_per_second",
}  # fmt: skip
_SIGNED = {"autoscaler_gap_replicas"}
_BEYOND_ONE = {  # a surge, an overcommitted node, a limit that is passed for a moment, a queue beyond its bound
    "workload_available_ratio", "node_accel_allocated_ratio", "container_memory_limit_ratio",
    "svc_pool_saturation_ratio",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Signal:
    """One canonical signal. ``bounds`` are the upper bucket bounds of a histogram, without +Inf."""

    name: str
    tier: Literal["core", "extended"]
    layer: Layer
    unit: str
    kind: SignalKind
    entity: EntityKind
    good: Literal["higher", "lower", "range", "state"]
    means: str
    bounds: tuple[float, ...] = ()

    @property
    def plausible(self) -> tuple[float, float]:
        """Least and most that a reading may be: counts and sizes from 0 on, shares up to 1 and a little.

        Without bounds: histograms, what may be negative by its nature, and shares of a limit that may be passed.
        """
        if self.kind is SignalKind.HISTOGRAM or self.name in _SIGNED:
            return -math.inf, math.inf
        if self.unit == "ratio":
            return -_ROUNDING, math.inf if self.name in _BEYOND_ONE else 1.0 + _SHARE_TOLERANCE
        return (-_ROUNDING, math.inf) if self.unit in _NEVER_NEGATIVE else (-math.inf, math.inf)

    @property
    def bucket_keys(self) -> tuple[SignalKey, ...]:
        """The raw columns of a histogram: one a bucket, +Inf included, then the sum."""
        numbered = [SignalKey(self.name, bucket=i) for i in range(len(self.bounds) + 1)]
        return (*numbered, SignalKey(self.name, bucket=SUM_BUCKET))


@cache
def signals() -> dict[str, Signal]:
    """Every signal by name, in catalogue order."""
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
        )
        for entry in document["signals"]
    }


def signal(name: str) -> Signal:
    """The signal of that name, a user's KPI too. Raises KeyError with the name when there is none."""
    found = signals().get(name)
    return _kpi(name) if found is None and name.startswith(KPI_PREFIX) else signals()[name]


def known(name: str) -> bool:
    """True for every row of the catalogue, and for what may be a user's KPI."""
    return name in signals() or name.startswith(KPI_PREFIX)


@cache
def _kpi(name: str) -> Signal:
    """A KPI of a service as its owner pushes it: nobody but the owner knows its unit and direction."""
    means = "A business KPI pushed by its owner"
    return Signal(name, "extended", Layer.BUSINESS, "value", SignalKind.GAUGE, EntityKind.SERVICE, "range", means)


def bucket_quantile(increments: Floats, bounds: tuple[float, ...], quantile: float) -> tuple[Floats, Floats]:
    """Quantile of histograms given as bucket increments, by linear interpolation inside the bucket.

    ``increments`` has shape (..., len(bounds) + 1), the last entry being +Inf. Returns
    ``(values, below)`` of shape (...): ``values`` is NaN where nothing was counted; ``below`` is 1.0
    where the quantile lies in the first bucket, so that only "< first bound" is known (``values``
    then holds that bound). Above the last bound the last bound is returned, as PromQL does;
    ``above_last_bucket`` says where.
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
    """1.0 where the quantile lies in the +Inf bucket, so that only "> last bound" is known; shapes as above."""
    filled = np.nan_to_num(increments, nan=0.0)
    total = filled.sum(axis=-1)
    found: Floats = ((total > 0) & (total - filled[..., -1] < quantile * total)).astype(np.float64)
    return found
