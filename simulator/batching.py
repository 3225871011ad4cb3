"""The sequences that decode together on each replica, all replicas at once.

A replica is a row, a seat a column. As every sequence gets one token a step, it needs no update from
step to step: the step at which it is complete and the difference between its tokens and the steps are
fixed when it sits down.
"""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.table import RequestTable, group_sum, rank_in_group

NEVER = np.iinfo(np.int32).max  # steps of an engine that runs for a year stay below
_EMPTY = -1e18  # tokens of an empty seat: no block is needed for them
_FIRST_SEATS = 8
_NOBODY = np.empty(0, dtype=np.int64)


class Batches:
    """Arrays of shape (replicas,), and of shape (replicas, seats) for the seats."""

    def __init__(self, replicas: int, table: RequestTable, block: Floats) -> None:
        """``block`` is the number of tokens in a KV block of each replica."""
        self._table, self._block = table, block
        self.size = np.zeros(replicas, dtype=np.int64)
        self.steps = np.zeros(replicas, dtype=np.int32)
        self.context = np.zeros(replicas)  # tokens of all its sequences
        self.next_end = np.full(replicas, NEVER, dtype=np.int32)
        self._row = np.full((replicas, _FIRST_SEATS), -1, dtype=np.int64)
        self._end = np.full((replicas, _FIRST_SEATS), NEVER, dtype=np.int32)
        self._own = np.full((replicas, _FIRST_SEATS), _EMPTY)  # tokens in blocks of its own, minus steps
        # The seats that are free, from place ``size`` on.
        self._free = np.tile(np.arange(_FIRST_SEATS), (replicas, 1))

    def add(self, replica: np.ndarray, rows: np.ndarray) -> None:
        """Sequences whose prefill ended with the step just done; its token is their ``generated`` + 1."""
        if rows.size == 0:
            return
        table = self._table
        place = self.size[replica] + rank_in_group(replica)
        while int(place.max()) >= self._row.shape[1]:
            self._widen()
        seat = self._free[replica, place]
        made = table.generated[rows] + 1.0
        tokens = table.prompt[rows] + made
        end = self.steps[replica] + (table.output[rows] - made).astype(np.int32)
        self._row[replica, seat], self._end[replica, seat] = rows, end
        self._own[replica, seat] = tokens - table.common[rows] - self.steps[replica]
        table.seat[rows] = seat
        np.add.at(self.size, replica, 1)
        np.add.at(self.context, replica, tokens)
        np.minimum.at(self.next_end, replica, end)

    def advance(self, replica: np.ndarray, steps: np.ndarray) -> None:
        """Each of these replicas (no repeats) has done so many more steps."""
        self.steps[replica] += steps
        self.context[replica] += steps * self.size[replica]

    def complete(self, replica: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take out what is complete: rows, and how many steps ago each of them was."""
        due = replica[self.next_end[replica] <= self.steps[replica]]
        if due.size == 0:
            return _NOBODY, _NOBODY
        place, seat = np.divmod(np.flatnonzero(self._end[due] <= self.steps[due, None]), self._end.shape[1])
        where = due[place]
        rows, ago = self._row[where, seat], self.steps[where] - self._end[where, seat]
        self._vacate(where, seat, due)
        return rows, ago

    def remove(self, rows: np.ndarray) -> None:
        """Take out these sequences, complete or not."""
        if rows.size:
            replica = self._table.replica[rows]
            self._vacate(replica, self._table.seat[rows], np.unique(replica))

    def newest(self, replica: np.ndarray) -> np.ndarray:
        """The row that arrived last on each of these replicas, which must not be empty."""
        rows = self._row[replica]
        order = np.where(rows >= 0, self._table.order[rows], -1)
        return np.asarray(rows[np.arange(replica.size), order.argmax(axis=1)])

    def tokens(self, rows: np.ndarray) -> Floats:
        """Prompt and answer so far of sequences that decode."""
        replica, seat = self._table.replica[rows], self._table.seat[rows]
        return np.asarray(self._own[replica, seat] + self.steps[replica] + self._table.common[rows], dtype=np.float64)

    def blocks(self, replica: np.ndarray, ahead: int) -> Floats:
        """KV blocks of their own that the sequences need in the next step (``ahead`` 0) or held in the last (-1)."""
        tokens = self._own[replica] + (self.steps[replica] + ahead)[:, None]
        held = np.ceil(tokens * (1.0 / self._block[replica])[:, None] - 1e-9)
        return np.asarray(np.maximum(held, 0.0).sum(axis=1), dtype=np.float64)

    def steps_that_fit(self, replica: np.ndarray, blocks: Floats) -> np.ndarray:
        """How many steps can be done with so many KV blocks; beyond one block's worth nobody counts."""
        block = self._block[replica][:, None]
        tokens = self._own[replica] + self.steps[replica][:, None]
        empty = tokens < 0
        held = np.where(empty, 0.0, np.ceil((tokens - 1) / block - 1e-9))
        free = blocks - held.sum(axis=1)
        # A sequence takes a new block once the steps have filled the last one: in order of that.
        filled = np.sort(np.where(empty, np.inf, held * block - tokens + 1), axis=1)
        place = np.clip(free, 0, filled.shape[1] - 1).astype(np.int64)
        until = np.where(free >= self.size[replica], np.inf, filled[np.arange(replica.size), place])
        return np.where(free < 0, 0, np.minimum(until, block[:, 0])).astype(np.int64)

    def reset(self, replica: int) -> None:
        """A replica without sequences."""
        self.size[replica], self.context[replica], self.next_end[replica] = 0, 0.0, NEVER
        self._row[replica], self._end[replica], self._own[replica] = -1, NEVER, _EMPTY
        self._free[replica] = np.arange(self._free.shape[1])

    def sum_context(self) -> None:
        """Count the tokens of each batch anew: sums of sums drift."""
        rows = self._row[self._row >= 0]
        self.context = group_sum(self._table.replica[rows], self.tokens(rows), self.size.size)

    def _vacate(self, replica: np.ndarray, seat: np.ndarray, everywhere: np.ndarray) -> None:
        """Free these seats; ``everywhere`` are the replicas concerned, each once."""
        table = self._table
        rows = self._row[replica, seat]
        np.subtract.at(self.size, replica, 1)
        self._free[replica, self.size[replica] + rank_in_group(replica)] = seat
        np.subtract.at(self.context, replica, self._own[replica, seat] + self.steps[replica] + table.common[rows])
        self._row[replica, seat], self._end[replica, seat], self._own[replica, seat] = -1, NEVER, _EMPTY
        table.seat[rows] = -1
        self.next_end[everywhere] = self._end[everywhere].min(axis=1)

    def _widen(self) -> None:
        replicas, wide = self._free.shape
        self._free = np.concatenate([self._free, np.tile(np.arange(wide, 2 * wide), (replicas, 1))], axis=1)
        for name, empty in (("_row", -1), ("_end", NEVER), ("_own", _EMPTY)):
            seats = getattr(self, name)
            setattr(self, name, np.concatenate([seats, np.full(seats.shape, empty, dtype=seats.dtype)], axis=1))
