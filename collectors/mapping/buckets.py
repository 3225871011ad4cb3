"""Buckets of a page: spread over the ladder that a signal is kept in, or read as they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Counts = Sequence[tuple[float, float]]  # (upper bound, cumulative count), bounds rising


def spread(bounds: Sequence[float], ladder: Sequence[float]) -> list[dict[int, float]]:
    """How the cumulative counts of a page's buckets make up the increments of a ladder's.

    ``bounds`` rise and end in +Inf, as a page gives them; the result has one entry a bucket of the
    ladder, +Inf last: position in ``bounds`` -> share. Where a bound of the ladder lies inside a bucket
    of the page, the bucket's events are held to be spread evenly over it, as PromQL's
    histogram_quantile does. Those of the page's first bucket all go where its bound lies: of them only
    "< bound" is known. What lies above the page's last bound goes into the next bucket of the
    ladder: nothing is known of it but that it is more, and +Inf would claim the ladder's end.
    """
    last = len(bounds) - 1
    finite = last - 1 if last > 0 and math.isinf(bounds[last]) else last
    cumulated: list[dict[int, float]] = []
    for place, bound in enumerate((*ladder, math.inf)):
        above = int(np.searchsorted(bounds[: finite + 1], bound * (1 - 1e-9))) if place < len(ladder) else last
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
    for past, now in pairwise(cumulated):
        both = {number: now.get(number, 0.0) - past.get(number, 0.0) for number in {*now, *past}}
        increments.append({number: share for number, share in both.items() if share})
    return increments


def fault_of(counts: Counts) -> str:
    """Why no histogram counts like this, "" when one may: (bound, cumulative count) pairs whose bounds rise."""
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
    """The counts of several sound histograms as one, at the bounds that all of them have: only there a sum is known."""
    shared = set.intersection(*({bound for bound, _ in part} for part in parts))
    total: dict[float, float] = {}
    for part in parts:
        for bound, count in part:
            if bound in shared:
                total[bound] = total.get(bound, 0.0) + count
    return sorted(total.items())


def quantile_of_page(counts: Counts, quantile: float) -> tuple[float, bool, bool] | None:
    """The quantile of (bound, cumulative count) pairs whose bounds rise and end in +Inf, as PromQL gives it.

    The second part is True when the quantile lies in the first bucket: of it only "< bound" is known,
    and the value is that bound. None when nothing was counted, or all of it in one bucket without end,
    and when the counts fall or do not end: they are no histogram's.
    Above the last finite bound that bound is the answer, and the third part True.
    """
    total = counts[-1][1] if counts else 0.0
    if not total > 0 or math.isinf(counts[0][0]) or fault_of(counts):
        return None
    rank = quantile * total
    place = next(number for number, (_, count) in enumerate(counts) if count >= rank)
    if place == 0:
        return counts[0][0], counts[0][0] > 0, False
    if math.isinf(counts[place][0]):
        return counts[place - 1][0], False, True
    (lower, below), (upper, count) = counts[place - 1], counts[place]
    return lower + (upper - lower) * (rank - below) / (count - below), False, False
