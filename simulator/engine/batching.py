"""The decoding sequences of each replica, as arrays over all replicas.

A replica is a row, a seat is a column. Every sequence gets one token per step, so it needs no update per step: its last
step and the difference between its tokens and the step count are fixed when it gets its seat.
"""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.engine.request_table import RequestTable

NEVER = np.iinfo(np.int32).max  # more than the steps of an engine in a year
_EMPTY = -1e18  # tokens of an empty seat, which needs no blocks
_FIRST_SEATS = 8
_NOBODY = np.empty(0, dtype=np.int64)


class Batches:
    """Arrays of shape (replicas,), and of shape (replicas, seats) for the seats."""

    def __init__(self, replicas: int, table: RequestTable, block: Floats) -> None:
        """``block`` is the number of tokens in a KV block of each replica."""
        self._table, self._block = table, block
        self.size = np.zeros(replicas, dtype=np.int64)
        self.steps = np.zeros(replicas, dtype=np.int32)
        self.context = np.zeros(replicas)  # tokens of all sequences
        self.next_end = np.full(replicas, NEVER, dtype=np.int32)
        self._seats = _FIRST_SEATS
        # Index = replica x seats + seat.
        self._row = np.full(replicas * _FIRST_SEATS, -1)
        self._end = np.full(replicas * _FIRST_SEATS, NEVER, dtype=np.int32)
        self._own = np.full(replicas * _FIRST_SEATS, _EMPTY)  # tokens in unshared blocks, minus steps
        # The free seats, from index ``size`` on.
        self._free = np.tile(np.arange(_FIRST_SEATS), replicas)

    def add(self, replica: np.ndarray, rows: np.ndarray) -> None:
        """Adds sequences whose prefill ended with the last step, which made token ``generated`` + 1."""
        if rows.size:
            order = np.argsort(replica, kind="stable")
            self._assign_seats(replica[order], rows[order])

    def advance(self, replica: np.ndarray, steps: np.ndarray) -> None:
        """Adds ``steps`` completed steps to each of these replicas (no repeats)."""
        self.steps[replica] += steps
        self.context[replica] += steps * self.size[replica]

    def complete(self, replica: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Removes complete sequences; returns their rows and the number of steps since the end of each."""
        due = replica[self.next_end[replica] <= self.steps[replica]]
        if due.size == 0:
            return _NOBODY, _NOBODY
        ends, steps = self._of(self._end, due).ravel(), self.steps[due]
        hit = np.flatnonzero(ends <= np.repeat(steps, self._seats))
        which = hit // self._seats
        place = due[which] * self._seats + hit % self._seats
        rows, ago = self._row[place], steps[which] - ends[hit]
        self._free_seats(due[which], place)
        return rows, ago

    def remove(self, rows: np.ndarray) -> None:
        """Removes these sequences, complete or not."""
        if rows.size:
            rows = rows[np.argsort(self._table.replica[rows], kind="stable")]
            replica = self._table.replica[rows]
            self._free_seats(replica, replica * self._seats + self._table.seat[rows])

    def newest(self, replica: np.ndarray) -> np.ndarray:
        """Returns the row that arrived last on each of these replicas, which must not be empty."""
        rows = self._of(self._row, replica)
        order = np.where(rows >= 0, self._table.order[rows], -1)
        return np.asarray(rows[np.arange(replica.size), order.argmax(axis=1)])

    def tokens(self, rows: np.ndarray) -> Floats:
        """Returns prompt tokens plus generated tokens of decoding sequences."""
        replica = self._table.replica[rows]
        place = replica * self._seats + self._table.seat[rows]
        return np.asarray(self._own[place] + self.steps[replica] + self._table.common[rows], dtype=np.float64)

    def blocks(self, replica: np.ndarray, ahead: int) -> Floats:
        """Returns unshared KV blocks needed in the next step (``ahead`` 0) or used in the last one (-1)."""
        tokens = self._of(self._own, replica) + (self.steps[replica] + ahead)[:, None]
        used = np.ceil(tokens * (1.0 / self._block[replica])[:, None] - 1e-9)
        return np.asarray(np.maximum(used, 0.0).sum(axis=1), dtype=np.float64)

    def steps_that_fit(self, replica: np.ndarray, blocks: Floats) -> np.ndarray:
        """Returns the number of steps that fit into ``blocks`` KV blocks; at most one block's worth."""
        block = self._block[replica][:, None]
        tokens = self._of(self._own, replica) + self.steps[replica][:, None]
        empty = tokens < 0
        used = np.where(empty, 0.0, np.ceil((tokens - 1) / block - 1e-9))
        free = blocks - used.sum(axis=1)
        # A sequence takes a new block once the steps have filled its last one: sort by that step.
        filled = np.sort(np.where(empty, np.inf, used * block - tokens + 1), axis=1)
        place = np.clip(free, 0, filled.shape[1] - 1).astype(np.int64)
        until = np.where(free >= self.size[replica], np.inf, filled[np.arange(replica.size), place])
        return np.where(free < 0, 0, np.minimum(until, block[:, 0])).astype(np.int64)

    def reset(self, replica: int) -> None:
        """Removes all sequences of a replica."""
        self.size[replica], self.context[replica], self.next_end[replica] = 0, 0.0, NEVER
        places = slice(replica * self._seats, (replica + 1) * self._seats)
        self._row[places], self._end[places], self._own[places] = -1, NEVER, _EMPTY
        self._free[places] = np.arange(self._seats)

    def _of(self, seats: np.ndarray, replica: np.ndarray) -> np.ndarray:
        """Returns a row for each of these replicas."""
        return seats.reshape(-1, self._seats).take(replica, axis=0)

    def _assign_seats(self, replica: np.ndarray, rows: np.ndarray) -> None:
        """Assigns seats to these sequences; equal replicas must be adjacent."""
        table = self._table
        replicas, first, rank, count = _runs_of(replica)
        while int((self.size[replicas] + count).max()) > self._seats:
            self._widen()
        seat = self._free[replica * self._seats + self.size[replica] + rank]
        place = replica * self._seats + seat
        generated = table.generated[rows] + 1.0
        tokens = table.prompt[rows] + generated
        end = self.steps[replica] + (table.output[rows] - generated).astype(np.int32)
        self._row[place], self._end[place] = rows, end
        self._own[place] = tokens - table.common[rows] - self.steps[replica]
        table.seat[rows] = seat
        self.size[replicas] += count
        self.context[replicas] += np.add.reduceat(tokens, first)
        self.next_end[replicas] = np.minimum(self.next_end[replicas], np.minimum.reduceat(end, first))

    def _free_seats(self, replica: np.ndarray, place: np.ndarray) -> None:
        """Frees these seats; equal replicas must be adjacent."""
        table = self._table
        replicas, first, rank, count = _runs_of(replica)
        rows = self._row[place]
        self.size[replicas] -= count
        self._free[replica * self._seats + self.size[replica] + rank] = place % self._seats
        tokens = self._own[place] + self.steps[replica] + table.common[rows]
        self.context[replicas] -= np.add.reduceat(tokens, first)
        self._row[place], self._end[place], self._own[place] = -1, NEVER, _EMPTY
        table.seat[rows] = -1
        self.next_end[replicas] = self._of(self._end, replicas).min(axis=1)

    def _widen(self) -> None:
        """Doubles the number of seats."""

        def wider(seats: np.ndarray, more: np.ndarray | float) -> np.ndarray:
            old = seats.reshape(-1, self._seats)
            added = np.broadcast_to(np.asarray(more, dtype=seats.dtype), old.shape)
            return np.concatenate([old, added], axis=1).ravel()

        self._row, self._end, self._own = wider(self._row, -1), wider(self._end, NEVER), wider(self._own, _EMPTY)
        self._free = wider(self._free, np.arange(self._seats, 2 * self._seats))
        self._seats *= 2


def _runs_of(replica: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns runs of equal replicas: replica, first index, rank of each element in its run, and run lengths."""
    edge = np.flatnonzero(np.concatenate([[True], replica[1:] != replica[:-1], [True]]))
    first, count = edge[:-1], edge[1:] - edge[:-1]
    return replica[first], first, np.arange(replica.size) - np.repeat(first, count), count
