"""How many requests wait: a fluid queue, first come first served, in front of replicas that come and go.

Arrivals and service flow evenly inside a step. A request that finds ``PATIENCE`` of work before it gives up, and
counts as one that waited.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats

STEP_SECONDS = 5.0
LIMIT_SECONDS = 2.0
PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """``waited`` of ``requests`` waited longer than the limit or gave up; ``first_at``: since when."""

    requests: float
    waited: float
    first_at: float | None


def beyond(times: Floats, rates: Floats, begins: Floats, keeps: Floats) -> float:
    """Requests that arrive while more come a second than ``keeps`` says the replicas may have; as in ``waiting``."""
    known = np.isfinite(rates)
    if not known.any() or times.size < 2:
        return 0.0
    arriving, kept = _steps(times, rates, begins, keeps)
    return float(arriving[arriving > kept * (1.0 + 1e-9)].sum())


def waiting(times: Floats, rates: Floats, begins: Floats, carries: Floats, *, queued: float = 0.0) -> Waiting:
    """Requests that wait longer than two seconds.

    ``rates`` are requests per second at ``times`` (unix seconds, rising), joined by lines; missing ones are
    bridged. ``carries`` are requests per second that can be served from each instant of ``begins`` (rising) on.
    ``queued`` requests wait before the first of them comes; those that wait too long count, and those come before.
    """
    known = np.isfinite(rates)
    if not known.any() or times.size < 2:
        return Waiting(0.0, 0.0, None)
    arriving, served = _steps(times, rates, begins, carries)
    grid = _grid(times)
    at_once = served[0] / STEP_SECONDS * LIMIT_SECONDS
    backlog, waited = queued, max(0.0, queued - float(at_once))
    first = float(grid[0]) if waited > 0 else None
    for at, coming, room in zip(grid.tolist(), arriving.tolist(), served.tolist(), strict=True):
        backlog = max(0.0, backlog + coming - room)
        seconds = backlog / room * STEP_SECONDS if room > 0 else np.inf
        backlog = min(backlog, room * PATIENCE_SECONDS / STEP_SECONDS)
        if seconds > LIMIT_SECONDS and coming > 0:
            waited += coming
            first = at if first is None else first
    return Waiting(float(arriving.sum()), waited, first)


def _grid(times: Floats) -> Floats:
    return np.arange(times[0], times[-1], STEP_SECONDS)


def _steps(times: Floats, rates: Floats, begins: Floats, carries: Floats) -> tuple[Floats, Floats]:
    """Requests that come in each step of the grid, and those that can be served in it."""
    known, grid = np.isfinite(rates), _grid(times)
    place = np.clip(np.searchsorted(begins, grid, side="right") - 1, 0, None)
    return np.interp(grid, times[known], rates[known]) * STEP_SECONDS, carries[place] * STEP_SECONDS
