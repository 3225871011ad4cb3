"""Planned maintenance of a healthy fleet: rollouts of new revisions and restarts of single replicas.

The plan is a pure function of seed and time, like the load, so that backfilled history and the live fleet agree. None
of it is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.fleet import Fleet
from simulator.spec.fleets import FleetSpec
from simulator.traffic.shapes import DAY_SECONDS, MONDAY, WEEK_SECONDS, salt_of, uniform

ROLLOUT_SALT, RESTART_SALT = 101, 107
FIRST_HOUR, HOURS = 9.0, 8.0  # working hours are 9 to 17 UTC


@dataclass(frozen=True, slots=True, order=True)
class MaintenanceTask:
    """One task at unix seconds ``at``. ``replica`` is the index within its service, None: all in turn."""

    at: float
    service: str
    replica: int | None = None


def planned(spec: FleetSpec, seed: int, start: float, end: float) -> tuple[MaintenanceTask, ...]:
    """Returns all tasks in [start, end) (unix), oldest first.

    Every service is rolled out once a week, and one of its replicas is restarted at another time.
    """
    result = []
    first, last = np.floor((start - MONDAY) / WEEK_SECONDS), np.floor((end - MONDAY) / WEEK_SECONDS)
    for week in np.arange(first, last + 1):
        for service in spec.services:
            salt = salt_of(seed, service.name)
            place = int(_drawn(week, salt + RESTART_SALT + 3) * service.replicas)
            result.append(MaintenanceTask(_instant(week, salt + ROLLOUT_SALT), service.name))
            result.append(MaintenanceTask(_instant(week, salt + RESTART_SALT), service.name, place))
    return tuple(sorted((one for one in result if start <= one.at < end), key=lambda one: (one.at, one.service)))


def under_maintenance(spec: FleetSpec, service: str, tasks: Sequence[MaintenanceTask], times: np.ndarray) -> np.ndarray:
    """Returns True for replicas of a service that are down for a task at ``times``, shape (replicas, times)."""
    replicas, lasts = spec.service(service).replicas, spec.startup.total_seconds
    result = np.zeros((replicas, times.size), dtype=bool)
    for task in tasks:
        if task.service == service:
            for turn, place in enumerate(range(replicas) if task.replica is None else [task.replica]):
                begin = task.at + turn * lasts
                result[place] |= (times >= begin) & (times < begin + lasts)
    return result


class MaintenanceRunner:
    """Runs the plan on a live fleet: call ``advance`` after each step."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        """Skips tasks before the fleet's current time."""
        self._fleet, self._seed, self._done_until = fleet, seed, fleet.at
        self.done: list[MaintenanceTask] = []

    def advance(self) -> None:
        """Runs the tasks that have become due since the last call."""
        now = self._fleet.at
        for task in planned(self._fleet.spec, self._seed, self._done_until, now):
            self._do(task)
            self.done.append(task)
        self._done_until = now

    def _do(self, task: MaintenanceTask) -> None:
        fleet = self._fleet
        if task.replica is None:
            revision = f"v{2 + sum(one.service == task.service and one.replica is None for one in self.done)}"
            fleet.rollout(task.service, revision, text=f"rolling update of {task.service} to {revision}")
            return
        pod = fleet.pods.of_service(task.service)[task.replica]
        if pod.ready:
            fleet.restart(pod.slot)


def _drawn(week: float, salt: int) -> float:
    return float(uniform(np.array([week]), salt)[0])


def _instant(week: float, salt: int) -> float:
    day, hour = np.floor(_drawn(week, salt) * 5), FIRST_HOUR + HOURS * _drawn(week, salt + 1)
    return float(MONDAY + week * WEEK_SECONDS + day * DAY_SECONDS + hour * 3600.0)
