"""Reference policies of the replay, each as lanes of a simulated fleet.

They are the usual autoscalers with their targets as lanes, so that the best setting of each is comparable with ours.
All of them keep the fleet while values are missing: a replay that let them scale in on a gap would favor ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from outrider.model import Floats
from planner.replay.fleet import DECISION_SECONDS, FleetState
from planner.replay.workload import Workload

UTILIZATION_TARGETS = tuple(percent / 100.0 for percent in range(20, 101))
WORK_TARGETS = tuple(percent / 100.0 for percent in range(20, 111))
"""Targets in steps of one point: the best of them in hindsight is within a few thousandths of the best of all."""
KNATIVE_TARGETS = tuple(percent / 100.0 for percent in range(20, 111, 2))
CRON_HEADROOMS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.75, 2.0)
TOLERANCE = 0.1
"""The HorizontalPodAutoscaler does not scale a fleet whose utilization is this close to its target."""
SERVICE_SECONDS = 10.0
"""Service time of a request, to compare work in service with waiting requests."""
_ROUNDING = 1e-9


def round_up(amount: Floats) -> Floats:
    """Rounds up to whole replicas; rounding errors add none."""
    result: Floats = np.ceil(amount - _ROUNDING)
    return result


@dataclass(slots=True)
class Timetable:
    """Replicas by the minute: ``needs`` (minutes of the trace, lanes). Used by static peak, cron and Prophet."""

    name: str
    needs: Floats

    @property
    def lanes(self) -> int:
        """Columns of ``needs``."""
        return int(self.needs.shape[1])

    def desired_replicas(self, state: FleetState) -> Floats:
        """Returns the replicas of this minute."""
        wanted: Floats = self.needs[state.minute[:, 0]]
        return wanted


@dataclass(slots=True)
class UtilizationPolicy:
    """HorizontalPodAutoscaler on utilization: ready x utilization / target, unchanged within 10 %."""

    targets: Floats
    name: str = "hpa"

    @property
    def lanes(self) -> int:
        """One lane per target."""
        return self.targets.size

    def desired_replicas(self, state: FleetState) -> Floats:
        """A fleet without a ready replica has no utilization and stays as it is, but never empty."""
        ratio = state.served / np.maximum(state.ready * state.per_replica, _ROUNDING) / self.targets
        # a queue keeps every replica busy, regardless of arrivals
        ratio = np.where(state.queue > 0, 1.0 / self.targets, ratio)
        wanted = round_up(state.ready * ratio)
        # starting replicas are not evidence that fewer are needed
        wanted = np.where((ratio > 1.0) & (wanted < state.total), state.total, wanted)
        keep = (np.abs(ratio - 1.0) <= TOLERANCE) | (state.ready <= 0) | np.isnan(state.rate)
        return np.maximum(np.where(keep, state.total, wanted), 1.0)


@dataclass(slots=True)
class ConcurrencyPolicy:
    """KEDA-like: (requests running + waiting) / target per replica, never below ``least`` replicas.

    Targets are shares of a replica's concurrency. ``window_seconds`` averages the requests, as Knative's stable window
    does. With ``least`` 0 a fleet without requests scales to zero.
    """

    targets: Floats
    name: str = "keda"
    least: float = 1.0
    window_seconds: float = DECISION_SECONDS
    work: Floats | None = field(default=None)

    @property
    def lanes(self) -> int:
        """One lane per target."""
        return self.targets.size

    def desired_replicas(self, state: FleetState) -> Floats:
        """Keeps the fleet if the rate is missing."""
        running, waiting = state.served / state.per_replica, state.queue / (state.per_replica * SERVICE_SECONDS)
        # an empty fleet still observes the arriving requests
        waiting = np.where(state.ready > 0, waiting, state.rate / state.per_replica)
        missing = np.isnan(state.rate)
        now = running + waiting
        before = now if self.work is None else self.work
        share = min(1.0, DECISION_SECONDS / self.window_seconds)
        self.work = before + np.where(missing, 0.0, share * (now - before))
        wanted = round_up(np.where(self.work < 1e-3, 0.0, self.work) / self.targets)
        return np.maximum(np.where(missing, state.total, wanted), self.least)


def static_peak(workload: Workload) -> Timetable:
    """The fleet of the highest minute, all the time; known only in hindsight."""
    return Timetable("static", np.full((workload.load.size, 1), float(workload.peak)))


def cron(
    workload: Workload, startup_minutes: int, headrooms: Sequence[float] = CRON_HEADROOMS
) -> tuple[Timetable, Sequence[float]]:
    """An hourly timetable: the highest load of that hour over the last seven days, started in advance.

    It is rebuilt each midnight from the days before. The first day, which is never counted, uses itself. ``headrooms``
    multiply the timetable, a lane each.
    """
    hours, days = 24, -(-workload.load.size // 1440)
    padded = np.full(days * 1440, np.nan)
    padded[: workload.load.size] = np.where(workload.seen, workload.load, np.nan)
    blocks = padded.reshape(days, hours, 60)
    highest = np.where(np.isnan(blocks).all(axis=2), 0.0, np.nan_to_num(blocks, nan=0.0).max(axis=2))
    table = np.stack([highest[max(0, day - 7) : max(1, day)].max(axis=0) for day in range(days)])
    ahead = np.minimum(np.arange(workload.load.size) + startup_minutes, days * 1440 - 1)
    by_minute = np.maximum(table.reshape(-1)[ahead // 60], table.reshape(-1)[np.arange(workload.load.size) // 60])
    needs = round_up(by_minute[:, None] * np.array(headrooms) / workload.per_replica)
    return Timetable("cron", np.maximum(needs, 1.0)), headrooms
