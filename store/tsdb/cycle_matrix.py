"""Joins all batches of one cycle into one matrix per entity kind.

Several targets may report the same entity (kube-state-metrics and node_exporter of a node), mostly with different
signals. If two of them fill one cell, a PRESENT cell wins over any other, and any other over ABSENT. Batches with the
same tuple of keys are placed together: the cost is one array operation per target, none per value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from outrider.model import SUM_BUCKET, CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey, Statuses
from store.tsdb.arrays import compact, cross
from store.tsdb.chunk_codec import Numeric, without_hollows

SCRAPE_OFFSET: Final = SignalKey("scrape_offset_seconds")
"""Column with each entity's own scrape time: seconds from the cycle's timestamp to the scrape."""

_REMEMBERED = 20_000
_REMEMBERED_LAYOUTS = 64  # the usual layouts of each kind, and those of cycles with a late target
Ids = NDArray[np.int32]
Item = TypeVar("Item", bound=Hashable)


class Numbers(Generic[Item]):
    """Numbers items, and caches whole tuples by identity: targets reuse the same tuples every cycle.

    ``add`` assigns numbers to new items; it receives each new item once.
    """

    def __init__(self, add: Callable[[Sequence[Item]], Sequence[int]], known: Iterable[tuple[Item, int]] = ()) -> None:
        """``known`` are numbers assigned before."""
        self._add = add
        self._numbers = dict(known)
        self.named: dict[int, Item] = {number: item for item, number in self._numbers.items()}
        self._tuples: dict[int, tuple[tuple[Item, ...], Ids]] = {}

    def of(self, items: tuple[Item, ...]) -> Ids:
        """The numbers of the items, in order."""
        match = self._tuples.get(id(items))
        if match is not None and match[0] is items:
            return match[1]
        self._learn([item for item in dict.fromkeys(items) if item not in self._numbers])
        numbers = np.array([self._numbers[item] for item in items], dtype=np.int32)
        if len(self._tuples) >= _REMEMBERED:
            self._tuples.clear()
        self._tuples[id(items)] = (items, numbers)
        return numbers

    def prepare(self, tuples: Iterable[tuple[Item, ...]]) -> None:
        """Numbers all new items at once, so that ``add`` is called a single time."""
        fresh: dict[Item, None] = {}
        for items in tuples:
            match = self._tuples.get(id(items))
            if match is None or match[0] is not items:
                fresh.update(dict.fromkeys(item for item in items if item not in self._numbers))
        self._learn(list(fresh))

    def _learn(self, new: Sequence[Item]) -> None:
        if new:
            numbers = self._add(new)
            self._numbers.update(zip(new, numbers, strict=True))
            self.named.update(zip(numbers, new, strict=True))

    def clear(self) -> None:
        """Drops all numbers: after a failed transaction it is unknown which were committed."""
        self._numbers.clear()
        self._tuples.clear()
        self.named.clear()


@dataclass(frozen=True, slots=True)
class CycleMatrix:
    """One cycle of one kind: ``values`` and ``status`` have shape (keys, entities).

    ``entities`` are numbers, ascending; ``keys`` are in stored order, the scrape offset last.
    """

    kind: EntityKind
    entities: Ids
    keys: tuple[SignalKey, ...]
    values: Numeric
    status: Statuses


def column_order(key: SignalKey) -> tuple[bool, str, int, float]:
    """Sort key of columns: a signal's columns together, a histogram's sum after its buckets, the offset last."""
    bucket = -1 if key.bucket is None else key.bucket
    return key == SCRAPE_OFFSET, key.name, 1_000_000 if bucket == SUM_BUCKET else bucket, key.quantile or 0.0


@dataclass(frozen=True, slots=True)
class _Layout:
    """Placement of the batches of one kind, computed once for the same tuples of entities and keys.

    ``groups`` are the indices of batches that are placed together, each with the index of their cells.
    ``tuples`` keeps the cached tuples alive, so that no other tuple can take their identity.
    """

    entities: Ids
    keys: tuple[SignalKey, ...]
    groups: tuple[tuple[list[int], Any], ...]
    rows: NDArray[np.intp]
    sizes: list[int]
    tuples: tuple[object, ...]


class Merger:
    """Merges cycles; caches the layout of each kind."""

    def __init__(
        self, entities: Numbers[EntityRef], keys: Numbers[SignalKey], width: type[np.floating[Any]] = np.float32
    ) -> None:
        """``entities`` and ``keys`` number the names in batches; ``width`` is the type of stored values."""
        self._entities = entities
        self._keys = keys
        self._width = width
        self._layouts: dict[tuple[int, ...], _Layout] = {}

    def merge(self, at: datetime, batches: Sequence[SampleBatch]) -> tuple[CycleMatrix, ...]:
        """One matrix per kind, in the order of the first batch of each kind. Empty batches are left out."""
        by_kind: dict[EntityKind, list[SampleBatch]] = {}
        for batch in batches:
            if batch.entities and batch.keys:
                by_kind.setdefault(batch.kind, []).append(batch)
        return tuple(self._merge_kind(kind, at, result) for kind, result in by_kind.items())

    def _merge_kind(self, kind: EntityKind, at: datetime, batches: Sequence[SampleBatch]) -> CycleMatrix:
        layout = self._layout_of(batches)
        values = np.full((len(layout.keys), layout.entities.size), np.nan, dtype=self._width)
        status = np.full(values.shape, CellStatus.ABSENT, dtype=np.uint8)
        for chosen, where in layout.groups:
            with np.errstate(over="ignore"):  # values beyond the range of float32 become infinite
                new = np.concatenate([batches[i].values for i in chosen], dtype=self._width, casting="same_kind")
            _overlay(values, status, where, new.T, np.concatenate([batches[i].status for i in chosen]).T)
        offsets = [(batch.scraped_at - at).total_seconds() for batch in batches]
        values[-1, layout.rows] = np.repeat(offsets, layout.sizes)
        status[-1] = CellStatus.PRESENT
        return CycleMatrix(kind, layout.entities, layout.keys, values, without_hollows(values, status))

    def _layout_of(self, batches: Sequence[SampleBatch]) -> _Layout:
        tuples = tuple(part for batch in batches for part in (batch.entities, batch.keys))
        known = tuple(map(id, tuples))
        if known not in self._layouts:
            if len(self._layouts) >= _REMEMBERED_LAYOUTS:
                self._layouts.clear()
            self._layouts[known] = self._compute(batches, tuples)
        return self._layouts[known]

    def _compute(self, batches: Sequence[SampleBatch], tuples: tuple[object, ...]) -> _Layout:
        self._entities.prepare(batch.entities for batch in batches)
        members = [self._entities.of(batch.entities) for batch in batches]
        entities_of_kind = np.unique(np.concatenate(members))
        by_keys: dict[int, list[int]] = {}
        for index, batch in enumerate(batches):
            by_keys.setdefault(id(batch.keys), []).append(index)
        columns = [self._keys.of(batches[indices[0]].keys) for indices in by_keys.values()]
        keys, positions = self._columns(columns)
        groups = []
        for wanted, indices in zip(columns, by_keys.values(), strict=True):
            for part in _without_repeats([members[index] for index in indices]):
                # ascending numbers give one slice; a group has no duplicates, so that its order does not matter
                chosen = sorted((indices[index] for index in part), key=lambda index: members[index][0])
                rows = np.searchsorted(entities_of_kind, np.concatenate([members[index] for index in chosen]))
                groups.append((chosen, cross(compact(positions[wanted]), compact(rows))))
        rows_of_batches = np.searchsorted(entities_of_kind, np.concatenate(members))
        return _Layout(
            entities_of_kind, keys, tuple(groups), rows_of_batches, [member.size for member in members], tuples
        )

    def _columns(self, columns: Sequence[Ids]) -> tuple[tuple[SignalKey, ...], Ids]:
        """The keys in stored order, and for each key number its row there (-1 for others).

        Signals stand in the order of their first occurrence: the columns of a target are then adjacent and copied as
        one piece.
        """
        numbers = np.unique(np.concatenate(columns)).tolist()
        named = self._keys.named
        first: dict[str, int] = {}
        for number in numbers:
            first.setdefault(named[number].name, number)
        ordered = sorted(numbers, key=lambda number: (first[named[number].name], column_order(named[number])))
        indices = np.full(numbers[-1] + 1, -1, dtype=np.int32)
        indices[ordered] = np.arange(len(ordered))
        return (*(named[number] for number in ordered), SCRAPE_OFFSET), indices

    def clear(self) -> None:
        """Drops every number and layout."""
        self._entities.clear()
        self._keys.clear()
        self._layouts.clear()


def _without_repeats(members: Sequence[Ids]) -> list[list[int]]:
    """Indices in groups without duplicate entities: mostly a single group."""
    joined = np.concatenate(members)
    if np.unique(joined).size == joined.size:
        return [list(range(len(members)))]
    return [[index] for index in range(len(members))]


def _overlay(values: Numeric, status: Statuses, where: Any, new_values: Numeric, new_status: Statuses) -> None:
    old = status[where]
    if (old == CellStatus.ABSENT).all():
        values[where], status[where] = new_values, new_status
        return
    wins = (new_status == CellStatus.PRESENT) | (
        (old != CellStatus.PRESENT) & ((new_status != CellStatus.ABSENT) | (old == CellStatus.ABSENT))
    )
    values[where] = np.where(wins, new_values, values[where])
    status[where] = np.where(wins, new_status, old)
