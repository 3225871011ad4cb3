"""What several pages say of one service, and what they say against the roll-up of its replicas. Pure.

A service behind several pods has a page a pod: their counters and buckets add up, rates and requests at work
too, and ratios are weighed by the requests of each page. What a page at the edge of a service says counts more
than the sum over its engines, which does not see what the service does before and after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from outrider import catalog
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey, SignalKind, TrustVerdict

_REQUESTS = SignalKey("svc_requests_total")
_ADDED_UNITS = frozenset({"per_second", "tokens_per_second", "requests", "count"})


def joined(batches: Sequence[SampleBatch]) -> list[SampleBatch]:
    """The batches with those of one service's pages made one, in the place of the last of them."""
    pages: dict[tuple[int, EntityRef], dict[str, int]] = {}  # of each target the newest page counts
    for number, batch in enumerate(batches):
        if batch.kind is EntityKind.SERVICE and len(batch.entities) == 1 and _REQUESTS in batch.keys:
            pages.setdefault((id(batch.keys), batch.entities[0]), {})[batch.source] = number
    several = [sorted(numbers.values()) for numbers in pages.values() if len(numbers) > 1]
    if not several:
        return list(batches)
    instead = {numbers[-1]: _join([batches[number] for number in numbers]) for numbers in several}
    gone = {number for numbers in several for number in numbers[:-1]}
    return [instead.get(number, batch) for number, batch in enumerate(batches) if number not in gone]


def _join(pages: Sequence[SampleBatch]) -> SampleBatch:
    values = np.concatenate([page.values for page in pages])
    status = np.concatenate([page.status for page in pages])
    there = status == CellStatus.PRESENT
    added, shares = _columns(pages[0].keys)
    numbers = np.where(there, values, 0.0)
    found = np.where(there.any(axis=0), np.where(there, values, -np.inf).max(axis=0), np.nan)
    found[added] = np.where(there[:, added].any(axis=0), numbers[:, added].sum(axis=0), np.nan)
    requests = numbers[:, pages[0].keys.index(_REQUESTS)]
    weights = np.where(requests.sum() > 0, requests, 1.0)[:, None] * there[:, shares]
    with np.errstate(invalid="ignore", divide="ignore"):
        weighed = (numbers[:, shares] * weights).sum(axis=0) / weights.sum(axis=0)
    found[shares] = np.where(weights.sum(axis=0) > 0, weighed, found[shares])
    whole = all(page.trust is TrustVerdict.FRESH for page in pages)
    return replace(
        pages[-1],
        source=f"{pages[0].source} and {len(pages) - 1} more",
        scraped_at=max(page.scraped_at for page in pages),
        values=found[None, :],
        status=np.where(there.any(axis=0), CellStatus.PRESENT, status.max(axis=0)).astype(np.uint8)[None, :],
        interval_seconds=max((page.interval_seconds for page in pages if page.interval_seconds), default=None),
        trust=TrustVerdict.FRESH if whole else TrustVerdict.PARTIAL,
    )


@cache
def _columns(keys: tuple[SignalKey, ...]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which columns add up, and which are shares; of the rest the largest counts."""
    signals = [catalog.signal(key.name) for key in keys]
    added = [one.kind in {SignalKind.DELTA, SignalKind.HISTOGRAM} or one.unit in _ADDED_UNITS for one in signals]
    return np.array(added, dtype=bool), np.array([one.unit == "ratio" for one in signals], dtype=bool)


def without_told(derived: SampleBatch, told: Iterable[SampleBatch]) -> SampleBatch:
    """A roll-up without the cells that a page of the service itself has a value for."""
    rows = {entity: row for row, entity in enumerate(derived.entities)}
    columns = {key: column for column, key in enumerate(derived.keys)}
    taken = np.zeros(derived.values.shape, dtype=bool)
    for batch in told:
        if batch.kind is not EntityKind.SERVICE:
            continue
        pairs = [(column, columns[key]) for column, key in enumerate(batch.keys) if key in columns]
        if not pairs:
            continue
        theirs, ours = (list(side) for side in zip(*pairs, strict=True))
        for row, entity in enumerate(batch.entities):
            if entity in rows:
                taken[rows[entity], ours] |= batch.status[row, theirs] == CellStatus.PRESENT
    if not taken.any():
        return derived
    values, status = derived.values.copy(), derived.status.copy()
    values[taken], status[taken] = np.nan, CellStatus.ABSENT
    return replace(derived, values=values, status=status)
