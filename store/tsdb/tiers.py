"""Tiers: raw values, 10-minute and 1-hour roll-ups; and the choice of the tier for each part of a read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from store.schema.metadata import RAW

MINUTE: Final = 60_000_000  # microseconds, like all spans here
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
TEN_MINUTES, ONE_HOUR = "10m", "1h"
TIERS: Final = (RAW, TEN_MINUTES, ONE_HOUR)
SPACING: Final = {RAW: 1, TEN_MINUTES: 10 * MINUTE, ONE_HOUR: HOUR}
"""Length of the span of a cell; its timestamp is the start of the span."""


class Work(StrEnum):
    """Pending work of a span: an hour for the first three, a day for the last two."""

    COMPACT = "compact"
    TEN_MINUTES = "10m"
    ONE_HOUR = "1h"
    MERGE_TEN_MINUTES = "merge_10m"
    MERGE_HOURS = "merge_1h"


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a read, [start, end), and its tier."""

    tier: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TierStatus:
    """State of a kind's tiers: starts of hours with a pending roll-up, and retention cuts.

    ``first`` are hours before the raw cut that have only raw values: history written late.
    """

    due_ten_minutes: Collection[int] = ()
    due_hours: Collection[int] = ()
    kept_from: Mapping[str, int] | None = None
    first: Collection[int] = ()

    def kept(self, tier: str) -> int:
        """The first retained timestamp; the minimum if retention never cut."""
        return (self.kept_from or {}).get(tier, -(1 << 62))


def segments(status: TierStatus, start: int, end: int, step: int) -> list[Segment]:
    """Splits [start, end) into parts by tier, oldest first.

    An hour is read from the coarsest tier whose spacing divides the step, whose cells align with the steps, and whose
    roll-up exists. Otherwise raw values are used, or the tier that retention left. A roll-up cell is never used if it
    reaches beyond the end, unless nothing finer is left.
    """
    if end <= start:
        return []
    hours = np.arange(start // HOUR * HOUR, end, HOUR)
    chosen = _chosen(status, hours, start, end, step)
    result: list[Segment] = []
    for tier, first, last in _runs(hours, chosen):
        result += _cut(status, tier, max(first, start), min(last, end))
    return _joined(result)


def _chosen(status: TierStatus, hours: NDArray[np.int64], start: int, end: int, step: int) -> NDArray[np.int64]:
    """For each hour the index of its tier in ``TIERS``."""
    fits = {tier: step % SPACING[tier] == 0 and start % SPACING[tier] == 0 for tier in TIERS}
    raw = (hours >= status.kept(RAW)) | _among(hours, status.first)
    ten = hours >= status.kept(TEN_MINUTES)
    made_ten = ~_among(hours, status.due_ten_minutes) | ~raw
    made_hour = (made_ten & ~_among(hours, status.due_hours)) | ~ten
    whole = (hours >= start) & (hours + HOUR <= end)
    by_hour = fits[ONE_HOUR] & made_hour & whole
    by_ten = fits[TEN_MINUTES] & made_ten & ten
    return np.where(by_hour, 2, np.where(by_ten, 1, np.where(raw, 0, np.where(ten, 1, 2))))


def _among(hours: NDArray[np.int64], wanted: Collection[int]) -> NDArray[np.bool_]:
    return np.isin(hours, np.fromiter(wanted, dtype=np.int64, count=len(wanted)))


def _runs(hours: NDArray[np.int64], chosen: NDArray[np.int64]) -> Iterator[tuple[str, int, int]]:
    firsts = np.flatnonzero(np.append(True, np.diff(chosen) != 0))
    for first, after in zip(firsts, np.append(firsts[1:], hours.size), strict=True):
        yield TIERS[chosen[first]], int(hours[first]), int(hours[after - 1]) + HOUR


def _cut(status: TierStatus, tier: str, start: int, end: int) -> list[Segment]:
    """A run of hours; the rest of a 10-minute span at its end is read from raw values if they exist."""
    whole = end // SPACING[TEN_MINUTES] * SPACING[TEN_MINUTES]
    if tier != TEN_MINUTES or whole == end or end // HOUR * HOUR < status.kept(RAW):
        return [Segment(tier, start, end)]
    parts = [Segment(tier, start, whole), Segment(RAW, max(start, whole), end)]
    return [part for part in parts if part.end > part.start]


def _joined(parts: list[Segment]) -> list[Segment]:
    result: list[Segment] = []
    for part in parts:
        if result and result[-1].tier == part.tier and result[-1].end == part.start:
            result[-1] = Segment(part.tier, result[-1].start, part.end)
        else:
            result.append(part)
    return result
