"""Ways to decide how many replicas run, each as lanes of a replayed fleet.

The rivals are the usual loops with their targets as lanes, so that the best setting of each can be found
beside ours. Every one of them holds the fleet while values are missing: a replay that let rivals scale in
on a gap would flatter us.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.model import Floats
from planner.replay.fleet import DECISION_SECONDS, Seen
from planner.replay.workload import World

UTILISATION_TARGETS = (0.8, 0.7, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.2)
WORK_TARGETS = (1.0, 0.9, 0.8, 0.75, 0.7, 0.65, 0.6, 0.575, 0.55, 0.525, 0.5, 0.475, 0.45, 0.425, 0.4, 0.35, 0.3)
KNATIVE_TARGETS = (1.0, 0.85, 0.7, 0.5, 0.3)
CRON_HEADROOMS = (1.0, 1.1, 1.25, 1.5)
TOLERANCE = 0.1
"""The HorizontalPodAutoscaler leaves a fleet alone whose utilisation is this near its target."""
SERVICE_SECONDS = 10.0
"""How long a request runs, where work in service is compared with requests that wait."""
"""Knative's stable window: the mean concurrency of so long decides."""
_ROUNDING = 1e-9


def ceiled(amount: Floats) -> Floats:
    """Whole replicas; rounding errors buy none."""
    found: Floats = np.ceil(amount - _ROUNDING)
    return found


@dataclass(slots=True)
class Planned:
    """Replicas by the clock: ``needs`` (minutes of the trace, lanes). Static peak and cron are such."""

    name: str
    needs: Floats

    @property
    def lanes(self) -> int:
        """Columns of ``needs``."""
        return int(self.needs.shape[1])

    def wants(self, seen: Seen) -> Floats:
        """What the timetable says of this minute."""
        wanted: Floats = self.needs[seen.minute]
        return wanted


@dataclass(slots=True)
class Utilisation:
    """HorizontalPodAutoscaler on utilisation: ready x utilisation / target, within 10 % left alone."""

    targets: Floats
    name: str = "hpa"

    @property
    def lanes(self) -> int:
        """One a target."""
        return self.targets.size

    def wants(self, seen: Seen) -> Floats:
        """A fleet without a ready replica has no utilisation and is left alone, but never empty."""
        if seen.rate is None:
            return np.maximum(seen.total, 1.0)
        ratio = seen.served / np.maximum(seen.ready * seen.per_replica, _ROUNDING) / self.targets
        # a queue is work that keeps every replica busy, whatever arrives
        ratio = np.where(seen.queue > 0, 1.0 / self.targets, ratio)
        wanted = ceiled(seen.ready * ratio)
        # replicas that start are no evidence that fewer are needed
        wanted = np.where((ratio > 1.0) & (wanted < seen.total), seen.total, wanted)
        keep = (np.abs(ratio - 1.0) <= TOLERANCE) | (seen.ready <= 0)
        return np.maximum(np.where(keep, seen.total, wanted), 1.0)


@dataclass(slots=True)
class Concurrency:
    """KEDA-like: (requests running + waiting) / target per replica, never below ``least`` replicas.

    Targets are shares of what a replica can run at once. ``window_seconds`` averages the requests, as
    Knative's stable window does; with ``least`` 0 a fleet without requests goes to nothing.
    """

    targets: Floats
    name: str = "keda"
    least: float = 1.0
    window_seconds: float = DECISION_SECONDS
    work: Floats | None = field(default=None)

    @property
    def lanes(self) -> int:
        """One a target."""
        return self.targets.size

    def wants(self, seen: Seen) -> Floats:
        """The fleet is held where the rate is missing."""
        if seen.rate is None:
            return np.maximum(seen.total, self.least)
        running, waiting = seen.served / seen.per_replica, seen.queue / (seen.per_replica * SERVICE_SECONDS)
        # an empty fleet still sees what arrives at its door
        waiting = np.where(seen.ready > 0, waiting, seen.rate / seen.per_replica)
        now = running + waiting
        share = min(1.0, DECISION_SECONDS / self.window_seconds)
        self.work = now if self.work is None else self.work + share * (now - self.work)
        return np.maximum(ceiled(np.where(self.work < 1e-3, 0.0, self.work) / self.targets), self.least)


def static_peak(world: World) -> Planned:
    """The highest minute's fleet, held all the time; known in hindsight alone."""
    return Planned("static", np.full((world.load.size, 1), float(world.peak)))


def cron(
    world: World, startup_minutes: int, headrooms: Sequence[float] = CRON_HEADROOMS
) -> tuple[Planned, Sequence[float]]:
    """A timetable by the hour: the highest of that hour over the last seven days, started ahead in time.

    Made anew each midnight from the days before it; the first day, which is never counted, follows itself.
    ``headrooms`` multiply the timetable, a lane each.
    """
    hours, days = 24, -(-world.load.size // 1440)
    padded = np.full(days * 1440, np.nan)
    padded[: world.load.size] = np.where(world.seen, world.load, np.nan)
    blocks = padded.reshape(days, hours, 60)
    highest = np.where(np.isnan(blocks).all(axis=2), 0.0, np.nan_to_num(blocks, nan=0.0).max(axis=2))
    table = np.stack([highest[max(0, day - 7) : max(1, day)].max(axis=0) for day in range(days)])
    ahead = np.minimum(np.arange(world.load.size) + startup_minutes, days * 1440 - 1)
    by_minute = np.maximum(table.reshape(-1)[ahead // 60], table.reshape(-1)[np.arange(world.load.size) // 60])
    needs = ceiled(by_minute[:, None] * np.array(headrooms) / world.per_replica)
    return Planned("cron", np.maximum(needs, 1.0)), headrooms
