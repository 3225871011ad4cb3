"""Reference policy with hourly forecasts, as predictive scaling of Amazon EC2 Auto Scaling describes it.

A forecast of the next 48 hours is made every six hours from up to 14 days of history, at least one day. At the start of
each hour, or a buffer time earlier, the fleet grows to the capacity of that hour: its mean load over the target. A
forecast never removes replicas; dynamic scaling on utilization runs beside it, and the larger of the two holds. Source:
https://docs.aws.amazon.com/autoscaling/ec2/userguide/predictive-scaling-policy-overview.html. The model behind the
forecast is not published: here it is the ensemble of our own plan, on hourly means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.model import Floats
from planner.forecast.ensemble import MEDIAN, at_origins
from planner.replay.fleet import FleetState
from planner.replay.policies import UtilizationPolicy, round_up
from planner.replay.workload import Workload

TARGETS = tuple(percent / 100.0 for percent in range(20, 101, 2))
REFRESH_HOURS = 6
LEAST_HOURS = 24
_AHEAD_HOURS = 1
"""A forecast must be this old: the buffer time is at most one hour."""


@dataclass(slots=True)
class HourlyPolicy:
    """Replicas of the hourly forecast (minutes, lanes), or those of dynamic scaling if they are more."""

    needs: Floats
    dynamic: UtilizationPolicy
    name: str = "aws"

    @property
    def lanes(self) -> int:
        """One lane per target."""
        return self.dynamic.lanes

    def desired_replicas(self, state: FleetState) -> Floats:
        """Returns the larger of both."""
        return np.maximum(self.dynamic.desired_replicas(state), self.needs[state.minute[:, 0]])


def hourly_policy(
    traffic: Workload, buffer_minutes: int, targets: Sequence[float] = TARGETS
) -> tuple[HourlyPolicy, Sequence[float]]:
    """Builds the policy with a lane for each target. ``buffer_minutes`` is the start-up time, at most an hour."""
    hours = hourly_forecast(traffic)
    minutes = np.arange(traffic.load.size)
    last = hours.size - 1
    load = np.maximum(hours[minutes // 60], hours[np.minimum((minutes + buffer_minutes) // 60, last)])
    needs = round_up(load[:, None] / traffic.per_replica / np.array(targets))
    return HourlyPolicy(needs, UtilizationPolicy(np.array(targets))), targets


def hourly_forecast(traffic: Workload) -> Floats:
    """Mean load of each hour of the trace as forecast at least an hour before it; 0 without a day of history."""
    hours = -(-traffic.load.size // 60)
    padded = np.full(hours * 60, np.nan)
    padded[: traffic.load.size] = np.where(traffic.seen, traffic.load, np.nan)
    known = np.isfinite(padded).reshape(hours, 60)
    sums = np.nan_to_num(padded).reshape(hours, 60).sum(axis=1)
    means = np.where(known.any(axis=1), sums / np.maximum(known.sum(axis=1), 1), np.nan)
    result = np.zeros(hours)
    origins = range(LEAST_HOURS, hours, REFRESH_HOURS)
    if not origins:
        return result
    steps = REFRESH_HOURS + _AHEAD_HOURS
    forecasts = at_origins(means, origins, step_seconds=3600.0, steps=steps, wanted=(MEDIAN,)).quantiles[MEDIAN]
    for row, origin in enumerate(origins):
        first = origin + _AHEAD_HOURS
        part = result[first : first + REFRESH_HOURS]
        part[:] = forecasts[row, _AHEAD_HOURS : _AHEAD_HOURS + part.size]
    return np.nan_to_num(result)
