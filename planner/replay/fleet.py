"""A simulated fleet of replicas under traffic, with many policies side by side: one column ("lane") a fleet.

Fluid first-in-first-out queue at 5 s steps; decisions every 15 s. A started replica serves after the start-up time and
is billed from its launch. Scale-in follows the highest desired count of the last 5 minutes and removes starting
replicas first. A request that has waited 30 s leaves. Policies see the arrivals of whole past minutes, and their own
replicas and queue.

A long trace may be cut into stretches that run side by side. Each begins some hours earlier than its minutes count:
no state of a fleet lasts longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats
from planner.replay.workload import Workload

STEP_SECONDS = 5.0
DECISION_SECONDS = 15.0
DECISIONS = 4
SCALE_DOWN_WINDOW = timedelta(minutes=5)
PATIENCE_SECONDS = 30.0
WAIT_LIMIT_SECONDS = 2.0
SETTLE_MINUTES = 240
"""A stretch begins so much earlier than it counts."""
_EMPTY = 1e-9


@dataclass(frozen=True, slots=True)
class FleetState:
    """Observed state of the fleets at a decision, for the lanes of one policy: arrays are (stretches, lanes).

    ``minute`` and ``rate`` are (stretches, 1). ``rate`` is the requests per second of the last whole minute, NaN if
    missing. ``served`` and ``queue`` are the work in service, in requests per second, and the waiting requests.
    """

    minute: NDArray[np.int64]
    rate: Floats
    ready: Floats
    total: Floats
    served: Floats
    queue: Floats
    per_replica: float


class Strategy(Protocol):
    """A scaling policy: returns the desired replicas of each of its ``lanes``, including starting ones."""

    @property
    def name(self) -> str:
        """Name in reports."""

    @property
    def lanes(self) -> int:
        """Number of settings that run side by side."""

    def desired_replicas(self, state: FleetState) -> Floats:
        """Returns the desired replicas, (stretches, lanes)."""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a simulation, by lane.

    Arrays of minutes start at ``first``; ``waiting`` is requests per minute over the limit.
    """

    first: int
    billed_minutes: Floats
    replicas: Floats
    waiting: Floats
    arrived: Floats
    cold_seconds: Floats

    def waiting_ratio(self, first: int) -> Floats:
        """Share of requests from minute ``first`` on that waited over two seconds or left."""
        total = self.arrived[first - self.first :].sum()
        result: Floats = self.waiting[first - self.first :].sum(axis=0) / max(total, _EMPTY)
        return result

    def replica_minutes(self, first: int) -> Floats:
        """Billed replica-minutes from minute ``first`` on."""
        result: Floats = self.billed_minutes[first - self.first :].sum(axis=0)
        return result


@dataclass(slots=True)
class _State:
    """Lanes of fleets, (stretches, lanes). ``starting[k]`` become ready when the ring buffer returns to ``k``."""

    ready: Floats
    starting: Floats
    pending: Floats
    queue: Floats
    desired: Floats
    tick: int = 0
    busy: bool = field(default=False)

    @property
    def total(self) -> Floats:
        """Ready and starting replicas."""
        return self.ready + self.pending


def simulate(
    traffic: Workload,
    strategies: Sequence[Strategy],
    startup: timedelta,
    first: int,
    *,
    last: int | None = None,
    stretch: timedelta | None = None,
) -> Run:
    """Runs every lane of every policy from minute ``first`` to the end of the trace (or ``last``).

    Every fleet starts with the ready replicas that its first minute needs. With ``stretch`` the trace is cut into parts
    of that length, which run side by side: nearly the same result, in a fraction of the time.
    """
    end = traffic.load.size if last is None else last
    wide = end - first if stretch is None else min(end - first, round(stretch / timedelta(minutes=1)))
    begins = np.arange(first, end, wide)
    settle = 0 if stretch is None else SETTLE_MINUTES
    state = _initial(traffic, np.maximum(begins - settle, 0), startup, sum(strategy.lanes for strategy in strategies))
    shape = (wide, *state.ready.shape)
    billed, replicas, waiting = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    cold, unused = np.zeros(shape[1:]), np.zeros(shape[1:])
    for row in range(-settle, wide):
        minutes = np.clip(begins + row, 0, end - 1)
        load = traffic.load[minutes][:, None]
        before = np.maximum(minutes - 1, 0)[:, None]
        rate = np.where(traffic.seen[before], traffic.load[before], np.nan)
        for _ in range(DECISIONS):
            _decide(state, strategies, minutes[:, None], rate, traffic.per_replica)
            _serve(state, load, traffic.per_replica, waiting[row] if row >= 0 else unused)
            if row >= 0:
                billed[row] += state.total / DECISIONS
                idle = (state.ready <= 0) & (load > 0)
                if idle.any():
                    cold[idle] = startup.total_seconds()
        if row >= 0:
            replicas[row] = state.total
    billed, replicas, waiting = (
        np.swapaxes(part, 0, 1).reshape(-1, shape[2])[: end - first] for part in (billed, replicas, waiting)
    )
    return Run(first, billed, replicas, waiting, traffic.load[first:end] * 60.0, cold.max(axis=0))


def _initial(traffic: Workload, begins: NDArray[np.int64], startup: timedelta, lanes: int) -> _State:
    ready = np.repeat(traffic.need[begins][:, None], lanes, axis=1)
    ring = max(1, round(startup.total_seconds() / DECISION_SECONDS))
    window = round(SCALE_DOWN_WINDOW.total_seconds() / DECISION_SECONDS)
    none = np.zeros_like(ready)
    return _State(ready, np.zeros((ring, *ready.shape)), none, none.copy(), np.tile(ready, (window, 1, 1)))


def _decide(
    state: _State, strategies: Sequence[Strategy], minute: NDArray[np.int64], rate: Floats, per_replica: float
) -> None:
    slot = state.tick % state.starting.shape[0]
    if state.busy:
        state.ready = state.ready + state.starting[slot]
        state.pending = state.pending - state.starting[slot]
        state.starting[slot] = 0.0
        state.busy = bool(state.pending.any())
    total = state.total
    # fmin: without a rate the replicas count as full
    served = np.fmin(state.ready * per_replica, rate)
    row = state.desired[state.tick % state.desired.shape[0]]
    begin = 0
    for strategy in strategies:
        own = np.s_[:, begin : begin + strategy.lanes]
        row[own] = strategy.desired_replicas(
            FleetState(minute, rate, state.ready[own], total[own], served[own], state.queue[own], per_replica)
        )
        begin += strategy.lanes
    state.tick += 1
    more = np.maximum(row - total, 0.0)
    if more.any():
        state.starting[slot] += more
        state.pending = state.pending + more
        state.busy = True
    fewer = np.maximum(total - state.desired.max(axis=0), 0.0)
    if fewer.any():
        _scale_in(state, fewer, slot)


def _scale_in(state: _State, fewer: Floats, slot: int) -> None:
    """Removes the newest starting replicas, then ready ones."""
    ring = state.starting.shape[0]
    starting = (fewer > 0) & (state.pending > 0)
    if starting.any():
        for back in range(ring):
            index = (slot - back) % ring
            removed = np.minimum(state.starting[index], fewer)
            state.starting[index] -= removed
            state.pending = state.pending - removed
            fewer = fewer - removed
            if not (fewer[starting] > 0).any():
                break
    state.ready = state.ready - fewer


def _serve(state: _State, load: Floats, per_replica: float, waiting: Floats) -> None:
    """Simulates fifteen seconds of arrivals. Adds the requests that wait over the limit to ``waiting``.

    The wait of a request is the queue ahead of it over the capacity; the queue length is linear within a step. A
    request that would wait longer than the patience leaves no work.
    """
    capacity = state.ready * per_replica
    at = np.nonzero((state.queue > 0) | (capacity < load - _EMPTY))
    if not at[0].size:
        return
    capacity, queue, rates = capacity[at], state.queue[at], load[at[0], 0]
    drain = np.maximum(capacity, _EMPTY)
    # without any replica the queue is limited to the arrivals within the patience
    longest = PATIENCE_SECONDS * np.where(capacity > 0, capacity, rates)
    arriving, late = rates * STEP_SECONDS, np.zeros(queue.size)
    for _ in range(round(DECISION_SECONDS / STEP_SECONDS)):
        after = np.minimum(np.maximum(queue + arriving - capacity * STEP_SECONDS, 0.0), longest)
        low, high = np.minimum(queue, after) / drain, np.maximum(queue, after) / drain
        share = np.clip((high - WAIT_LIMIT_SECONDS) / np.maximum(high - low, _EMPTY), 0.0, 1.0)
        late += arriving * np.where(low >= WAIT_LIMIT_SECONDS, 1.0, share)
        queue = after
    waiting[at] += late
    queue[queue < _EMPTY] = 0.0
    state.queue[at] = queue
