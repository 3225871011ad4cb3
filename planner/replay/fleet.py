"""A fleet of replicas under traffic, many strategies beside each other: one column ("lane") a fleet.

Fluid first-in-first-out queue at 5 s steps; decisions every 15 s; a started replica serves after the
start-up time and is billed from its launch; scale-in follows the highest wish of the last 5 minutes and
takes replicas that have not started yet first; a request that has waited 30 s gives up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import numpy as np

from outrider.model import Floats
from planner.replay.workload import World

STEP_SECONDS = 5.0
DECISION_SECONDS = 15.0
DECISIONS = 4
SCALE_DOWN_WINDOW = timedelta(minutes=5)
PATIENCE_SECONDS = 30.0
WAIT_LIMIT_SECONDS = 2.0
_EMPTY = 1e-9


@dataclass(frozen=True, slots=True)
class Seen:
    """What a strategy sees at a decision, for its own lanes.

    ``rate`` is the requests per second of the fifteen seconds before, None where it is missing. ``served`` and
    ``queue`` are the work in service, in requests per second, and the requests that wait.
    """

    minute: int
    rate: float | None
    ready: Floats
    total: Floats
    served: Floats
    queue: Floats
    per_replica: float


class Strategy(Protocol):
    """Says how many replicas each of its ``lanes`` should have, started ones included."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def lanes(self) -> int:
        """How many settings run beside each other."""

    def wants(self, seen: Seen) -> Floats:
        """Replicas wanted now, (lanes,)."""


@dataclass(frozen=True, slots=True)
class Run:
    """What happened, by lane.

    Arrays of minutes start at ``first``; ``waiting`` is requests a minute over the limit.
    """

    first: int
    billed_minutes: Floats
    replicas: Floats
    waiting: Floats
    arrived: Floats
    cold_seconds: Floats

    def waiting_ratio(self, first: int) -> Floats:
        """The share of requests from minute ``first`` on that waited over two seconds or gave up."""
        total = self.arrived[first - self.first :].sum()
        found: Floats = self.waiting[first - self.first :].sum(axis=0) / max(total, _EMPTY)
        return found

    def replica_minutes(self, first: int) -> Floats:
        """Billed replica-minutes from minute ``first`` on."""
        found: Floats = self.billed_minutes[first - self.first :].sum(axis=0)
        return found


@dataclass(slots=True)
class _State:
    """Lanes of a fleet. ``starting[k]`` become ready when the ring comes round to ``k``."""

    ready: Floats
    starting: Floats
    pending: Floats
    queue: Floats
    wishes: Floats
    tick: int = 0
    busy: bool = field(default=False)

    @property
    def total(self) -> Floats:
        """Ready and starting."""
        return self.ready + self.pending


def simulate(
    traffic: World, strategies: Sequence[Strategy], startup: timedelta, first: int, *, last: int | None = None
) -> Run:
    """Run every lane of every strategy from minute ``first`` to the end of the trace (or ``last``).

    Every fleet begins with what the first minute needs, ready.
    """
    end = traffic.load.size if last is None else last
    lanes = sum(each.lanes for each in strategies)
    begun = np.full(lanes, traffic.need[first])
    ring = max(1, round(startup.total_seconds() / DECISION_SECONDS))
    window = round(SCALE_DOWN_WINDOW.total_seconds() / DECISION_SECONDS)
    state = _State(begun, np.zeros((ring, lanes)), np.zeros(lanes), np.zeros(lanes), np.tile(begun, (window, 1)))
    shape = (end - first, lanes)
    billed, replicas, waiting, cold = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(lanes)
    for place in range(end - first):
        minute = first + place
        load = float(traffic.load[minute])
        for decision in range(DECISIONS):
            rate = _lately(traffic, minute, decision)
            _decide(state, strategies, minute, rate, traffic.per_replica)
            billed[place] += state.total / DECISIONS
            if load > 0:
                idle = state.ready <= 0
                if idle.any():
                    cold = np.maximum(cold, np.where(idle, startup.total_seconds(), 0.0))
            _serve(state, load, traffic.per_replica, waiting[place])
        replicas[place] = state.total
    return Run(first, billed, replicas, waiting, traffic.load[first:end] * 60.0, cold)


def _lately(traffic: World, minute: int, decision: int) -> float | None:
    """Requests per second of the fifteen seconds before a decision; None where they are not seen."""
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
    for each in strategies:
        mine = slice(begin, begin + each.lanes)
        wanted.append(
            each.wants(Seen(minute, rate, state.ready[mine], total[mine], served[mine], state.queue[mine], per_replica))
        )
        begin += each.lanes
    wish = np.concatenate(wanted)
    state.wishes[state.tick % state.wishes.shape[0]] = wish
    state.tick += 1
    more = np.maximum(wish - total, 0.0)
    if more.any():
        state.starting[slot] += more
        state.pending = state.pending + more
        state.busy = True
    fewer = np.maximum(total - state.wishes.max(axis=0), 0.0)
    if fewer.any():
        _scale_in(state, fewer, slot)


def _scale_in(state: _State, fewer: Floats, slot: int) -> None:
    """Take the newest of those that still start, then ready ones."""
    ring = state.starting.shape[0]
    if state.busy:
        for back in range(ring):
            place = (slot - back) % ring
            taken = np.minimum(state.starting[place], fewer)
            state.starting[place] -= taken
            state.pending = state.pending - taken
            fewer = fewer - taken
            if not fewer.any():
                return
    state.ready = state.ready - fewer


def _serve(state: _State, load: float, per_replica: float, waiting: Floats) -> None:
    """Fifteen seconds of arrivals. Adds to ``waiting`` the requests that wait over the limit.

    The wait of a request is the queue in front of it over the capacity; the queue's length is a straight
    line within a step. Who would wait longer than the patience leaves no work behind.
    """
    capacity = state.ready * per_replica
    if not state.queue.any() and (capacity >= load - _EMPTY).all():
        return
    drain = np.maximum(capacity, _EMPTY)
    # without any replica the queue is what arrived within the patience
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
