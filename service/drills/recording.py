"""Records the collected values of a drill as matrices, for the data set and for compared detectors."""

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
    """Values of one kind, shape (times, entities, keys); NaN without a value. ``times`` are unix seconds."""

    times: Floats
    entities: tuple[EntityRef, ...]
    keys: tuple[SignalKey, ...]
    values: Floats

    def plain(self) -> Matrix:
        """Returns the matrix without histogram buckets."""
        columns = [column for column, key in enumerate(self.keys) if key.bucket is None]
        keys = tuple(self.keys[column] for column in columns)
        return Matrix(self.times, self.entities, keys, self.values[:, :, columns])

    def column(self, name: str) -> Floats | None:
        """Values of a plain signal, (times, entities); None if it is not published."""
        key = SignalKey(name)
        return self.values[:, :, self.keys.index(key)] if key in self.keys else None


@dataclass(slots=True)
class RecordedRun:
    """The input of the platform in one run: a matrix per kind, and the events."""

    matrices: Mapping[EntityKind, Matrix]
    events: tuple[Event, ...]


@dataclass(slots=True)
class Recorder:
    """Records the collected values of each cycle."""

    cycles: list[tuple[datetime, tuple[SampleBatch, ...]]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def add(self, at: datetime, collected: Collected) -> None:
        """Adds one cycle."""
        batches = tuple(batch for batch in collected.batches if batch.kind in KINDS)
        self.cycles.append((at, batches))
        self.events += collected.events

    def recorded(self) -> RecordedRun:
        """Returns the run so far."""
        matrices = {kind: matrix for kind in KINDS if (matrix := self._matrix(kind)).entities}
        latest = {event.id: event for event in self.events}  # a repeated event has more attributes
        return RecordedRun(matrices, tuple(latest.values()))

    def _matrix(self, kind: EntityKind) -> Matrix:
        batches = [
            (number, batch)
            for number, (_, batches) in enumerate(self.cycles)
            for batch in batches
            if batch.kind is kind
        ]
        entities = _positions(entity for _, batch in batches for entity in batch.entities)
        keys = _positions(key for _, batch in batches for key in batch.keys)
        values = np.full((len(self.cycles), len(entities), len(keys)), np.nan)
        for number, batch in batches:
            _put(values[number], batch, entities, keys)
        times = np.array([at.timestamp() for at, _ in self.cycles])
        return Matrix(times, tuple(entities), tuple(keys), values)


def _positions(items: Iterable[Item]) -> dict[Item, int]:
    return {item: position for position, item in enumerate(dict.fromkeys(items))}


def _put(row: Floats, batch: SampleBatch, entities: Mapping[EntityRef, int], keys: Mapping[SignalKey, int]) -> None:
    columns = [(column, keys[key]) for column, key in enumerate(batch.keys) if key in keys]
    if not columns:
        return
    source = np.array([column for column, _ in columns])
    target = np.array([position for _, position in columns])
    rows = np.array([entities[entity] for entity in batch.entities])
    values = batch.values[:, source]
    previous = row[np.ix_(rows, target)]
    row[np.ix_(rows, target)] = np.where(np.isnan(values), previous, values)
