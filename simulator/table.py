"""The table of requests in flight (one array a column) and the grouped scans the engine needs."""

from __future__ import annotations

import numpy as np

from outrider.model import Floats

WAITING, RUNNING = 0, 1

_COLUMNS: dict[str, type] = {
    "replica": np.int64,
    "state": np.uint8,
    "counted": np.bool_,  # its first token has been counted
    "at": np.float64,  # arrival, unix seconds
    "leaves": np.float64,  # when its client goes away, inf when it stays
    "begin": np.float64,  # start of the current prefill
    "ready": np.float64,  # end of the current prefill: it decodes from here
    "first": np.float64,  # first token
    "queued": np.float64,  # seconds before its first scheduling
    "prompt": np.float64,
    "computed": np.float64,  # tokens to prefill
    "steps": np.float64,  # steps the prefill takes
    "output": np.float64,
    "generated": np.float64,
    "preempted": np.float64,
}


class RequestTable:
    """Rows in order of arrival. Columns are plain arrays and may be indexed and written directly."""

    replica: np.ndarray
    state: np.ndarray
    counted: np.ndarray
    at: Floats
    leaves: Floats
    begin: Floats
    ready: Floats
    first: Floats
    queued: Floats
    prompt: Floats
    computed: Floats
    steps: Floats
    output: Floats
    generated: Floats
    preempted: Floats

    def __init__(self) -> None:
        for name, kind in _COLUMNS.items():
            setattr(self, name, np.empty(0, dtype=kind))

    def __len__(self) -> int:
        """Requests in flight."""
        return int(self.at.size)

    def append(
        self,
        replica: np.ndarray,
        at: Floats,
        prompt: Floats,
        computed: Floats,
        output: Floats,
        leaves: Floats | None = None,
    ) -> None:
        """Add waiting requests behind the others."""
        count = at.size
        fresh: dict[str, np.ndarray] = {name: np.zeros(count, dtype=kind) for name, kind in _COLUMNS.items()}
        fresh.update(replica=replica.astype(np.int64), at=at, prompt=prompt, computed=computed, output=output)
        for name in ("begin", "ready", "first", "leaves"):
            fresh[name] = np.full(count, np.inf)
        if leaves is not None:
            fresh["leaves"] = leaves
        for name in _COLUMNS:
            setattr(self, name, np.concatenate([getattr(self, name), fresh[name]]))

    def keep(self, mask: np.ndarray) -> None:
        """Forget every row where ``mask`` is False."""
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[mask])


def group_sum(group: np.ndarray, amounts: Floats, groups: int) -> Floats:
    """The sum of ``amounts`` in each of ``groups`` groups, shape (groups,)."""
    return np.bincount(group, amounts, groups).astype(np.float64)


def positions_in_group(group: np.ndarray, amounts: Floats) -> tuple[np.ndarray, Floats]:
    """For rows grouped by ``group`` (equal values adjacent): rank within the group and running sum, itself included."""
    if group.size == 0:
        return np.empty(0, dtype=np.int64), np.empty(0)
    first = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    start = np.repeat(first, np.diff(np.concatenate([first, [group.size]])))
    sums = np.cumsum(amounts)
    before = np.where(start > 0, sums[np.maximum(start - 1, 0)], 0.0)
    return np.arange(group.size) - start, sums - before


def running_maximum(group: np.ndarray, values: Floats) -> Floats:
    """The running maximum within each group of adjacent rows; groups rise along the rows."""
    if group.size == 0:
        return np.empty(0)
    # Lifting each group above the last one lets one scan serve them all.
    lift = group * (float(np.ptp(values)) + 1.0)
    return np.asarray(np.maximum.accumulate(values + lift) - lift, dtype=np.float64)
