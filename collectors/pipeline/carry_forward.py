"""What a target that pushes said last, once more in the rounds between its pages. Pure.

Senders keep their own time: a target may bring no page in one cycle and two in the next, or one in four cycles.
Its gauges and states hold meanwhile, each with the instant it was told at, so that a service is not short of a
replica that is well; its increases stand in the round that brought them and in no other.
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

_FIRST = timedelta(seconds=60)  # how often a target sends is not known before its second page
_PAGES = 2  # of its intervals: one page may come late
_WAY = timedelta(seconds=20)  # from the scrape over the sender's queue to the cycle that takes the page


class CarryForward:
    """The newest batches of every target that pushes."""

    def __init__(self) -> None:
        """Starts empty."""
        self._batches: dict[str, tuple[SampleBatch, ...]] = {}

    def keep(self, name: str, batches: Sequence[SampleBatch]) -> None:
        """Take what a target's page gave; a failed scrape holds nothing."""
        failed = any(batch.trust is TrustVerdict.FAILED for batch in batches)
        self._batches[name] = () if failed else tuple(batches)

    def again(self, name: str, now: datetime) -> list[SampleBatch]:
        """What still holds of a target that brought nothing in this round."""
        return [_held(batch) for batch in self._batches.get(name, ()) if now - batch.scraped_at <= _limit(batch)]

    def forget_all_but(self, names: set[str]) -> None:
        """Let go of targets that push no more."""
        for name in [name for name in self._batches if name not in names]:
            del self._batches[name]


def _limit(batch: SampleBatch) -> timedelta:
    if batch.interval_seconds is None:
        return _FIRST
    return _PAGES * timedelta(seconds=batch.interval_seconds) + _WAY


def _held(batch: SampleBatch) -> SampleBatch:
    values, status = batch.values.copy(), batch.status.copy()
    passing = _passing(batch.keys)
    values[:, passing], status[:, passing] = np.nan, CellStatus.ABSENT
    return replace(batch, values=values, status=status, interval_seconds=None)


@cache
def _passing(keys: tuple[SignalKey, ...]) -> NDArray[np.bool_]:
    """Columns of increases: they are about an interval that is over."""
    kinds = (SignalKind.DELTA, SignalKind.HISTOGRAM)
    return np.array([catalog.signal(key.name).kind in kinds for key in keys], dtype=bool)
