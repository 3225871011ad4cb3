"""The metric store on a Prometheus-compatible server: VictoriaMetrics, Mimir, Thanos or Prometheus itself.

Values are written by remote write and read by PromQL; the server handles retention, roll-ups and replication. All other
data stays in the database: events, entity names, and values written before the server was configured, until retention
deletes them. ``docs/explanation/scaling-out.md`` explains when to use a server and how servers differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock

import numpy as np

from outrider.clock import SystemClock
from outrider.model import EntityKind, EntityRef, Event, Floats, SampleBatch, SignalKey, Statistic, Statuses, Window
from store.remote.client import Remote, Server
from store.remote.window_reader import Reader
from store.remote.write_markers import Cycles
from store.remote.writer import Writer
from store.schema.metadata import instant, micros
from store.tsdb import event_rows, last_seen
from store.tsdb import status as tsdb_status
from store.tsdb.chunk_codec import without_hollows
from store.tsdb.cycle_matrix import Merger, Numbers, column_order
from store.tsdb.grid import Grid, column_requests, empty_window
from store.tsdb.metric_store import SqlMetricStore
from store.tsdb.window_reader import LOOK_BACK

__all__ = ["PrometheusMetricStore", "Remote"]
_CLOCK = SystemClock()


class PrometheusMetricStore(SqlMetricStore):
    """Implements ``outrider.ports.MetricStore``. One writer, any number of readers.

    A cycle is as durable as the server's 2xx guarantees. Cycles that the server lost are sent again
    (``store.remote.unflushed_cycles``). A cycle is readable once the server has indexed it: within seconds on
    VictoriaMetrics, at once on the others. Cells that are not PRESENT are read back with their status, without number.
    """

    def __init__(self, remote: Remote, url: str) -> None:
        """``url`` is the database of all other data. Raises StoreError or SchemaTooNewError; sends no request yet."""
        super().__init__(url)
        keys: Numbers[SignalKey] = Numbers(lambda new: range(len(keys.named), len(keys.named) + len(new)))
        self._merger = Merger(self._dictionary.entities, keys, np.float64)
        self._cycle = Lock()
        self._server = Server(remote)
        self._senders = ThreadPoolExecutor(remote.connections, "store-write")
        self._readers = ThreadPoolExecutor(remote.connections, "store-read")
        self._cycles = Cycles(self._server)
        self._sender = Writer(self._server, self._cycles, self._senders)
        self._reader = Reader(self._server, self._cycles, self._readers)
        self._counted: Counter[str] = Counter()

    # --- write ------------------------------------------------------------------------------------

    def write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event] = ()) -> int:
        """Writes one cycle; returns the number of accepted cells with a number.

        A second write of a timestamp replaces the kinds it contains. Events are written to the database first, so that
        they exist even if the server is unavailable. Rejected samples are counted by reason (``condition``). Raises
        StoreUnavailableError if the server does not respond: no value of the cycle counts then, and the call may be
        repeated.
        """
        with self._cycle:
            with self._writing(micros(at)) as connection:
                merged = self._merger.merge(at, batches)
                for result in merged:
                    self._seen.note(result.kind, result.entities, micros(at))
                self._seen.flush(connection, micros(at))
                event_rows.add(connection, events)
                named = self._dictionary.entities.named
                entities = [[named[number] for number in result.entities.tolist()] for result in merged]
            try:
                return self._sender.cycle(at, list(zip(merged, entities, strict=True)))
            finally:
                self._count_refused()

    def write_block(
        self,
        kind: EntityKind,
        times: Floats,
        keys: Sequence[SignalKey],
        entities: Sequence[EntityRef],
        values: Floats,
        status: Statuses | None = None,
    ) -> int:
        """Writes history of shape (entities, times, keys); returns the number of cells with a number.

        ``times`` are unix seconds, ascending. ``status`` None: NaN is ABSENT, the rest PRESENT. The same block may be
        written again. Different numbers for the same cells are rejected by Prometheus, Mimir and Thanos; on
        VictoriaMetrics the greater one wins. The server must accept samples of that age.
        """
        order = sorted(range(len(keys)), key=lambda index: column_order(keys[index]))
        marks = without_hollows(values, np.zeros(values.shape, dtype=np.uint8) if status is None else status)
        instants = np.round(np.asarray(times) * 1e6).astype(np.int64)
        with self._cycle:
            with self._writing(int(instants[0])) as connection:
                numbers = self._dictionary.entities.of(tuple(entities))
                last_seen.put_span(connection, numbers, int(instants[0]), int(instants[-1]))
            try:
                self._sender.block(
                    kind,
                    instants,
                    [keys[index] for index in order],
                    entities,
                    values[..., order].transpose(2, 0, 1),
                    marks[..., order].transpose(2, 0, 1),
                )
            finally:
                self._count_refused()
        return int(np.count_nonzero(~np.isnan(values)))

    def _count_refused(self) -> None:
        """Adds the samples rejected since the last call to the counts in the database."""
        now = Counter(self._server.rejected.counted())
        fresh, self._counted = now - self._counted, now
        if fresh:
            with self._writing() as connection:
                for reason, samples in fresh.items():
                    tsdb_status.refuse(connection, reason, samples)

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

        ``times`` are the starts of the steps. ``entities`` None: everything of the kind written in the span, sorted by
        key. The server aggregates long spans (``store.remote.query_ranges``).
        """
        grid = Grid(keys, start, end, step, statistic)
        result = self._reader.fill(grid, kind, column_requests(keys), entities)
        return self._with_events(grid, kind, result)

    def latest(self, kind: EntityKind, keys: Sequence[SignalKey] | None = None) -> Window:
        """The newest cell of every entity and key in the last 5 min before the newest timestamp of the kind.

        A cell with a value wins over a later one without. ``keys`` None: every stored column.
        """
        newest = self._cycles.newest(kind, _CLOCK.now().timestamp())
        if newest is None:
            return empty_window(kind, keys or (), LOOK_BACK)
        end = instant(newest + 1)
        if keys is None:
            keys = self.keys(kind, end - LOOK_BACK, end)
        grid = Grid(keys, end - LOOK_BACK, end, LOOK_BACK)
        result = self._reader.fill(grid, kind, column_requests(keys, sum_deltas=False), None)
        return replace(self._with_events(grid, kind, result), times=np.array([newest / 1e6]))

    def _with_events(self, grid: Grid, kind: EntityKind, entities: tuple[EntityRef, ...]) -> Window:
        """The filled grid with the events of its span."""
        with self._database.reading() as connection:
            return grid.window(kind, entities, event_rows.between(connection, *grid.span, kind=kind))

    def keys(self, kind: EntityKind, start: datetime, end: datetime) -> tuple[SignalKey, ...]:
        """Every column of a kind with a cell in [start, end), in stored order."""
        return tuple(self._reader.keys(kind, micros(start), micros(end)))

    def close(self) -> None:
        """Releases every connection; requests in progress end."""
        self._server.close()
        self._senders.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        super().close()
