"""Protocol of the metric store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol

from outrider.model import EntityKind, EntityRef, Event, SampleBatch, SignalKey, Statistic, Window


class MetricStore(Protocol):
    """Storage of values and events."""

    def write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event] = ()) -> int:
        """Writes one cycle durably; returns the number of values written. Idempotent for one ``at``."""
        ...

    def read_windows(
        self,
        kind: EntityKind,
        keys: Sequence[SignalKey],
        start: datetime,
        end: datetime,
        step: timedelta,
        entities: Sequence[EntityRef] | None = None,
        *,
        statistic: Statistic = Statistic.LAST,
    ) -> Window:
        """Values in [start, end) on a grid of ``step`` as one matrix with status.

        Gauges and states are the ``statistic`` of the step's values, deltas and buckets their sum; quantile keys are
        derived from the step's buckets. A step without a value is NaN and ABSENT. If only a roll-up is left, a finer
        step has cells at the spacing of the roll-up.
        """
        ...

    def latest(self, kind: EntityKind, keys: Sequence[SignalKey] | None = None) -> Window:
        """The newest value of every entity and key, as a window of one timestamp."""
        ...

    def entities(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Every entity of a kind that was ever written, sorted."""
        ...

    def events(self, start: datetime, end: datetime, entity: EntityRef | None = None) -> tuple[Event, ...]:
        """Events in [start, end), oldest first."""
        ...

    def close(self) -> None:
        """Releases every connection."""
        ...
