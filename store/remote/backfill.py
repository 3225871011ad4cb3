"""Copies the history of one metric store into another, span by span."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np

from outrider.model import CellStatus, EntityKind, EntityRef, Event, Floats, SampleBatch, SignalKey, Statuses, Window

_CELLS = 4_000_000  # cells per read
_LONGEST = timedelta(hours=1)


class History(Protocol):
    """The source store."""

    def keys(self, kind: EntityKind, start: datetime, end: datetime) -> tuple[SignalKey, ...]:
        """Every stored column of a kind with a cell in [start, end)."""
        ...

    def read_windows(
        self,
        kind: EntityKind,
        keys: Sequence[SignalKey],
        start: datetime,
        end: datetime,
        step: timedelta,
        entities: Sequence[EntityRef] | None = None,
    ) -> Window:
        """See ``outrider.ports.MetricStore``."""
        ...

    def entities(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """See ``outrider.ports.MetricStore``."""
        ...

    def events(self, start: datetime, end: datetime, entity: EntityRef | None = None) -> tuple[Event, ...]:
        """See ``outrider.ports.MetricStore``."""
        ...


class Target(Protocol):
    """The target store."""

    def write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event] = ()) -> int:
        """See ``outrider.ports.MetricStore``."""
        ...

    def write_block(
        self,
        kind: EntityKind,
        times: Floats,
        keys: Sequence[SignalKey],
        entities: Sequence[EntityRef],
        values: Floats,
        status: Statuses | None = None,
    ) -> int:
        """Writes history of shape (entities, times, keys)."""
        ...


@dataclass(frozen=True, slots=True)
class BackfillStats:
    """Copied cells and events, and the end of the copied span."""

    until: datetime
    values: int
    events: int


def copy_history(
    source: History,
    target: Target,
    start: datetime,
    end: datetime,
    interval: timedelta,
    progress: Callable[[str, float], None],
) -> BackfillStats:
    """Copies [start, end) on a grid of ``interval``, the time between cycles, oldest first.

    A timestamp becomes the start of its step. An interrupted copy may be repeated: it writes the same numbers for the
    same timestamps. Raises StoreError or StoreUnavailableError; spans already copied stay.
    """
    values = events = 0
    at = start
    while at < end:
        until = min(at + _LONGEST, end)
        for kind in EntityKind:
            values += sum(_written(target, window) for window in _windows(source, kind, at, until, interval))
        new_events = source.events(at, until)
        if new_events:
            target.write(at, (), new_events)
            events += len(new_events)
        at = until
        progress("copy", (at - start) / (end - start))
    return BackfillStats(end, values, events)


def _windows(
    source: History, kind: EntityKind, start: datetime, end: datetime, interval: timedelta
) -> Iterator[Window]:
    """The windows of a kind in a span, some millions of cells each."""
    keys = source.keys(kind, start, end)
    if not keys:
        return
    entities = max(1, len(source.entities(kind)))
    length = max(1, _CELLS // (entities * len(keys))) * interval
    while start < end:
        until = min(start + length, end)
        yield source.read_windows(kind, keys, start, until, interval)
        start = until


def _written(target: Target, window: Window) -> int:
    """Writes a window without its empty steps and entities."""
    values, status = window.values.copy(), window.status.copy()
    for index, key in enumerate(window.keys):
        if key.quantile is not None:
            derived = _has_buckets(window, key.name)
            values[..., index][derived], status[..., index][derived] = np.nan, CellStatus.ABSENT
    present = status != CellStatus.ABSENT
    rows, times = present.any(axis=(1, 2)), present.any(axis=(0, 2))
    if not rows.any():
        return 0
    cells = np.ix_(rows, times, np.ones(len(window.keys), dtype=bool))
    entities = [entity for entity, filled in zip(window.entities, rows.tolist(), strict=True) if filled]
    return target.write_block(window.kind, window.times[times], window.keys, entities, values[cells], status[cells])


def _has_buckets(window: Window, name: str) -> np.ndarray:
    """True where a histogram has buckets, from which its quantiles follow: shape (entities, times)."""
    result = np.zeros(window.status.shape[:2], dtype=bool)
    for index, key in enumerate(window.keys):
        if key.name == name and key.bucket is not None:
            result |= window.status[..., index] != CellStatus.ABSENT
    return result
