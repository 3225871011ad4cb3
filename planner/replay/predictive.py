"""Our scaling loop in a replay: the plan's bound of the load to come, and the plan's decision, at every instant.

How far the bound lies above the median (its margin) is not set by hand: every margin is replayed on the
traffic seen so far, and the one that would have been best there is used (``quantile``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from outrider.model import Floats
from planner.capacity import prescale
from planner.capacity.lead_bound import (
    LINE_MINUTES,
    MARGINS,
    Paths,
    build_paths,
    drop_collapses,
    extrapolate_line,
    highest_between,
)
from planner.replay.fleet import Seen
from planner.replay.policies import ceiled
from planner.replay.workload import World

Mask = NDArray[np.bool_]

REVERSAL_MINUTES = round(prescale.NO_REVERSAL.total_seconds() / 60.0)
LOOK_PAST_LEAD_MINUTES = round(prescale.LOOK_PAST_LEAD.total_seconds() / 60.0)
DRAIN_SECONDS = 60.0
"""Replicas that are added for a queue would empty it in so long."""
_HOUR_MINUTES = 60


@dataclass(slots=True)
class Predictive:
    """Lanes of our loop: ``out`` and ``hold`` are replicas by (minute, lane).

    ``out`` is what the forecast asks for when a replica could serve, ``hold`` what survivors must carry until
    then. ``seen`` is False for minutes whose load is missing or not believed, ``steady`` True for those whose
    load was constant.
    """

    out: Floats
    hold: Floats
    seen: Mask
    steady: Mask
    name: str = "outrider"
    limits: prescale.ScaleLimits = field(default_factory=prescale.ScaleLimits)
    moved: Moves | None = None

    @property
    def lanes(self) -> int:
        """Columns."""
        return int(self.out.shape[1])

    def lane(self, chosen: NDArray[np.int64]) -> Predictive:
        """The one fleet that follows lane ``chosen[minute]``."""
        rows = np.arange(chosen.size)
        return Predictive(self.out[rows, chosen][:, None], self.hold[rows, chosen][:, None], self.seen, self.steady)

    def wants(self, seen: Seen) -> Floats:
        """The plan's decision for every lane."""
        if self.moved is None:
            self.moved = Moves.none(seen.total)
        self.moved.note(seen.total, seen.minute)
        queue = seen.queue / (seen.per_replica * DRAIN_SECONDS)
        carried = seen.served if seen.rate is None else np.full(seen.served.shape, seen.rate)
        running = carried / seen.per_replica
        held = ceiled(running + queue)
        coming = self.out[seen.minute]
        since = seen.minute - REVERSAL_MINUTES
        blind = seen.rate is None or not self.seen[seen.minute]
        return prescale.decide(
            current=seen.total,
            ready=seen.total,
            now=np.full(held.shape, np.nan) if blind else held,
            coming=np.maximum(coming, np.where(queue > 0, held, 0.0)) if blind else coming,
            stay=np.maximum(self.hold[seen.minute], np.maximum(coming, ceiled(running * (1.0 + prescale.HYSTERESIS)))),
            most=self.moved.most(self.limits),
            cooling=self.moved.more_at > since,
            shrunk=self.moved.fewer_at > since if self.steady[seen.minute] else False,
        )


@dataclass(slots=True)
class Moves:
    """When each lane last grew and shrank, in minutes of the trace, and what it was over the last hour."""

    total: Floats
    more_at: Floats
    fewer_at: Floats
    hour: Floats

    @staticmethod
    def none(total: Floats) -> Moves:
        """No lane has moved yet."""
        never = np.full(total.size, -np.inf)
        return Moves(total, never, never, np.tile(total, (_HOUR_MINUTES, 1)))

    def note(self, total: Floats, minute: int) -> None:
        """What the fleets are now."""
        if (total != self.total).any():
            self.more_at = np.where(total > self.total, minute, self.more_at)
            self.fewer_at = np.where(total < self.total, minute, self.fewer_at)
            self.total = total
        self.hour[minute % _HOUR_MINUTES] = total

    def most(self, limits: prescale.ScaleLimits) -> Floats:
        """The most replicas that may be ordered now, by the limits of the plan."""
        return prescale.reachable_replicas(self.total, self.hour.min(axis=0), limits)


def predictive(
    world: World, startup: timedelta, margins: tuple[float, ...] = MARGINS, ahead: Paths | None = None
) -> Predictive:
    """All margins as lanes, from forecasts that know nothing after their minute."""
    lead = -(-round(startup.total_seconds()) // 60) + 1
    trusted = drop_collapses(world.slots, world.season)
    found = ahead or looked(world, startup)
    out, hold = _bounds(world, found, margins, lead)
    steady = _steady(world)
    recent = _highest_lately(np.maximum(out, hold), REVERSAL_MINUTES)
    hold = np.where(steady[:, None], recent * (1.0 + prescale.HYSTERESIS), hold)
    replicas = ceiled(out / world.per_replica)
    seen = np.isfinite(trusted)[origins(world)]
    return Predictive(replicas, np.maximum(ceiled(hold / world.per_replica), replicas), seen, steady)


def looked(world: World, startup: timedelta) -> Paths:
    """What the forecaster of the plan said at every slot, as far as a start-up needs it."""
    lead = -(-round(startup.total_seconds()) // 60) + 1
    steps = -(-(lead + 2 * world.slot_minutes + LOOK_PAST_LEAD_MINUTES) // world.slot_minutes)
    return build_paths(drop_collapses(world.slots, world.season), world.season, world.slot_minutes * 60.0, steps)


def origins(world: World) -> np.ndarray:
    """The newest slot known at the beginning of each minute.

    A slot is known a minute after its instant. The first minutes after it tell the straight line to the
    next one, where they lie on one; the end of a slot that is missing is known when the next one has begun.
    """
    slots, wide = world.slots.size, world.slot_minutes
    known_at = np.arange(slots) * wide + 1
    if wide > LINE_MINUTES:
        begins = np.flatnonzero(np.isfinite(world.slots[:-1])) * wide
        first = world.load[begins[:, None] + np.arange(LINE_MINUTES)]
        drawn = extrapolate_line(first, np.full(begins.size, float(wide - LINE_MINUTES + 1)))
        told = begins[np.isfinite(drawn)]
        known_at[told // wide + 1] = told + LINE_MINUTES
    found: np.ndarray = np.maximum(np.searchsorted(known_at, np.arange(world.load.size), side="right") - 1, 0)
    return found


def _bounds(world: World, ahead: Paths, margins: tuple[float, ...], lead: int) -> tuple[Floats, Floats]:
    """The load when a replica could serve, and the highest until then, by (minute, margin)."""
    minutes = np.arange(world.load.size)
    origin = origins(world)
    after = (minutes - origin * world.slot_minutes).astype(np.float64)
    # the newest closed minute is the load until the first known slot
    now = np.where(after < 0, np.concatenate([world.load[:1], world.load[:-1]]), 0.0)
    out, hold = np.empty((minutes.size, len(margins))), np.empty((minutes.size, len(margins)))
    for column, margin in enumerate(margins):
        bound = ahead.bound(margin)[origin]
        serves, until = (after + lead) / world.slot_minutes, (after + lead + LOOK_PAST_LEAD_MINUTES)
        out[:, column] = highest_between(bound, serves, serves)
        hold[:, column] = np.maximum(
            now, highest_between(bound, after / world.slot_minutes, until / world.slot_minutes)
        )
    return out, hold


def _steady(world: World) -> Mask:
    """True where the load seen in the last half hour stayed within a tenth."""
    most = _highest_lately(world.load[:, None], REVERSAL_MINUTES)[:, 0]
    least = -_highest_lately(-world.load[:, None], REVERSAL_MINUTES)[:, 0]
    steady: Mask = most <= least * (1.0 + prescale.STEADY)
    return np.concatenate([[False], steady[:-1]])


def _highest_lately(values: Floats, span: int) -> Floats:
    """The highest of each column over the last ``span`` rows and this one."""
    padded = np.concatenate([np.repeat(values[:1], span, axis=0), values])
    found: Floats = sliding_window_view(padded, span + 1, axis=0).max(axis=-1)
    return found
