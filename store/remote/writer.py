"""Sends cycles and history to a Prometheus-compatible server; a cycle counts once it has arrived completely."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime

import numpy as np

from outrider.clock import rfc3339
from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef, Floats, SignalKey, Statuses
from store.remote.bodies import SeriesBytes, bodies, history, with_length
from store.remote.client import Server
from store.remote.names import FIRST
from store.remote.sample_encoder import Columns, columns_of, has_number
from store.remote.unflushed_cycles import UnflushedCycle, UnflushedCycles
from store.remote.write_markers import Cycles
from store.schema.metadata import instant, micros
from store.tsdb.chunk_codec import Micros, Numeric
from store.tsdb.cycle_matrix import SCRAPE_OFFSET, CycleMatrix

_LAYOUTS = 16  # the usual layout of each kind, and those of cycles with a late target
_KEPT = 4  # cached labels, as a multiple of the entities of a cycle
_BLOCK_CELLS = 4_000_000  # cells of history sent before their markers
Entities = Sequence[EntityRef]


class Writer:
    """Sends to one server. Not thread-safe."""

    def __init__(self, server: Server, cycles: Cycles, pool: ThreadPoolExecutor) -> None:
        """``pool`` sends the requests."""
        self._server, self._cycles, self._pool = server, cycles, pool
        self._series = SeriesBytes(server.remote.owner)
        self._recent = UnflushedCycles(server)
        self._layouts: dict[tuple[EntityKind, int, int], tuple[CycleMatrix, Columns, list[bytes]]] = {}

    # --- cycles -----------------------------------------------------------------------------------

    def cycle(self, at: datetime, merged: Sequence[tuple[CycleMatrix, Entities]]) -> int:
        """Sends one cycle, each kind with its entities; returns the number of accepted cells with a number.

        Raises StoreUnavailableError if it did not arrive completely, StoreError if the server rejects it.
        """
        if not merged:
            return 0
        until, time = self._server.patience, micros(at)
        self._recent.make_sure(until)
        sent: list[Future[int]] = []
        kept: list[tuple[bytes, int]] = []
        ends: list[tuple[EntityKind, int, str]] = []
        for result, entities in merged:
            stamp, write = self._cycles.free_stamp(result.kind, time)
            for body, count in self._bodies(result, entities, stamp):
                sent.append(self._pool.submit(self._server.write, body, count, until))
                kept.append((body, count))
            ends.append((result.kind, stamp, write))
        refused = sum(count for _, count in kept) - _gathered(sent)
        rows = [(self._cycles.labels(kind, write), stamp) for kind, stamp, write in ends]
        kept += self._make_count(rows, np.full(len(rows), time), until)
        self._recent.keep(UnflushedCycle([(kind, stamp) for kind, stamp, _ in ends], kept))
        for kind, stamp, _ in ends:
            self._cycles.note(kind, [(stamp, time)])
        return max(0, sum(_numbers(result) for result, _ in merged) - refused)

    def _bodies(self, matrix: CycleMatrix, entities: Entities, stamp: int) -> Iterator[tuple[bytes, int]]:
        columns, labels = self._layout(matrix, entities)
        most = self._server.remote.samples
        values = columns.samples(matrix.values, matrix.status)
        yield from bodies(labels, np.ascontiguousarray(values.T).ravel(), stamp, most)
        told: list[bytes] = []
        codes: list[Floats] = []
        for name, statuses in columns.statuses(matrix.status).items():
            rows = np.flatnonzero(~np.isnan(statuses))
            told += self._series.of([name], [entities[row] for row in rows.tolist()])
            codes.append(statuses[rows])
        if told:
            yield from bodies(with_length(told), np.concatenate(codes), stamp, most)

    def _layout(self, matrix: CycleMatrix, entities: Entities) -> tuple[Columns, list[bytes]]:
        """Layout of the entities and columns of a cycle, mostly that of the previous cycle."""
        index = (matrix.kind, id(matrix.entities), id(matrix.keys))
        if index not in self._layouts:
            columns = columns_of(matrix.keys)
            self._series.trim(_KEPT * len(entities) + 10_000)
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            labels = with_length(self._series.of(columns.names, entities))
            self._layouts[index] = (matrix, columns, labels)  # kept alive: no other object can take its identity
        return self._layouts[index][1:]

    # --- history ----------------------------------------------------------------------------------

    def block(
        self,
        kind: EntityKind,
        times: Micros,
        keys: Sequence[SignalKey],
        entities: Sequence[EntityRef],
        values: Numeric,
        status: Statuses,
    ) -> None:
        """Sends history of shape (keys, entities, times), some millions of cells at a time, oldest first."""
        each = max(1, _BLOCK_CELLS // max(1, len(keys) * len(entities)))
        for first in range(0, times.size, each):
            part = slice(first, first + each)
            until = self._server.patience
            stamps = times[part] // 1000
            labels, rows = self._history(tuple(keys), entities, values[..., part], status[..., part])
            sent = [
                self._pool.submit(self._server.write, body, count, until)
                for body, count in history(labels, rows, stamps, self._server.remote.samples)
            ]
            _gathered(sent)
            counted = [(self._cycles.labels(kind, FIRST), int(stamp)) for stamp in stamps.tolist()]
            self._make_count(counted, times[part], until)
            self._cycles.note(kind, zip(stamps.tolist(), times[part].tolist(), strict=True))

    def _history(
        self, keys: tuple[SignalKey, ...], entities: Sequence[EntityRef], values: Numeric, status: Statuses
    ) -> tuple[list[bytes], Floats]:
        """Labels, and numbers of shape (series, times)."""
        columns, (_, count, length) = columns_of(keys), values.shape
        flat = status.reshape(len(keys), -1)
        result = columns.samples(values.reshape(len(keys), -1), flat).reshape(-1, count, length)
        labels = self._series.of(columns.names, entities)
        rows = [result.transpose(1, 0, 2).reshape(-1, length)]
        for name, statuses in columns.statuses(flat).items():
            labels += self._series.of([name], entities)
            rows.append(statuses.reshape(count, length))
        if SCRAPE_OFFSET not in keys:  # lets a read list the entities of the cycle
            labels += self._series.of(columns_of((SCRAPE_OFFSET,)).names, entities)
            rows.append(np.zeros((count, length)))
        return labels, np.concatenate(rows)

    def _make_count(self, rows: Sequence[tuple[bytes, int]], instants: Micros, until: float) -> list[tuple[bytes, int]]:
        """Sends the markers: labels and stamp of each, and its timestamp. Returns the requests."""
        by_labels: dict[bytes, list[int]] = {}
        for row, (labels, _) in enumerate(rows):
            by_labels.setdefault(labels, []).append(row)
        stamps, before = np.array([stamp for _, stamp in rows]), self._server.refusals.counted()
        sent = []
        for labels, those in by_labels.items():
            for body, count in history([labels], instants[None, those].astype(np.float64), stamps[those], len(rows)):
                if self._server.write(body, count, until) < count:
                    raise self._unwanted(int(instants[those[0]]), before)
                sent.append((body, count))
        return sent

    def _unwanted(self, at: int, before: dict[str, int]) -> StoreError:
        reasons = [reason for reason, count in self._server.refusals.counted().items() if count > before.get(reason, 0)]
        return StoreError(
            f"The metric store rejects the cycle of {rfc3339(instant(at))}: {'; '.join(reasons)}.",
            hint="If the server rejects old samples, configure out_of_order_time_window.",
        )


def _numbers(matrix: CycleMatrix) -> int:
    """Number of cells with a number to send; the scrape offset does not count."""
    return int(np.count_nonzero(~np.isnan(matrix.values[:-1]) & has_number(matrix.status[:-1])))


def _gathered(sent: Iterable[Future[int]]) -> int:
    """The sum of accepted samples; the first failure cancels requests that have not started."""
    try:
        return sum(future.result() for future in sent)
    except BaseException:
        for future in sent:
            future.cancel()
        raise
