"""The table of requests in flight (one array per column), and grouped sums."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats

FREE, WAITING, PREFILL, DECODE, DONE = range(5)

# Column values of a free row; free rows match no condition on requests.
_COLUMNS: dict[str, tuple[type, float]] = {
    "replica": (np.int64, 0),
    "state": (np.uint8, FREE),
    "order": (np.int64, 0),  # rises with arrival
    "at": (np.float64, -np.inf),  # when it was sent, unix seconds
    "due": (np.float64, np.inf),  # when the scheduler gets it
    "leaves": (np.float64, np.inf),  # when its client aborts, inf: never
    "scheduled": (np.float64, np.inf),  # start of its first step
    "begin": (np.float64, np.inf),  # start of its first step since it last waited
    "first": (np.float64, np.inf),  # first token
    "last": (np.float64, np.inf),  # last token before preemption
    "prompt": (np.float64, 0.0),
    "cached": (np.float64, 0.0),  # prompt tokens in the prefix cache
    "common": (np.float64, 0.0),  # tokens in KV blocks shared with others of the same prefix
    "prefix": (np.int64, -1),  # prefix number, -1 for none
    "output": (np.float64, 0.0),
    "generated": (np.float64, 0.0),  # tokens generated before it was last scheduled
    "done": (np.float64, 0.0),  # prompt tokens in KV blocks during prefill
    "seat": (np.int64, -1),
    "below": (np.int64, -1),  # next preempted row (linked list)
    "preempted": (np.float64, 0.0),
}
_FIRST_ROWS = 1024


class RequestTable:
    """Requests by row; a row belongs to one request at a time and is reused afterwards.

    Columns are plain arrays and may be indexed and written directly.
    """

    replica: np.ndarray
    state: np.ndarray
    order: np.ndarray
    at: Floats
    due: Floats
    leaves: Floats
    scheduled: Floats
    begin: Floats
    first: Floats
    last: Floats
    prompt: Floats
    cached: Floats
    common: Floats
    prefix: np.ndarray
    output: Floats
    generated: Floats
    done: Floats
    seat: np.ndarray
    below: np.ndarray
    preempted: Floats

    def __init__(self) -> None:
        for name, (kind, empty) in _COLUMNS.items():
            setattr(self, name, np.full(_FIRST_ROWS, empty, dtype=kind))
        self._free = np.arange(_FIRST_ROWS)[::-1].copy()
        self._unused = _FIRST_ROWS
        self._next = 0

    def __len__(self) -> int:
        """Requests in flight."""
        return int(self.at.size - self._unused)

    def append(self, count: int, **columns: np.ndarray) -> np.ndarray:
        """Adds waiting requests in order of arrival and returns their rows. Missing columns are empty."""
        while self._unused < count:
            self._grow()
        rows = self._free[self._unused - count : self._unused][::-1].copy()
        self._unused -= count
        self.state[rows] = WAITING
        self.order[rows] = self._next + np.arange(count)
        self._next += count
        for name, values in columns.items():
            getattr(self, name)[rows] = values
        return rows

    def release(self, rows: np.ndarray) -> None:
        """Frees the rows of these requests (no repeats)."""
        for name, (_, empty) in _COLUMNS.items():
            getattr(self, name)[rows] = empty
        self._free[self._unused : self._unused + rows.size] = rows
        self._unused += rows.size

    def rows(self) -> np.ndarray:
        """The rows in use."""
        return np.flatnonzero(self.state != FREE)

    def _grow(self) -> None:
        size = self.at.size
        for name, (kind, empty) in _COLUMNS.items():
            setattr(self, name, np.concatenate([getattr(self, name), np.full(size, empty, dtype=kind)]))
        self._free = np.concatenate([self._free[: self._unused], np.arange(2 * size - 1, size - 1, -1), self._free])
        self._free = self._free[: 2 * size]
        self._unused += size


def group_sum(group: np.ndarray, amounts: Floats, groups: int) -> Floats:
    """Returns the sum of ``amounts`` in each of ``groups`` groups, shape (groups,)."""
    return np.bincount(group, amounts, groups).astype(np.float64)
