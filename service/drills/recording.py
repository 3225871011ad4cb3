"""Keeps what the collectors brought during a drill, as matrices: for the data set and for rival detectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

import numpy as np

from outrider.model import EntityKind, EntityRef, Event, Floats, SampleBatch, SignalKey
from outrider.ports import Collected

Item = TypeVar("Item")
KINDS = (
    EntityKind.SERVICE,
    EntityKind.REPLICA,
    EntityKind.GPU,
    EntityKind.NODE,
    EntityKind.PORT,
    EntityKind.POD,
    EntityKind.CONTAINER,
    EntityKind.WORKLOAD,
    EntityKind.CLUSTER,
)


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """Values of one kind, shape (times, entities, keys); NaN where nothing was said. ``times`` are unix seconds."""

    times: Floats
    entities: tuple[EntityRef, ...]
    keys: tuple[SignalKey, ...]
    values: Floats

    def plain(self) -> Matrix:
        """Without the buckets of histograms."""
        kept = [place for place, key in enumerate(self.keys) if key.bucket is None]
        return Matrix(self.times, self.entities, tuple(self.keys[place] for place in kept), self.values[:, :, kept])

    def column(self, name: str) -> Floats | None:
        """The values of a plain signal, (times, entities); None when nobody publishes it."""
        key = SignalKey(name)
        return self.values[:, :, self.keys.index(key)] if key in self.keys else None


@dataclass(slots=True)
class Recorded:
    """One run as the platform saw it: a matrix a kind, and the events."""

    matrices: Mapping[EntityKind, Matrix]
    events: tuple[Event, ...]


@dataclass(slots=True)
class Recorder:
    """Takes in one round after the other."""

    rounds: list[tuple[datetime, tuple[SampleBatch, ...]]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def take(self, at: datetime, collected: Collected) -> None:
        """One round of collection."""
        kept = tuple(batch for batch in collected.batches if batch.kind in KINDS)
        self.rounds.append((at, kept))
        self.events += collected.events

    def recorded(self) -> Recorded:
        """Everything taken in so far."""
        found = {kind: matrix for kind in KINDS if (matrix := self._matrix(kind)).entities}
        once = {event.id: event for event in self.events}  # one that came again knew more
        return Recorded(found, tuple(once.values()))

    def _matrix(self, kind: EntityKind) -> Matrix:
        batches = [
            (number, one) for number, (_, all_of) in enumerate(self.rounds) for one in all_of if one.kind is kind
        ]
        entities = _places(entity for _, batch in batches for entity in batch.entities)
        keys = _places(key for _, batch in batches for key in batch.keys)
        values = np.full((len(self.rounds), len(entities), len(keys)), np.nan)
        for number, batch in batches:
            _put(values[number], batch, entities, keys)
        times = np.array([at.timestamp() for at, _ in self.rounds])
        return Matrix(times, tuple(entities), tuple(keys), values)


def _places(items: Iterable[Item]) -> dict[Item, int]:
    return {item: place for place, item in enumerate(dict.fromkeys(items))}


def _put(row: Floats, batch: SampleBatch, entities: Mapping[EntityRef, int], keys: Mapping[SignalKey, int]) -> None:
    columns = [(column, keys[key]) for column, key in enumerate(batch.keys) if key in keys]
    if not columns:
        return
    here = np.array([column for column, _ in columns])
    there = np.array([place for _, place in columns])
    rows = np.array([entities[entity] for entity in batch.entities])
    said = batch.values[:, here]
    known = ~np.isnan(said)
    block = row[np.ix_(rows, there)]
    row[np.ix_(rows, there)] = np.where(known, said, block)
