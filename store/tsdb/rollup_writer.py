"""Builds roll-up rows from the finer tier, and merges a day of them into one row per signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outrider.model import EntityKind, SignalKey
from store.schema.metadata import RAW
from store.tsdb import blocks, rollup
from store.tsdb.arrays import cross
from store.tsdb.blocks import Draft, groups, pieces
from store.tsdb.chunk_codec import BULK_LEVEL, KEPT_LEVEL
from store.tsdb.compaction import LoadedRows, joined
from store.tsdb.cycle_matrix import SCRAPE_OFFSET, Ids, column_order
from store.tsdb.rollup import Fold, RollupCells
from store.tsdb.tiers import ONE_HOUR, SPACING


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one signal with the same fold, and their spans."""

    keys: tuple[SignalKey, ...]
    entities: Ids
    rolled: RollupCells


@dataclass(slots=True)
class RollupStep:
    """One roll-up step of a kind: the finer rows, and the rows of the target tier that overlap the span.

    ``sealed``: retention deleted finer values of the span; existing roll-ups then stay, and late values fill only empty
    spans. ``refused`` counts late values whose span was filled. ``seen`` receives the spans to be stored.
    """

    tier: str
    kind: EntityKind
    start: int
    end: int
    finer: LoadedRows
    existing: LoadedRows
    sealed: bool = False
    seen: Callable[[Columns], None] = lambda _: None
    refused: int = field(default=0, init=False)

    @property
    def replaced(self) -> list[int]:
        """Ids of the target-tier rows that ``drafts`` replaces."""
        if not self.sealed:
            return self.existing.ids
        finer = set(self.finer.names)
        return [row.id for row, _ in self.existing.rows if self._name(row.keyset) in finer]

    def _name(self, keyset: int) -> str:
        return self.existing.keysets[keyset].keys[0].name

    def drafts(self) -> Iterator[Draft]:
        """The rows to store, signal by signal."""
        names = self.finer.names if self.sealed else (*self.finer.names, *self.existing.names)
        for name in dict.fromkeys(names):
            if name != SCRAPE_OFFSET.name:  # a property of a cycle, not of a span
                yield from self._of(name)

    def _of(self, name: str) -> Iterator[Draft]:
        new = {
            result.rolled.fold: result for result in _finer(self.finer, name, SPACING[self.tier], self.start, self.end)
        }
        old = {result.rolled.fold: result for result in stored(self.existing, name)}
        for fold in Fold:
            columns = self._together(new.get(fold), old.get(fold))
            if columns is not None and columns.rolled.times.size:
                self.seen(columns)
                yield draft(self.tier, self.kind, columns)

    def _together(self, new: Columns | None, old: Columns | None) -> Columns | None:
        """Old spans outside the range, new ones inside; if sealed, the old ones inside are filled up."""
        if old is None:
            return new
        kept = _without(old, self.start, self.end)
        if new is None:
            return old if self.sealed else kept
        if not self.sealed:
            return union([kept, new])
        inside = _only(old, self.start, self.end)
        if not inside.rolled.times.size:
            return union([kept, new])
        wide = union([inside, new])
        filled, refused = rollup.fill_in(_spread(inside, wide), _spread(new, wide))
        self.refused += refused
        return union([kept, Columns(wide.keys, wide.entities, filled)])


def merged(loaded: LoadedRows, tier: str) -> Iterator[Draft]:
    """One row per signal and fold of a span of roll-ups; rows that are already merged are left."""
    level = KEPT_LEVEL if tier == ONE_HOUR else BULK_LEVEL
    for name in loaded.names:
        for columns in stored(loaded, name):
            yield draft(tier, loaded.kind, columns, level)


def draft(tier: str, kind: EntityKind, columns: Columns, level: int = BULK_LEVEL) -> Draft:
    """Packs the spans as a row."""
    rolled = columns.rolled
    return blocks.draft(tier, kind, rolled.times, columns.entities, columns.keys, rollup.sections(rolled), level)


def _finer(loaded: LoadedRows, name: str, spacing: int, start: int, end: int) -> Iterator[Columns]:
    """One signal of the finer rows inside [start, end), rolled up."""
    cells = _raw(loaded, name, start, end) if _is_raw(loaded) else map(_inside(start, end), stored(loaded, name))
    for columns in cells:
        yield Columns(columns.keys, columns.entities, rollup.roll(columns.rolled, spacing))


def _is_raw(loaded: LoadedRows) -> bool:
    return any(row.tier == RAW for row, _ in loaded.rows)


def _inside(start: int, end: int) -> Callable[[Columns], Columns]:
    return lambda columns: _only(columns, start, end)


def _raw(loaded: LoadedRows, name: str, start: int, end: int) -> Iterator[Columns]:
    parts = [part.inside(start, end) for part in pieces(loaded.rows, loaded.keysets, name)]
    by_fold: dict[Fold, set[SignalKey]] = {}
    for key in {key for part in parts for key in part.keys}:
        by_fold.setdefault(rollup.fold_of(key), set()).add(key)
    entities = loaded.entities_of([part.cohort for part in parts])
    times = np.unique(np.concatenate([np.empty(0, np.int64), *(part.times for part in parts)]))
    keys = tuple(sorted({key for part in parts for key in part.keys}, key=column_order))
    section = joined(parts, keys, loaded.members, entities, times)
    for fold, fold_keys in by_fold.items():
        indices = [index for index, key in enumerate(keys) if key in fold_keys]
        cells = rollup.of_cells(fold, times, section.taken(indices))
        yield Columns(tuple(keys[index] for index in indices), entities, cells)


def stored(loaded: LoadedRows, name: str) -> Iterator[Columns]:
    """One signal of roll-up rows, joined along time."""
    by_fold: dict[Fold, list[Columns]] = {}
    for row, keyset, result in groups(loaded.rows, loaded.keysets, name):
        rolled = rollup.unpack(result)
        by_fold.setdefault(rolled.fold, []).append(Columns(keyset.keys, loaded.members[row.cohort], rolled))
    for parts in by_fold.values():
        yield union(parts)


def union(parts: Iterable[Columns]) -> Columns:
    """All columns, entities and spans of the parts; later parts win."""
    listed = list(parts)
    known = [part for part in listed if part.rolled.times.size] or listed[:1]
    if len(known) == 1:
        return known[0]
    keys = tuple(sorted({key for part in known for key in part.keys}, key=column_order))
    entities = np.unique(np.concatenate([part.entities for part in known]))
    times = np.unique(np.concatenate([part.rolled.times for part in known]))
    whole = Columns(keys, entities, rollup.empty(known[0].rolled.fold, times, len(keys), entities.size))
    for part in known:
        rollup.overlay(whole.rolled, _where(part, whole), part.rolled)
    return whole


def _spread(part: Columns, shape: Columns) -> RollupCells:
    """The part on the columns, entities and spans of another."""
    times, fold = shape.rolled.times, part.rolled.fold
    wide = rollup.empty(fold, times, len(shape.keys), shape.entities.size)
    rollup.overlay(wide, _where(part, shape), part.rolled)
    return wide


def _where(part: Columns, whole: Columns) -> object:
    return cross(
        [whole.keys.index(key) for key in part.keys],
        np.searchsorted(whole.entities, part.entities),
        np.searchsorted(whole.rolled.times, part.rolled.times),
    )


def _only(columns: Columns, start: int, end: int) -> Columns:
    times = columns.rolled.times
    return _taken(columns, np.flatnonzero((times >= start) & (times < end)))


def _without(columns: Columns, start: int, end: int) -> Columns:
    times = columns.rolled.times
    return _taken(columns, np.flatnonzero((times < start) | (times >= end)))


def _taken(columns: Columns, spans: NDArray[np.intp]) -> Columns:
    rolled = columns.rolled
    part = RollupCells(rolled.fold, rolled.times[spans], rolled.statistics[..., spans], rolled.status[..., spans])
    return Columns(columns.keys, columns.entities, part)
