"""A fleet's values as real pages have them: rounded, slowly moving, a third of the gauges standing still."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from outrider import catalog
from outrider.model import EntityKind, EntityRef, SampleBatch, SignalKey, SignalKind

START = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(seconds=15)


def keys_of(kind: EntityKind) -> tuple[SignalKey, ...]:
    """Every stored column of a kind: gauges, deltas, states, and the buckets of its histograms."""
    found: list[SignalKey] = []
    for signal in catalog.signals().values():
        if signal.entity is kind:
            found += signal.bucket_keys if signal.bounds else (SignalKey(signal.name),)
    return tuple(found)


class FleetValues:
    """Steps the values of ``entities`` entities of one kind; ``group`` of them share a target and its batches."""

    def __init__(self, kind: EntityKind, entities: int, group: int, seed: int = 1) -> None:
        """The same seed gives the same values."""
        self.kind = kind
        self.keys = keys_of(kind)
        self._random = np.random.default_rng(seed)
        names = [EntityRef("prod", kind, None, f"{kind.value}-{number:05}") for number in range(entities)]
        self.members = [tuple(names[first : first + group]) for first in range(0, entities, group)]
        kinds = [catalog.signal(key.name).kind for key in self.keys]
        self._gauge = np.array([found is SignalKind.GAUGE for found in kinds])
        self._delta = np.array([found is SignalKind.DELTA for found in kinds])
        self._bucket = np.array([found is SignalKind.HISTOGRAM for found in kinds])
        self._units = self._random.choice([1.0, 0.5, 0.01], len(self.keys), p=[0.6, 0.2, 0.2])
        self._moves = self._random.choice([0.0, 0.3, 0.9], len(self.keys), p=[0.3, 0.4, 0.3])
        self._rates = np.where(
            self._bucket, self._random.choice([0.0, 0.05, 2.0], len(self.keys), p=[0.6, 0.25, 0.15]), 0.2
        )
        self._status = np.zeros((group, len(self.keys)), dtype=np.uint8)
        self.values = np.round(self._random.random((entities, len(self.keys))) * 100) * self._units
        self.values[:, ~self._gauge & ~self._delta] = 1.0

    def step(self) -> NDArray[np.float64]:
        """The next values, of shape (entities, keys)."""
        shape = self.values.shape
        moved = self._random.random(shape, dtype=np.float32) < self._moves
        walk = np.round(self._random.standard_normal(shape, dtype=np.float32)) * self._units
        self.values = np.where(self._gauge & moved, np.abs(self.values + walk), self.values)
        counted = self._delta | self._bucket
        self.values[:, counted] = self._random.poisson(self._rates[counted], (shape[0], int(counted.sum())))
        return self.values

    def batches(self, at: datetime) -> list[SampleBatch]:
        """One batch a target, as collectors hand them in."""
        self.step()
        found, first = [], 0
        for members in self.members:
            rows = self.values[first : first + len(members)]
            status = self._status[: len(members)]
            found.append(SampleBatch("bench", at, self.kind, self.keys, members, rows, status, STEP.total_seconds()))
            first += len(members)
        return found


def instants(count: int) -> Iterator[datetime]:
    """The instants of so many cycles."""
    for number in range(count):
        yield START + number * STEP
