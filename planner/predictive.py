"""Our scaling loop: the larger of what waits now and a forecast peak floor at the horizon of a start-up.

Replicas are started for the load at the moment when they can serve, and given back when neither that nor
the load until then needs them. How sure the forecast must be (its quantile) is not set by hand: every
level is replayed on the traffic seen so far, and the one that would have been best there is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from outrider.model import Floats
from planner.ahead import Forecaster, Paths, believed, ridge_paths, upper_paths
from planner.prescale import HYSTERESIS, NO_REVERSAL
from planner.replay.fleet import Seen
from planner.replay.world import World
from planner.strategy import ceiled

Mask = NDArray[np.bool_]

LEVELS = (0.6, 0.8, 0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.998, 1.0, 1.25, 1.5, 2.0)
REVERSAL_MINUTES = round(NO_REVERSAL.total_seconds() / 60.0)
LOOK_PAST_LEAD_MINUTES = 5
"""What is needed so soon after a start-up is not given back now."""
STEADY = 0.1
"""A load that stayed within this share of itself for half an hour is called constant."""
DRAIN_SECONDS = 60.0
"""Replicas that are added for a queue would empty it in so long."""
SLOPE_MINUTES = 2
"""So many closed minutes of a slot tell where its straight line ends."""


@dataclass(slots=True)
class Predictive:
    """Lanes of our loop: ``out`` and ``hold`` are replicas by (minute, lane).

    Below ``out`` replicas are started, above ``hold`` they are given back, between them the fleet stays.
    ``seen`` is False for minutes whose load is missing or not believed, ``steady`` True for those whose
    load was constant: then no lane turns round within half an hour, unless requests would wait.
    """

    out: Floats
    hold: Floats
    seen: Mask
    steady: Mask
    name: str = "outrider"
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
        """Scale-in is held while values are missing."""
        if self.moved is None:
            self.moved = Moves.none(seen.total)
        self.moved.note(seen.total, seen.minute)
        queue = ceiled(seen.queue / (seen.per_replica * DRAIN_SECONDS))
        out = self.out[seen.minute]
        if seen.rate is None or not self.seen[seen.minute]:
            held: Floats = np.maximum(out + queue, seen.total)
            return held
        hold = np.maximum(self.hold[seen.minute], out)
        if self.steady[seen.minute]:
            since = seen.minute - REVERSAL_MINUTES
            now = np.maximum(seen.total, np.ceil(seen.rate / seen.per_replica))
            out = np.where(self.moved.fewer_at > since, np.minimum(out, now), out)
            hold = np.where(self.moved.more_at > since, seen.total, hold)
        wanted: Floats = np.maximum(out + queue, np.minimum(seen.total, hold))
        return wanted


@dataclass(slots=True)
class Moves:
    """When each lane last grew and last shrank, in minutes of the trace."""

    total: Floats
    more_at: Floats
    fewer_at: Floats

    @staticmethod
    def none(total: Floats) -> Moves:
        """No lane has moved yet."""
        never = np.full(total.size, -np.inf)
        return Moves(total, never, never)

    def note(self, total: Floats, minute: int) -> None:
        """What the fleets are now."""
        if (total != self.total).any():
            self.more_at = np.where(total > self.total, minute, self.more_at)
            self.fewer_at = np.where(total < self.total, minute, self.fewer_at)
            self.total = total


def predictive(
    world: World, startup: timedelta, levels: tuple[float, ...] = LEVELS, forecaster: Forecaster = ridge_paths
) -> Predictive:
    """All levels as lanes, from forecasts that know nothing after their minute."""
    lead = -(-round(startup.total_seconds()) // 60) + 1
    trusted = believed(world.slots, world.season)
    paths = upper_paths(
        trusted,
        world.season,
        world.slot_minutes,
        lead + 2 * world.slot_minutes + LOOK_PAST_LEAD_MINUTES,
        levels,
        forecaster,
    )
    out, hold = _bounds(world, paths, lead)
    steady = _steady(world)
    recent = _highest_lately(np.maximum(out, hold), REVERSAL_MINUTES)
    hold = np.where(steady[:, None], recent * (1.0 + HYSTERESIS), hold)
    replicas = ceiled(out / world.per_replica)
    seen = np.isfinite(trusted)[origins(world)]
    return Predictive(replicas, np.maximum(ceiled(hold / world.per_replica), replicas), seen, steady)


def origins(world: World) -> np.ndarray:
    """The newest slot known at the beginning of each minute.

    Two closed minutes of a slot tell its straight line and with it the value at its end; the end of a
    slot that is missing is known when the next one has begun.
    """
    slots, wide = world.slots.size, world.slot_minutes
    known_at = np.arange(slots) * wide + 1
    told = np.flatnonzero(np.isfinite(world.slots[:-1])) + 1 if wide > SLOPE_MINUTES else np.empty(0, dtype=int)
    known_at[told] = (told - 1) * wide + SLOPE_MINUTES
    found: np.ndarray = np.maximum(np.searchsorted(known_at, np.arange(world.load.size), side="right") - 1, 0)
    return found


def _bounds(world: World, paths: Paths, lead: int) -> tuple[Floats, Floats]:
    """The load when a replica could serve, and the highest until then, by (minute, level)."""
    minutes = np.arange(world.load.size)
    origin = origins(world)
    ahead = minutes - origin * world.slot_minutes
    last = paths.upper.shape[2] - 1
    levels = np.arange(len(paths.levels))[None, :]

    def at(delay: int) -> Floats:
        found: Floats = paths.upper[origin[:, None], levels, np.clip(ahead + delay, 0, last)[:, None]]
        return found

    out = at(lead)
    # the newest closed minute is the load until the first known slot
    now = np.concatenate([world.load[:1], world.load[:-1]])
    hold = np.repeat(np.where(ahead < 0, now, 0.0)[:, None], len(paths.levels), axis=1)
    for delay in range(lead + LOOK_PAST_LEAD_MINUTES + 1):
        hold = np.maximum(hold, at(delay))
    return out, hold


def _steady(world: World) -> Mask:
    """True where the load seen in the last half hour stayed within a tenth."""
    highest = _highest_lately(world.load[:, None], REVERSAL_MINUTES)[:, 0]
    lowest = -_highest_lately(-world.load[:, None], REVERSAL_MINUTES)[:, 0]
    steady: Mask = highest <= lowest * (1.0 + STEADY)
    return np.concatenate([[False], steady[:-1]])


def _highest_lately(values: Floats, span: int) -> Floats:
    """The highest of each column over the last ``span`` rows and this one."""
    padded = np.concatenate([np.repeat(values[:1], span, axis=0), values])
    found: Floats = sliding_window_view(padded, span + 1, axis=0).max(axis=-1)
    return found
