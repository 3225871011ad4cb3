"""Converts exponential histograms to the fixed bucket ladder of their signal. Pure.

Bucket ``i`` of scale ``s`` covers ``(2**(i / 2**s), 2**((i + 1) / 2**s)]``. If a bound of the ladder lies inside a
bucket, the part below it is interpolated on the logarithm of the value, as Prometheus does for quantiles of native
histograms. Zero and negative values lie below every bound. Scales only get coarser while a process runs; at such a
change a bound's count may fall, which reads as a reset of one interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from collectors.mapping import registry
from collectors.mapping.model import Operator
from outrider.vocabulary import catalog

MOST_BUCKETS = 8192


@dataclass(frozen=True, slots=True)
class ExponentialHistogram:
    """One histogram. ``counts[k]`` belongs to bucket ``offset + k``; ``below`` counts zero and negative values."""

    scale: int
    offset: int
    counts: tuple[float, ...]
    below: float
    total: float
    sum: float


@cache
def ladders() -> dict[str, tuple[float, ...]]:
    """Bounds of the signal of each histogram family, by the family's name on a page."""
    bounds_by_family: dict[str, tuple[float, ...]] = {}
    for name in registry.ADAPTERS:
        for signal, rules in registry.adapter(name).rules.items():
            for rule in rules:
                if rule.operator is Operator.HISTOGRAM:
                    for family in rule.names:
                        bounds_by_family.setdefault(family, catalog.signal(signal).bounds)
    return bounds_by_family


def cumulative_counts(histogram: ExponentialHistogram, bounds: Sequence[float]) -> list[float]:
    """Number of values at or below each bound; +Inf is not among the bounds."""
    counts = np.concatenate(([0.0], np.cumsum(np.asarray(histogram.counts, dtype=np.float64))))
    positions = np.log2(np.asarray(bounds, dtype=np.float64)) * 2.0**histogram.scale - histogram.offset
    inside = np.interp(positions, np.arange(counts.size), counts)
    return [float(count) for count in histogram.below + inside]


def buckets(histogram: ExponentialHistogram, bounds: Sequence[float]) -> list[tuple[str, float]]:
    """Lines of a classic histogram: (``le``, cumulative count), ``+Inf`` last."""
    counted = zip(bounds, cumulative_counts(histogram, bounds), strict=True)
    return [*((le(bound), count) for bound, count in counted), ("+Inf", histogram.total)]


def le(bound: float) -> str:
    """A bound as written on a page."""
    return "+Inf" if np.isinf(bound) and bound > 0 else f"{bound:.17g}" if bound != round(bound, 6) else f"{bound:g}"


def dense(spans: Sequence[tuple[int, int]], counts: Sequence[float]) -> tuple[int, list[float]]:
    """Spans of (gap, length) with their counts as one run: (index of the first bucket, counts).

    Raises ValueError if they do not match or would take too much memory.
    """
    if not spans:
        return 0, []
    run: list[float] = []
    first, taken = spans[0][0], 0
    for number, (gap, length) in enumerate(spans):
        if number and gap < 0:
            raise ValueError("the spans of a histogram overlap")
        if len(run) + (gap if number else 0) + length > MOST_BUCKETS:
            raise ValueError(f"a histogram spans more than {MOST_BUCKETS} buckets")
        if number:
            run.extend([0.0] * gap)
        run.extend(counts[taken : taken + length])
        taken += length
    if taken != len(counts):
        raise ValueError("the spans of a histogram do not fit its counts")
    return first, run
