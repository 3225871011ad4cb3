"""A simulated fleet of replicas under traffic, with many policies side by side: one column ("lane") a fleet.

Fluid first-in-first-out queue at 5 s steps; decisions every 15 s. A started replica serves after the start-up time and
is billed from its launch. Scale-in follows the highest desired count of the last 5 minutes and removes starting
replicas first. A request that has waited 30 s leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import numpy as np

from outrider.model import Floats
from planner.replay.workload import Workload

STEP_SECONDS = 5.0
DECISION_SECONDS = 15.0
DECISIONS = 4
SCALE_DOWN_WINDOW = timedelta(minutes=5)
PATIENCE_SECONDS = 30.0
WAIT_LIMIT_SECONDS = 2.0
_EMPTY = 1e-9


@dataclass(frozen=True, slots=True)
class FleetState:
    """Observed state of the fleet at a decision, for the lanes of one policy.

    ``rate`` is the requests per second of the preceding fifteen seconds, None if missing. ``served`` and ``queue`` are
    the work in service, in requests per second, and the waiting requests.
    """

    minute: int
    rate: float | None
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
        """Returns the desired replicas, (lanes,)."""


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
    """Lanes of a fleet. ``starting[k]`` become ready when the ring buffer returns to ``k``."""

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
    traffic: Workload, strategies: Sequence[Strategy], startup: timedelta, first: int, *, last: int | None = None
) -> Run:
    """Runs every lane of every policy from minute ``first`` to the end of the trace (or ``last``).

    Every fleet starts with the ready replicas that the first minute needs.
    """
    end = traffic.load.size if last is None else last
    lanes = sum(strategy.lanes for strategy in strategies)
    initial = np.full(lanes, traffic.need[first])
    ring = max(1, round(startup.total_seconds() / DECISION_SECONDS))
    window = round(SCALE_DOWN_WINDOW.total_seconds() / DECISION_SECONDS)
    state = _State(initial, np.zeros((ring, lanes)), np.zeros(lanes), np.zeros(lanes), np.tile(initial, (window, 1)))
    shape = (end - first, lanes)
    billed, replicas, waiting, cold = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(lanes)
    for row in range(end - first):
        minute = first + row
        load = float(traffic.load[minute])
        for decision in range(DECISIONS):
            rate = _recent_rate(traffic, minute, decision)
            _decide(state, strategies, minute, rate, traffic.per_replica)
            billed[row] += state.total / DECISIONS
            if load > 0:
                idle = state.ready <= 0
                if idle.any():
                    cold = np.maximum(cold, np.where(idle, startup.total_seconds(), 0.0))
            _serve(state, load, traffic.per_replica, waiting[row])
        replicas[row] = state.total
    return Run(first, billed, replicas, waiting, traffic.load[first:end] * 60.0, cold)


def _recent_rate(traffic: Workload, minute: int, decision: int) -> float | None:
    """Requests per second of the fifteen seconds before a decision; None if not observed."""
    then = minute if decision else max(0, minute - 1)
    return float(traffic.load[then]) if traffic.seen[then] else None


def _decide(state: _State, strategies: Sequence[Strategy], minute: int, rate: float | None, per_replica: float) -> None:
    slot = state.tick % state.starting.shape[0]
    if state.busy:
        state.ready = state.ready + state.starting[slot]
        state.pending = state.pending - state.starting[slot]
        state.starting[slot] = 0.0
        state.busy = bool(state.pending.any())
    total = state.total
    served = state.ready * per_replica if rate is None else np.minimum(state.ready * per_replica, rate)
    wanted, begin = [], 0
    for strategy in strategies:
        own = slice(begin, begin + strategy.lanes)
        wanted.append(
            strategy.desired_replicas(
                FleetState(minute, rate, state.ready[own], total[own], served[own], state.queue[own], per_replica)
            )
        )
        begin += strategy.lanes
    desired = np.concatenate(wanted)
    state.desired[state.tick % state.desired.shape[0]] = desired
    state.tick += 1
    more = np.maximum(desired - total, 0.0)
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
    if state.busy:
        for back in range(ring):
            index = (slot - back) % ring
            removed = np.minimum(state.starting[index], fewer)
            state.starting[index] -= removed
            state.pending = state.pending - removed
            fewer = fewer - removed
            if not fewer.any():
                return
    state.ready = state.ready - fewer


def _serve(state: _State, load: float, per_replica: float, waiting: Floats) -> None:
    """Simulates fifteen seconds of arrivals. Adds the requests that wait over the limit to ``waiting``.

    The wait of a request is the queue ahead of it over the capacity; the queue length is linear within a step. A
    request that would wait longer than the patience leaves no work.
    """
    capacity = state.ready * per_replica
    if not state.queue.any() and (capacity >= load - _EMPTY).all():
        return
    drain = np.maximum(capacity, _EMPTY)
    # without any replica the queue is limited to the arrivals within the patience
    longest = PATIENCE_SECONDS * np.where(capacity > 0, capacity, load)
    arrivals = load * STEP_SECONDS
    for _ in range(round(DECISION_SECONDS / STEP_SECONDS)):
        queue = np.minimum(np.maximum(state.queue + arrivals - capacity * STEP_SECONDS, 0.0), longest)
        waits = (state.queue / drain, queue / drain)
        low, high = np.minimum(*waits), np.maximum(*waits)
        share = np.clip((high - WAIT_LIMIT_SECONDS) / np.maximum(high - low, _EMPTY), 0.0, 1.0)
        waiting += arrivals * np.where(low >= WAIT_LIMIT_SECONDS, 1.0, share)
        state.queue = queue
    state.queue[state.queue < _EMPTY] = 0.0
