"""Buckets of a page: resampled onto a signal's bucket ladder, or read unchanged. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Counts = Sequence[tuple[float, float]]  # (upper bound, cumulative count), bounds rising


def resample(bounds: Sequence[float], ladder: Sequence[float]) -> list[dict[int, float]]:
    """Shares of a page's cumulative bucket counts in the increments of a ladder's buckets.

    ``bounds`` rise and end in +Inf, as on a page. The result has one entry per bucket of the ladder, +Inf last:
    position in ``bounds`` -> share. If a bound of the ladder lies inside a bucket of the page, the bucket's events
    are assumed to be uniformly distributed, as in PromQL's histogram_quantile. Events of the page's first bucket all
    go to its bound: only "< bound" is known of them. Events above the page's last bound go into the next bucket of
    the ladder: only "more" is known of them, and +Inf would claim the ladder's end.
    """
    last = len(bounds) - 1
    finite = last - 1 if last > 0 and math.isinf(bounds[last]) else last
    cumulated: list[dict[int, float]] = []
    for index, bound in enumerate((*ladder, math.inf)):
        above = int(np.searchsorted(bounds[: finite + 1], bound * (1 - 1e-9))) if index < len(ladder) else last
        if above > finite:
            cumulated.append({last: 1.0})
        elif bounds[above] <= bound * (1 + 1e-9):
            cumulated.append({above: 1.0})
        elif above == 0:
            cumulated.append({})
        else:
            share = (bound - bounds[above - 1]) / (bounds[above] - bounds[above - 1])
            cumulated.append({above: share, above - 1: 1.0 - share})
    increments = [dict(cumulated[0])]
    for previous, current in pairwise(cumulated):
        both = {number: current.get(number, 0.0) - previous.get(number, 0.0) for number in {*current, *previous}}
        increments.append({number: share for number, share in both.items() if share})
    return increments


def invalidity(counts: Counts) -> str:
    """Reason for which the counts are not a histogram, "" if they may be: (bound, cumulative count), bounds rising."""
    if not counts or math.isfinite(counts[-1][0]):
        return 'has no bucket le="+Inf" and no _count'
    low, below = -math.inf, 0.0
    for bound, count in counts:
        if not math.isfinite(count):
            return f'counts {count:g} at le="{_le(bound)}"'
        if count < below:
            beside = f'{below:g} at le="{_le(low)}"' if math.isfinite(low) else "nothing below"
            return f'falls: {count:g} at le="{_le(bound)}" after {beside}'
        low, below = bound, count
    return ""


def _le(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else f"{bound:g}"


def merged(parts: Sequence[Counts]) -> Counts:
    """Merges the counts of several valid histograms at the bounds they share: only there a sum is known."""
    shared = set.intersection(*({bound for bound, _ in part} for part in parts))
    total: dict[float, float] = {}
    for part in parts:
        for bound, count in part:
            if bound in shared:
                total[bound] = total.get(bound, 0.0) + count
    return sorted(total.items())


def quantile_of_page(counts: Counts, quantile: float) -> tuple[float, bool, bool] | None:
    """Quantile of (bound, cumulative count) pairs whose bounds rise and end in +Inf, as PromQL computes it.

    The second part is True if the quantile lies in the first bucket: only "< bound" is known, and the value is that
    bound. The third part is True above the last finite bound; the value is that bound. None if nothing was counted,
    if everything is in one unbounded bucket, or if the counts fall or do not end.
    """
    total = counts[-1][1] if counts else 0.0
    if not total > 0 or math.isinf(counts[0][0]) or invalidity(counts):
        return None
    rank = quantile * total
    index = next(number for number, (_, count) in enumerate(counts) if count >= rank)
    if index == 0:
        return counts[0][0], counts[0][0] > 0, False
    if math.isinf(counts[index][0]):
        return counts[index - 1][0], False, True
    (lower, below), (upper, count) = counts[index - 1], counts[index]
    return lower + (upper - lower) * (rank - below) / (count - below), False, False
