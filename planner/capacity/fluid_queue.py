"""Waiting requests of a fluid queue, first come first served, in front of a varying number of replicas.

Arrivals and service are even within a step. A request that finds more than ``PATIENCE_SECONDS`` of work ahead leaves,
and counts as one that waited.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats

STEP_SECONDS = 5.0
LIMIT_SECONDS = 2.0
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class WaitingRequests:
    """``waited`` of ``requests`` waited longer than the limit or left; ``first_at`` is the first such time."""

    requests: float
    waited: float
    first_at: float | None


def requests_beyond(times: Floats, rates: Floats, begins: Floats, limits: Floats) -> float:
    """Counts requests that arrive while the rate exceeds ``limits``, the SLO capacity. See ``simulate_queue``."""
    known = np.isfinite(rates)
    if not known.any() or times.size < 2:
        return 0.0
    arriving, allowed = _steps(times, rates, begins, limits)
    return float(arriving[arriving > allowed * (1.0 + 1e-9)].sum())


def simulate_queue(
    times: Floats, rates: Floats, begins: Floats, capacities: Floats, *, queued: float = 0.0
) -> WaitingRequests:
    """Counts the requests that wait longer than two seconds.

    ``rates`` are requests per second at ``times`` (unix seconds, rising), joined by lines; missing ones are
    interpolated. ``capacities`` are the requests per second served from each time of ``begins`` (rising) on. ``queued``
    requests wait at the start; those of them that wait too long count, and they are served first.
    """
    known = np.isfinite(rates)
    if not known.any() or times.size < 2:
        return WaitingRequests(0.0, 0.0, None)
    arriving, served = _steps(times, rates, begins, capacities)
    grid = _grid(times)
    at_once = served[0] / STEP_SECONDS * LIMIT_SECONDS
    backlog, waited = queued, max(0.0, queued - float(at_once))
    first = float(grid[0]) if waited > 0 else None
    arrivals, capacities_now = arriving.tolist(), served.tolist()
    busy, ends = np.flatnonzero(arriving > served).tolist(), _ends_of_overload(arriving, served).tolist()
    step = next_busy = 0
    while step < len(arrivals):
        if backlog <= 0.0:  # nothing waits until arrivals exceed the capacity
            next_busy = bisect_left(busy, step, next_busy)
            if next_busy == len(busy):
                break
            step = busy[next_busy]
        capacity = capacities_now[step]
        longest = capacity * PATIENCE_SECONDS / STEP_SECONDS
        if backlog == longest > 0.0 and ends[step] > step:  # all leave that find the queue at its longest
            waited = sum(arrivals[step : ends[step]], waited)
            step = ends[step]
            continue
        backlog = max(0.0, backlog + arrivals[step] - capacity)
        seconds = backlog / capacity * STEP_SECONDS if capacity > 0 else np.inf
        backlog = min(backlog, longest)
        if seconds > LIMIT_SECONDS and arrivals[step] > 0:
            waited += arrivals[step]
            first = float(grid[step]) if first is None else first
        step += 1
    return WaitingRequests(float(arriving.sum()), waited, first)


def _ends_of_overload(arriving: Floats, served: Floats) -> NDArray[np.int64]:
    """The end of the steps from each step on that have the same capacity and no fewer arrivals than it."""
    steps = np.arange(served.size)
    breaks = np.flatnonzero(np.concatenate([[True], np.diff(served) != 0]) | (arriving < served))
    ends = np.concatenate([breaks, [served.size]])[np.searchsorted(breaks, steps, side="right")]
    result: NDArray[np.int64] = np.where(arriving < served, steps, ends)
    return result


def _grid(times: Floats) -> Floats:
    return np.arange(times[0], times[-1], STEP_SECONDS)


def _steps(times: Floats, rates: Floats, begins: Floats, capacities: Floats) -> tuple[Floats, Floats]:
    """Arriving requests of each step of the grid, and the requests that can be served in it."""
    known, grid = np.isfinite(rates), _grid(times)
    step = np.clip(np.searchsorted(begins, grid, side="right") - 1, 0, None)
    return np.interp(grid, times[known], rates[known]) * STEP_SECONDS, capacities[step] * STEP_SECONDS
