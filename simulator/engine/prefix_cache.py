"""KV blocks shared by running requests with the same prefix, counted once per replica."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats
from simulator.engine.request_table import RequestTable


class Prefixes:
    """Prefixes in use by replica. All requests of one prefix have the same number of common tokens."""

    def __init__(self, replicas: int) -> None:
        self.blocks = np.zeros(replicas)  # shared KV blocks in use
        self._users = np.zeros((replicas, 0), dtype=np.int64)
        self._blocks = np.zeros(0)

    def missing(self, table: RequestTable, rows: np.ndarray, block: Floats) -> Floats:
        """Returns the shared blocks that each of these requests would add if it ran next."""
        result = np.zeros(rows.size)
        has = np.flatnonzero(table.common[rows])
        if has.size:
            some = rows[has]
            prefix, replica = table.prefix[some], table.replica[some]
            used = np.zeros(has.size, dtype=bool)
            known = prefix < self._blocks.size
            used[known] = self._users[replica[known], prefix[known]] > 0
            result[has] = np.where(used, 0.0, table.common[some] / block[replica])
        return result

    def enter(self, table: RequestTable, rows: np.ndarray, block: Floats) -> None:
        """Adds running requests; at most one per replica."""
        rows = rows[table.prefix[rows] >= 0]
        if rows.size == 0:
            return
        prefix, replica = table.prefix[rows], table.replica[rows]
        more = int(prefix.max()) + 1 - self._blocks.size
        if more > 0:
            self._blocks = np.pad(self._blocks, (0, more))
            self._users = np.pad(self._users, ((0, 0), (0, more)))
        self._blocks[prefix] = table.common[rows] / block[replica]
        first = self._users[replica, prefix] == 0
        self.blocks[replica[first]] += self._blocks[prefix[first]]
        self._users[replica, prefix] += 1

    def leave(self, table: RequestTable, rows: np.ndarray) -> None:
        """Removes requests that no longer run."""
        if self._blocks.size:
            rows = rows[table.prefix[rows] >= 0]
        if self._blocks.size == 0 or rows.size == 0:
            return
        prefix, replica = table.prefix[rows], table.replica[rows]
        before = self._users.copy()
        np.subtract.at(self._users, (replica, prefix), 1)
        where, which = np.nonzero((before > 0) & (self._users == 0))
        np.subtract.at(self.blocks, where, self._blocks[which])
