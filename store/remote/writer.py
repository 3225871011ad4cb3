"""Sends cycles and history to a Prometheus-compatible server; a cycle counts once all of it has arrived."""

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

        Raises StoreUnavailableError if part of it did not arrive, StoreError if the server rejects it.
        """
        if not merged:
            return 0
        deadline, time = self._server.retry_deadline, micros(at)
        self._recent.resend_lost(deadline)
        sent: list[Future[int]] = []
        requests: list[tuple[bytes, int]] = []
        ends: list[tuple[EntityKind, int, str]] = []
        for result, entities in merged:
            stamp, write = self._cycles.free_stamp(result.kind, time)
            for body, count in self._bodies(result, entities, stamp):
                sent.append(self._pool.submit(self._server.write, body, count, deadline))
                requests.append((body, count))
            ends.append((result.kind, stamp, write))
        refused = sum(count for _, count in requests) - _accepted(sent)
        rows = [(self._cycles.labels(kind, write), stamp) for kind, stamp, write in ends]
        requests += self._send_markers(rows, np.full(len(rows), time), deadline)
        self._recent.keep(UnflushedCycle([(kind, stamp) for kind, stamp, _ in ends], requests))
        for kind, stamp, _ in ends:
            self._cycles.note(kind, [(stamp, time)])
        return max(0, sum(_numbers(result) for result, _ in merged) - refused)

    def _bodies(self, matrix: CycleMatrix, entities: Entities, stamp: int) -> Iterator[tuple[bytes, int]]:
        columns, labels = self._layout(matrix, entities)
        most = self._server.remote.samples
        values = columns.samples(matrix.values, matrix.status)
        yield from bodies(labels, np.ascontiguousarray(values.T).ravel(), stamp, most)
        status_labels: list[bytes] = []
        codes: list[Floats] = []
        for name, statuses in columns.statuses(matrix.status).items():
            rows = np.flatnonzero(~np.isnan(statuses))
            status_labels += self._series.of([name], [entities[row] for row in rows.tolist()])
            codes.append(statuses[rows])
        if status_labels:
            yield from bodies(with_length(status_labels), np.concatenate(codes), stamp, most)

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
        length = max(1, _BLOCK_CELLS // max(1, len(keys) * len(entities)))
        for first in range(0, times.size, length):
            part = slice(first, first + length)
            deadline = self._server.retry_deadline
            stamps = times[part] // 1000
            labels, rows = self._history(tuple(keys), entities, values[..., part], status[..., part])
            sent = [
                self._pool.submit(self._server.write, body, count, deadline)
                for body, count in history(labels, rows, stamps, self._server.remote.samples)
            ]
            _accepted(sent)
            counted = [(self._cycles.labels(kind, FIRST), int(stamp)) for stamp in stamps.tolist()]
            self._send_markers(counted, times[part], deadline)
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

    def _send_markers(
        self, rows: Sequence[tuple[bytes, int]], instants: Micros, deadline: float
    ) -> list[tuple[bytes, int]]:
        """Sends the markers: labels and stamp of each, and its timestamp. Returns the requests."""
        by_labels: dict[bytes, list[int]] = {}
        for row, (labels, _) in enumerate(rows):
            by_labels.setdefault(labels, []).append(row)
        stamps, before = np.array([stamp for _, stamp in rows]), self._server.rejected.counted()
        sent = []
        for labels, indices in by_labels.items():
            for body, count in history(
                [labels], instants[None, indices].astype(np.float64), stamps[indices], len(rows)
            ):
                if self._server.write(body, count, deadline) < count:
                    raise self._rejection(int(instants[indices[0]]), before)
                sent.append((body, count))
        return sent

    def _rejection(self, at: int, before: dict[str, int]) -> StoreError:
        reasons = [reason for reason, count in self._server.rejected.counted().items() if count > before.get(reason, 0)]
        return StoreError(
            f"The metric store rejects the cycle of {rfc3339(instant(at))}: {'; '.join(reasons)}.",
            hint="If the server rejects old samples, configure out_of_order_time_window.",
        )


def _numbers(matrix: CycleMatrix) -> int:
    """Number of cells with a number to send; the scrape offset does not count."""
    return int(np.count_nonzero(~np.isnan(matrix.values[:-1]) & has_number(matrix.status[:-1])))


def _accepted(sent: Iterable[Future[int]]) -> int:
    """The sum of accepted samples; the first failure cancels requests that have not started."""
    try:
        return sum(future.result() for future in sent)
    except BaseException:
        for future in sent:
            future.cancel()
        raise
