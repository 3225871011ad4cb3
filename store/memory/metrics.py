"""The metric store in memory, for tests, replays and drills that must leave no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityKind, EntityRef, Event, SampleBatch, SignalKey, Statistic, Window
from store.schema.metadata import instant, micros
from store.tsdb.blocks import Piece
from store.tsdb.chunk_codec import Section
from store.tsdb.cycle_matrix import SCRAPE_OFFSET, CycleMatrix, Ids, Merger, Numbers, column_order
from store.tsdb.grid import Grid, column_requests, empty_window
from store.tsdb.series_dictionary import sections_of
from store.tsdb.window_reader import LOOK_BACK, Rows, fill, sorted_entities


@dataclass(frozen=True, slots=True)
class _Cycle:
    at: int
    cohort: int
    merged: CycleMatrix


class MemoryMetricStore:
    """Implements ``outrider.ports.MetricStore``. Keeps everything until it is closed."""

    def __init__(self) -> None:
        """Starts empty."""
        self._entities: Numbers[EntityRef] = Numbers(
            lambda new: range(len(self._entities.named), len(self._entities.named) + len(new))
        )
        keys: Numbers[SignalKey] = Numbers(lambda new: range(len(keys.named), len(keys.named) + len(new)))
        self._merger = Merger(self._entities, keys)
        self._cycles: dict[EntityKind, dict[int, _Cycle]] = {}
        self._cohorts: dict[bytes, int] = {}
        self._events: dict[str, Event] = {}

    def write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event] = ()) -> int:
        """Keeps one cycle; returns the number of cells with a value. A second write of a timestamp replaces it."""
        merged = self._merger.merge(at, batches)
        for result in merged:
            cohort = self._cohorts.setdefault(result.entities.tobytes(), len(self._cohorts))
            self._cycles.setdefault(result.kind, {})[micros(at)] = _Cycle(micros(at), cohort, result)
        for event in events:
            self._events.setdefault(event.dedup_key or event.id, event)
        return sum(int(np.count_nonzero(~np.isnan(result.values[:-1]))) for result in merged)

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
        """Values in [start, end) on a grid of ``step``, as specified by ``outrider.ports.MetricStore``."""
        cycles = self._between(kind, micros(start), micros(end))
        return self._window(kind, keys, cycles, Grid(keys, start, end, step, statistic), entities, total=True)

    def _between(self, kind: EntityKind, start: int, end: int) -> list[_Cycle]:
        match = self._cycles.get(kind, {})
        return [match[at] for at in sorted(match) if start <= at < end]

    def _window(
        self,
        kind: EntityKind,
        keys: Sequence[SignalKey],
        cycles: Sequence[_Cycle],
        grid: Grid,
        entities: Sequence[EntityRef] | None,
        *,
        total: bool,
    ) -> Window:
        wanted = column_requests(keys, sum_deltas=total)
        names = {request.name for request in wanted}
        sections = [sections_of(cycle.merged.keys) for cycle in cycles]
        pairs = [
            (cycle, section) for cycle, section in zip(cycles, sections, strict=True) if not names.isdisjoint(section)
        ]
        if entities is None:
            present: Ids = np.unique(
                np.concatenate([*(cycle.merged.entities for cycle, _ in pairs), np.empty(0, np.int32)])
            )
            entities = sorted_entities([self._entities.named[number] for number in present.tolist()], kind)
        grid.open(len(entities))
        indices = Rows(entities, {entity: number for number, entity in self._entities.named.items()})
        for request in wanted:
            column = grid.column(request)
            for cycle, section in pairs:
                if request.name in section:
                    rows = indices.of(cycle.cohort, cycle.merged.entities)
                    fill(column, request, _piece(cycle, section[request.name]), *rows)
            column.finish()
        start, end = (instant(at) for at in grid.span)
        events = tuple(event for event in self.events(start, end) if event.entity.kind is kind)
        return grid.window(kind, tuple(entities), events)

    def latest(self, kind: EntityKind, keys: Sequence[SignalKey] | None = None) -> Window:
        """The newest cell of every entity and key in the last 5 min before the newest timestamp of the kind."""
        newest = max(self._cycles.get(kind, {}), default=None)
        if newest is None:
            return empty_window(kind, keys or (), LOOK_BACK)
        end = instant(newest + 1)
        cycles = self._between(kind, micros(end - LOOK_BACK), micros(end))
        if keys is None:
            keys = sorted(
                {key for cycle in cycles for key in cycle.merged.keys if key != SCRAPE_OFFSET}, key=column_order
            )
        window = self._window(kind, keys, cycles, Grid(keys, end - LOOK_BACK, end, LOOK_BACK), None, total=False)
        return replace(window, times=np.array([newest / 1e6]))

    def entities(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Every entity of a kind ever written, sorted."""
        return sorted_entities(self._entities.named, kind)

    def events(self, start: datetime, end: datetime, entity: EntityRef | None = None) -> tuple[Event, ...]:
        """Events in [start, end), oldest first."""
        inside = (event for event in self._events.values() if start <= event.at < end)
        result = [event for event in inside if entity is None or event.entity == entity]
        return tuple(sorted(result, key=lambda event: (event.at, event.dedup_key or event.id)))

    def close(self) -> None:
        """Drops all data."""
        self._cycles.clear()
        self._events.clear()


def _piece(cycle: _Cycle, index: tuple[int, int, int]) -> Piece:
    _, first, last = index
    merged = cycle.merged
    cells = Section(merged.values[first:last, :, None], merged.status[first:last, :, None])
    return Piece(cycle.cohort, merged.keys[first:last], np.array([cycle.at]), cells)
