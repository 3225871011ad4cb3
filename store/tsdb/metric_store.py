"""The metric store on SQLite and PostgreSQL: one block per cycle and kind, read back into matrices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock

import numpy as np
import sqlalchemy as sa

from outrider.clock import SystemClock
from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, Event, Floats, SampleBatch, SignalKey, Statistic, Statuses, Window
from store.migrations.runner import open_upgraded
from store.schema import metadata
from store.schema.metadata import RAW, instant, micros
from store.tsdb import (
    atomic_replace,
    blocks,
    event_rows,
    history_writer,
    hourly,
    late_writes,
    latest,
    maintenance_queue,
    tiers,
)
from store.tsdb import status as tsdb_status
from store.tsdb.atomic_replace import Access
from store.tsdb.chunk_codec import Micros, Numeric, without_hollows
from store.tsdb.cycle_matrix import SCRAPE_OFFSET, CycleMatrix, Merger, column_order
from store.tsdb.grid import Grid, column_requests, empty_window
from store.tsdb.last_seen import LastSeen
from store.tsdb.latest import LatestTables
from store.tsdb.maintenance import Maintenance, MaintenanceReport
from store.tsdb.retention import Retention
from store.tsdb.series_dictionary import Names, SeriesDictionary, StaleNumbersError
from store.tsdb.status import Condition, LateSamples
from store.tsdb.tiers import ONE_HOUR, Segment
from store.tsdb.window_reader import LOOK_BACK, Rows, fill, sorted_entities

DEFAULT_RETENTION = Retention()


class SqlMetricStore:
    """Implements ``outrider.ports.MetricStore``. One writer, any number of readers."""

    def __init__(self, url: str) -> None:
        """Opens and upgrades the database; raises StoreError or SchemaTooNewError."""
        self._database = open_upgraded(url, "metrics")
        try:
            latest.create(self._database)
            hourly.create(self._database)
        except BaseException:
            self._database.close()
            raise
        self._dictionary = SeriesDictionary()
        self._merger = Merger(self._dictionary.entities, self._dictionary.keys)
        self._latest = LatestTables()
        self._seen = LastSeen()
        self._names = Names()
        self._writer = Lock()
        self._newest = -1  # microseconds of the newest cycle written by this process
        self._upkeep = Maintenance(Access(self._database.reading, self._maintaining, self._dictionary))
        self._clock = SystemClock()
        self.longest_maintenance_seconds = 0.0
        """Longest write transaction of maintenance so far, from begin to commit."""

    # --- write ------------------------------------------------------------------------------------

    def write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event] = ()) -> int:
        """Writes one cycle durably; returns the number of cells with a value.

        A second write of the same timestamp replaces the kinds it contains. Events with a known dedup key are left out.
        Values older than all retention are rejected and counted in ``condition``, not in the result.
        """
        try:
            return self._write(at, batches, events)
        except StaleNumbersError:
            return self._write(at, batches, events)

    def _write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event]) -> int:
        splits = self._splits(micros(at), {batch.kind for batch in batches})
        hidden: list[int] = []
        with self._writing(micros(at)) as connection:
            late, self._newest = micros(at) <= self._newest or self._newest < 0, max(micros(at), self._newest)
            merged = list(self._merger.merge(at, batches))
            if late:
                merged = [matrix for matrix in merged if self._lands(connection, at, matrix)]
            for cycle in merged:
                hidden += late_writes.make(connection, cycle.kind, micros(at), splits)
                blocks.write_tail(connection, self._dictionary, at, cycle)
                maintenance_queue.written(connection, cycle.kind, [micros(at)])
                self._latest.update(connection, cycle, self._dictionary.entities.named, at)
                self._seen.note(cycle.kind, cycle.entities, micros(at))
            self._seen.flush(connection, micros(at))
            event_rows.add(connection, events)
        with suppress(StoreError):  # the cycle is committed; the next maintenance run deletes the leftovers
            atomic_replace.purge(Access(self._database.reading, self._writing, self._dictionary), hidden)
        return sum(_values(cycle) for cycle in merged)

    def _splits(self, at: int, kinds: Collection[EntityKind]) -> late_writes.Splits:
        """Splits the rows that span a late timestamp, before any lock is taken."""
        if at > self._newest >= 0:
            return {}
        with self._database.reading() as connection:
            return late_writes.prepare(connection, kinds, at)

    def _lands(self, connection: sa.Connection, at: datetime, matrix: CycleMatrix) -> bool:
        """False for values older than all retained values."""
        time = micros(at)
        if time >= maintenance_queue.cuts(connection, matrix.kind).get(ONE_HOUR, time):
            return True
        tsdb_status.refuse(connection, LateSamples.OLDER_THAN_KEPT, _values(matrix))
        return False

    def write_block(
        self,
        kind: EntityKind,
        times: Floats,
        keys: Sequence[SignalKey],
        entities: Sequence[EntityRef],
        values: Floats,
        status: Statuses | None = None,
    ) -> int:
        """Writes history of shape (entities, times, keys) atomically; returns the number of cells with a value.

        ``times`` are unix seconds, ascending. ``status`` None: NaN is ABSENT, the rest PRESENT. Replaces earlier
        history of the same entities and signals inside the span. A span must not be written twice with partially
        overlapping sets of entities. ``latest_<kind>`` is not changed: it belongs to the cycle.
        """
        instants = np.round(np.asarray(times) * 1e6).astype(np.int64)
        with np.errstate(over="ignore"):  # values beyond the range of float32 become infinite
            narrow = values.astype(np.float32)
        statuses = without_hollows(narrow, np.zeros(values.shape, dtype=np.uint8) if status is None else status)
        try:
            self._write_history(kind, instants, keys, tuple(entities), narrow, statuses)
        except StaleNumbersError:
            self._write_history(kind, instants, keys, tuple(entities), narrow, statuses)
        return int(np.count_nonzero(~np.isnan(narrow)))

    def _write_history(
        self,
        kind: EntityKind,
        times: Micros,
        keys: Sequence[SignalKey],
        entities: tuple[EntityRef, ...],
        values: Numeric,
        status: Statuses,
    ) -> None:
        first = int(times[0])
        with self._writing(first):
            self._dictionary.entities.prepare([entities])
            numbers = self._dictionary.entities.of(entities)
        drafts = list(history_writer.pack(kind, times, numbers, keys, values, status))
        access = Access(self._database.reading, lambda: self._writing(first), self._dictionary)
        history_writer.write(access, kind, times, drafts)

    # --- maintenance ------------------------------------------------------------------------------

    def maintain(
        self, now: datetime, retention: Retention = DEFAULT_RETENTION, *, stop: Callable[[], bool] = lambda: False
    ) -> MaintenanceReport:
        """Compacts, rolls up, applies retention and releases space, for hours that are over and settled.

        ``stop`` is called between steps of some seconds. Safe beside a writer and a second maintenance run. Raises
        StoreError.
        """
        return self._upkeep.run(now, retention, stop=stop)

    def prune(
        self, now: datetime, retention: Retention = DEFAULT_RETENTION, *, vacuum: bool = False
    ) -> MaintenanceReport:
        """Runs maintenance at once, without waiting for late values.

        ``vacuum`` rebuilds the file, which shrinks it and enables incremental vacuum. No other process may write
        meanwhile. Raises StoreError.
        """
        result = self._upkeep.run(now, retention, settle=False)
        if vacuum:
            self._database.vacuum()
        return result

    def condition(self) -> Condition:
        """Disk usage, pending maintenance, retention cuts and rejected values. Raises StoreError."""
        with self._database.reading() as connection:
            return tsdb_status.read(connection)

    def compact(self, before: datetime) -> int:
        """Rewrites whole hours before a time as one row per signal; returns the number of hours."""
        return self._upkeep.compact(before)

    @contextmanager
    def _maintaining(self) -> Iterator[sa.Connection]:
        begun: float | None = None
        try:
            with self._writing() as connection:
                begun = self._clock.monotonic()
                yield connection
        finally:
            if begun is not None:
                self.longest_maintenance_seconds = max(
                    self.longest_maintenance_seconds, self._clock.monotonic() - begun
                )

    @contextmanager
    def _writing(self, at: int | None = None) -> Iterator[sa.Connection]:
        with self._writer:
            try:
                with self._database.writing() as connection:
                    self._dictionary.connection, self._dictionary.at = connection, at
                    yield connection
            except BaseException:
                self._merger.clear()
                self._dictionary.clear()
                self._seen.clear()
                raise
            finally:
                self._dictionary.connection = None

    # --- read -------------------------------------------------------------------------------------

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
        """Values in [start, end) on a grid of ``step``, as specified by ``outrider.ports.MetricStore``.

        ``times`` are the starts of the steps. ``entities`` None: everything of the kind written in the span (once
        compacted: in its hours; once rolled up: in its days), sorted by key. ``store.tsdb.tiers`` selects the tier of
        each hour.
        """
        grid = Grid(keys, start, end, step, statistic)
        with self._database.reading() as connection:
            status = maintenance_queue.tier_status(connection, kind, *grid.span)
            parts = tiers.segments(status, *grid.span, grid.step)
            return self._window(connection, kind, keys, parts, grid, entities, total=True)

    def _window(
        self,
        connection: sa.Connection,
        kind: EntityKind,
        keys: Sequence[SignalKey],
        parts: Sequence[Segment],
        grid: Grid,
        entities: Sequence[EntityRef] | None,
        *,
        total: bool,
    ) -> Window:
        wanted = column_requests(keys, sum_deltas=total)
        keysets = self._names.keysets(connection)
        names = {request.name for request in wanted}
        of_parts = [
            [
                row
                for row in blocks.rows_between(connection, kind, part.start, part.end, part.tier)
                if not names.isdisjoint(keysets[row.keyset].sections)
            ]
            for part in parts
        ]
        cohorts = {row.cohort for rows in of_parts for row in rows}
        members = {cohort: self._names.cohort(connection, cohort) for cohort in cohorts}
        known = self._names.entities(connection, kind)
        if entities is None:
            present = np.unique(np.concatenate([*members.values(), np.empty(0, dtype=np.int32)]))
            entities = sorted_entities([known.by_number[number] for number in present.tolist()], kind)
        grid.open(len(entities))
        output_rows = Rows(entities, known.numbers)
        columns = [grid.column(request) for request in wanted]
        for part, rows in zip(parts, of_parts, strict=True):
            for payload in blocks.payloads(connection, rows):
                for request, column in zip(wanted, columns, strict=True):
                    for piece in blocks.pieces(payload, keysets, request.name, request.stored, column.statistic):
                        inside = piece.inside(part.start, part.end)
                        fill(column, request, inside, *output_rows.of(piece.cohort, members[piece.cohort]))
        for column in columns:
            column.finish()
        return grid.window(kind, tuple(entities), event_rows.between(connection, *grid.span, kind=kind))

    def latest(self, kind: EntityKind, keys: Sequence[SignalKey] | None = None) -> Window:
        """The newest cell of every entity and key in the last 5 min before the newest timestamp of the kind.

        A cell with a value wins over a later one without. ``keys`` None: every stored column.
        """
        table = metadata.block
        query = (
            sa.select(table.c.end_us)
            .where(table.c.kind == kind.value, table.c.tier == RAW, blocks.visible())
            .order_by(table.c.end_us.desc())
            .limit(1)
        )
        with self._database.reading() as connection:
            newest: int | None = connection.execute(query).scalar()
            if newest is None:
                return empty_window(kind, keys or (), LOOK_BACK)
            end = instant(newest + 1)
            part = Segment(RAW, micros(end - LOOK_BACK), micros(end))
            if keys is None:
                rows = blocks.rows_between(connection, kind, part.start, part.end)
                keysets = self._names.keysets(connection)
                result = {key for row in rows for key in keysets[row.keyset].keys if key != SCRAPE_OFFSET}
                keys = sorted(result, key=column_order)
            grid = Grid(keys, end - LOOK_BACK, end, LOOK_BACK)
            window = self._window(connection, kind, keys, [part], grid, None, total=False)
        return replace(window, times=np.array([newest / 1e6]))

    def keys(self, kind: EntityKind, start: datetime, end: datetime) -> tuple[SignalKey, ...]:
        """Every stored column of a kind with a block in [start, end), raw or rolled up, in stored order."""
        with self._database.reading() as connection:
            keysets = self._names.keysets(connection)
            rows = [
                row
                for tier in tiers.TIERS
                for row in blocks.rows_between(connection, kind, micros(start), micros(end), tier)
            ]
        result = {key for row in rows for key in keysets[row.keyset].keys if key != SCRAPE_OFFSET}
        return tuple(sorted(result, key=column_order))

    def entities(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Every entity of a kind with retained values, sorted."""
        with self._database.reading() as connection:
            return sorted_entities(self._names.entities(connection, kind).by_number, kind)

    def events(self, start: datetime, end: datetime, entity: EntityRef | None = None) -> tuple[Event, ...]:
        """Events in [start, end), oldest first."""
        with self._database.reading() as connection:
            return event_rows.between(connection, micros(start), micros(end), entity=entity)

    @property
    def connections_in_use(self) -> int:
        """Open connections: 0 between calls."""
        return self._database.checked_out

    def close(self) -> None:
        """Releases every connection."""
        self._database.close()


def _values(matrix: CycleMatrix) -> int:
    return int(np.count_nonzero(~np.isnan(matrix.values[:-1])))
