"""Chooses the rule that the policy plans with: the best one on the traffic so far."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats
from planner.replay.fleet import Run
from planner.replay.workload import Workload

WAITING_TARGET = 0.003
"""Share of requests that may wait in the shadow fleets: below the goal, since the best of many is partly luck."""
PRICE = 60.0
"""Ratio of GPU-hours justified by a share of waiting requests above the target: .01 justifies .6."""
DAY_PRICE, DAY_TARGET = 30.0, 2.0 * WAITING_TARGET
"""The same for the last day alone, which reacts sooner."""
_WEEK, _DAY = timedelta(days=7), timedelta(days=1)
_BLOCK_MINUTES = 60


@dataclass(frozen=True, slots=True)
class _Sums:
    """Running sums by block: (blocks + 1, lanes), requests (blocks + 1, 1)."""

    cost: Floats
    waited: Floats
    squares: Floats
    requests: Floats

    def since(self, blocks: int) -> _Sums:
        """Sums over up to ``blocks`` before each block."""
        rows = np.arange(self.cost.shape[0])
        begin = np.maximum(rows - blocks, 0)
        return _Sums(*(part - part[begin] for part in (self.cost, self.waited, self.squares, self.requests)))


def choose_rules(traffic: Workload, shadow: Run) -> NDArray[np.int64]:
    """Chooses the lane of each minute of the trace, once an hour.

    ``shadow`` ran one lane for each of ``RULES``; the choice of a minute uses only earlier minutes. The best lane has
    the least GPU-hours of the last week, relative to the cheapest lane, plus the price of the requests that waited. A
    standard error, from hour to hour, is added to the share that waited: few long waits predict less than many short
    ones. Without a day of shadow fleets the first rule applies.
    """
    sums = _sums(shadow)
    week, day = sums.since(round(_WEEK.total_seconds() / 60.0) // _BLOCK_MINUTES), sums.since(24)
    requests = np.maximum(week.requests, 1e-9)
    waited = (week.waited + np.sqrt(week.squares)) / requests
    cost = week.cost / np.maximum(week.cost.min(axis=1, keepdims=True), 1e-9)
    cost = cost + PRICE * np.maximum(0.0, waited - WAITING_TARGET)
    recent = day.waited / np.maximum(day.requests, 1e-9)
    cost = cost + DAY_PRICE * np.maximum(0.0, recent - DAY_TARGET)
    blocks = cost.argmin(axis=1)
    blocks[:24] = 0
    lanes = np.repeat(blocks, _BLOCK_MINUTES)[: traffic.load.size - shadow.first]
    return np.concatenate([np.zeros(shadow.first, dtype=np.int64), lanes])


def _sums(shadow: Run) -> _Sums:
    count = shadow.billed_minutes.shape[0] // _BLOCK_MINUTES

    def by_block(values: Floats) -> Floats:
        result: Floats = values[: count * _BLOCK_MINUTES].reshape(count, _BLOCK_MINUTES, -1).sum(axis=1)
        return result

    def running(blocks: Floats) -> Floats:
        return np.concatenate([np.zeros((1, blocks.shape[1])), np.cumsum(blocks, axis=0)])

    waited = by_block(shadow.waiting)
    parts = (by_block(shadow.billed_minutes), waited, waited**2, by_block(shadow.arrived[:, None]))
    return _Sums(*(running(part) for part in parts))
