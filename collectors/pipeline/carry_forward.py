"""Carries the last values of a pushed target forward over rounds without a page. Pure.

Senders push on their own schedule: a target may send no page in one round and two in the next, or one in four.
Its gauges and states are carried forward with their original timestamps, so that a healthy replica is still counted.
Its increases appear only in the round that received them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache

import numpy as np
from numpy.typing import NDArray

from outrider.model import CellStatus, SampleBatch, SignalKey, SignalKind, TrustVerdict
from outrider.vocabulary import catalog

_FIRST_INTERVAL = timedelta(seconds=60)  # the sending interval is unknown before the second page
_INTERVALS = 2  # intervals: one page may be late
_TRANSIT = timedelta(seconds=20)  # from the sender's scrape through its queue to the round that takes the page


class CarryForward:
    """The newest batches of every pushed target."""

    def __init__(self) -> None:
        """Starts empty."""
        self._batches: dict[str, tuple[SampleBatch, ...]] = {}

    def keep(self, name: str, batches: Sequence[SampleBatch]) -> None:
        """Stores the batches of a target's page; a failed scrape stores none."""
        failed = any(batch.trust is TrustVerdict.FAILED for batch in batches)
        self._batches[name] = () if failed else tuple(batches)

    def again(self, name: str, now: datetime) -> list[SampleBatch]:
        """Returns the batches that are still valid for a target that pushed nothing in this round."""
        return [_carried(batch) for batch in self._batches.get(name, ()) if now - batch.scraped_at <= _limit(batch)]

    def forget_all_but(self, names: set[str]) -> None:
        """Drops all other targets: they push no longer."""
        for name in [name for name in self._batches if name not in names]:
            del self._batches[name]


def _limit(batch: SampleBatch) -> timedelta:
    if batch.interval_seconds is None:
        return _FIRST_INTERVAL
    return _INTERVALS * timedelta(seconds=batch.interval_seconds) + _TRANSIT


def _carried(batch: SampleBatch) -> SampleBatch:
    values, status = batch.values.copy(), batch.status.copy()
    increases = _increases(batch.keys)
    values[:, increases], status[:, increases] = np.nan, CellStatus.ABSENT
    return replace(batch, values=values, status=status, interval_seconds=None)


@cache
def _increases(keys: tuple[SignalKey, ...]) -> NDArray[np.bool_]:
    """Mask of the columns that hold increases: they belong to an interval that has ended."""
    kinds = (SignalKind.DELTA, SignalKind.HISTOGRAM)
    return np.array([catalog.signal(key.name).kind in kinds for key in keys], dtype=bool)
