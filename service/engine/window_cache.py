"""Ring buffers of recent values in memory, so that detectors do not read the store every cycle.

One ring per kind of entity, with a column per signal that a detector requested and a slot per
cycle. Entities without values for a whole ring leave it; their detector state is kept in
``detectors/learning/dormant_state.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Floats,
    SampleBatch,
    SignalKey,
    Statuses,
    Window,
)

_GROWTH = 1.5
_MOST_MAPS = 1_000
_ColumnMap = tuple[tuple[SignalKey, ...], NDArray[np.intp], NDArray[np.intp]]


@dataclass(slots=True)
class _Ring:
    """Values of one kind: entities x slots x keys, so that one cycle is a contiguous plane per entity."""

    keys: tuple[SignalKey, ...]
    slots: int
    entities: list[EntityRef] = field(default_factory=list)
    row_of: dict[EntityRef, int] = field(default_factory=dict)
    values: Floats = field(init=False)
    status: Statuses = field(init=False)
    last_seen: NDArray[np.int64] = field(init=False)
    column_of: dict[SignalKey, int] = field(init=False)

    def __post_init__(self) -> None:
        self.column_of = {key: index for index, key in enumerate(self.keys)}
        self._allocate(64)

    def _allocate(self, capacity: int) -> None:
        shape = (capacity, self.slots, len(self.keys))
        self.values = np.full(shape, np.nan)
        self.status = np.full(shape, CellStatus.ABSENT, dtype=np.uint8)
        self.last_seen = np.zeros(capacity, dtype=np.int64)

    def rows(self, entities: Sequence[EntityRef]) -> NDArray[np.intp]:
        """Returns the row numbers of entities; allocates rows for new ones."""
        for entity in entities:
            if entity not in self.row_of:
                self.row_of[entity] = len(self.entities)
                self.entities.append(entity)
        if len(self.entities) > self.values.shape[0]:
            self._grow(int(len(self.entities) * _GROWTH))
        return np.fromiter((self.row_of[entity] for entity in entities), dtype=np.intp, count=len(entities))

    def _grow(self, capacity: int) -> None:
        values, status, last_seen = self.values, self.status, self.last_seen
        self._allocate(capacity)
        held = values.shape[0]
        self.values[:held], self.status[:held], self.last_seen[:held] = values, status, last_seen

    def forget(self, before: int) -> None:
        """Drops entities without values since cycle number ``before``."""
        count = len(self.entities)
        keep = np.flatnonzero(self.last_seen[:count] >= before)
        if keep.size == count:
            return
        values, status, last_seen = self.values[keep], self.status[keep], self.last_seen[keep]
        self.entities = [self.entities[row] for row in keep]
        self.row_of = {entity: row for row, entity in enumerate(self.entities)}
        self._allocate(max(64, int(keep.size * _GROWTH)))
        self.values[: keep.size], self.status[: keep.size], self.last_seen[: keep.size] = values, status, last_seen


class WindowCache:
    """Recent values of every signal that a detector declares."""

    def __init__(self, needs: Mapping[EntityKind, Iterable[SignalKey]], slots: int) -> None:
        """``slots`` is the number of cycles kept: the longest window of a detector over the interval."""
        self._slots = slots
        self._rings = {kind: _Ring(tuple(dict.fromkeys(keys)), slots) for kind, keys in needs.items()}
        self._times = np.full(slots, np.nan)
        self._events: list[Event] = []
        self._cycles = 0
        self._columns: dict[tuple[EntityKind, int], _ColumnMap] = {}

    def push(self, at: datetime, batches: Iterable[SampleBatch], events: Iterable[Event] = ()) -> None:
        """Opens the slot of a new cycle and stores the cycle's values in it.

        If several batches hold one cell, a present one wins. After a step back of the clock, slots in the future are
        excluded from every window.
        """
        self._times[self._times >= at.timestamp()] = np.nan
        slot = self._cycles % self._slots
        self._cycles += 1
        self._times[slot] = at.timestamp()
        for ring in self._rings.values():
            ring.values[:, slot] = np.nan
            ring.status[:, slot] = CellStatus.ABSENT
        for group in _groups(batches):
            self._put(group, slot)
        if self._cycles % self._slots == 0:
            for ring in self._rings.values():
                ring.forget(self._cycles - self._slots)
        oldest = np.nanmin(self._times)
        # an event received again, with more attributes, replaces the earlier one
        by_id = {event.id: event for event in (*self._events, *events) if event.at.timestamp() > oldest}
        self._events = list(by_id.values())

    def _put(self, batches: Sequence[SampleBatch], slot: int) -> None:
        """Stores batches of one kind with the same keys; in one step if no entity occurs twice."""
        ring = self._rings.get(batches[0].kind)
        if ring is None:
            return
        rows = ring.rows([entity for batch in batches for entity in batch.entities])
        if len(batches) > 1 and np.unique(rows).size < rows.size:
            for batch in batches:
                self._put((batch,), slot)
            return
        source, target = self._column_map(ring, batches[0])
        ring.last_seen[rows] = self._cycles
        if not source.size:
            return
        values = np.concatenate([batch.values for batch in batches])[:, source]
        status = np.concatenate([batch.status for batch in batches])[:, source]
        infinite = np.isinf(values)
        if infinite.any():  # no quantity is infinite: marked untrusted, so that detectors need no check
            values, status = np.where(infinite, np.nan, values), np.where(infinite, CellStatus.UNTRUSTED, status)
        cells = (rows[:, None], slot, target[None, :])
        old_values, old_status = ring.values[cells], ring.status[cells]
        better = (status < old_status) | ((status == old_status) & np.isnan(old_values))
        ring.values[cells] = np.where(better, values, old_values)
        ring.status[cells] = np.where(better, status, old_status)

    def _column_map(self, ring: _Ring, batch: SampleBatch) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Returns the columns of the batch and of the ring. Cached by identity: hashing keys costs more."""
        group = (batch.kind, id(batch.keys))
        columns = self._columns.get(group)
        if columns is None:
            pairs = [(index, ring.column_of[key]) for index, key in enumerate(batch.keys) if key in ring.column_of]
            source = np.array([pair[0] for pair in pairs], dtype=np.intp)
            target = np.array([pair[1] for pair in pairs], dtype=np.intp)
            if len(self._columns) > _MOST_MAPS:
                self._columns.clear()
            columns = self._columns[group] = (batch.keys, source, target)  # holding the keys keeps their id unique
        return columns[1], columns[2]

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta, step: timedelta) -> Window:
        """Returns the slots within ``span`` before the newest cycle, oldest first."""
        ring = self._rings.get(kind)
        order = self._order(span)
        if ring is None:
            return _empty(kind, tuple(keys), self._times[order], step)
        count = len(ring.entities)
        columns = np.array([ring.column_of[key] for key in keys], dtype=np.intp)
        cells = np.ix_(np.arange(count), order, columns)
        return Window(
            kind=kind,
            entities=tuple(ring.entities),
            times=self._times[order],
            keys=tuple(keys),
            values=ring.values[cells],
            status=ring.status[cells],
            step=step,
            events=tuple(
                event for event in self._events if event.entity.kind is kind or event.kind is EventKind.CHANGE
            ),
        )

    def _order(self, span: timedelta) -> NDArray[np.intp]:
        held = min(self._cycles, self._slots)
        newest = self._cycles - 1
        order = np.arange(newest - held + 1, newest + 1) % self._slots
        if not held:
            return order
        recent = self._times[order] > self._times[order[-1]] - span.total_seconds()
        slots: NDArray[np.intp] = order[recent]
        return slots


def _groups(batches: Iterable[SampleBatch]) -> Iterable[Sequence[SampleBatch]]:
    """Returns batches with entities, grouped by kind and keys: a thousand metrics pages are a few groups."""
    groups: dict[tuple[EntityKind, int], list[SampleBatch]] = {}
    for batch in batches:
        if batch.entities:
            groups.setdefault((batch.kind, id(batch.keys)), []).append(batch)
    return groups.values()


def _empty(kind: EntityKind, keys: tuple[SignalKey, ...], times: Floats, step: timedelta) -> Window:
    shape = (0, times.size, len(keys))
    return Window(kind, (), times, keys, np.zeros(shape), np.zeros(shape, dtype=np.uint8), step)
