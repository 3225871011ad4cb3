"""Our scaling policy in a replay: the plan's load bound and the plan's decision, every fifteen seconds.

The rule of the bound is not set by hand. Every rule is replayed on the traffic so far, and the best one is used
(``rule_choice``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from outrider.model import Floats
from planner.capacity import prescale
from planner.capacity.lead_bound import (
    RECENT_MINUTES,
    RULES,
    Basis,
    BoundRule,
    basis_load,
    build_paths,
    drop_collapses,
    load_at,
)
from planner.replay.fleet import FleetState
from planner.replay.policies import round_up
from planner.replay.workload import Workload

Mask = NDArray[np.bool_]

REVERSAL_MINUTES = round(prescale.NO_REVERSAL.total_seconds() / 60.0)
_STEADY_MEAN_MINUTES = 10
_HOUR_MINUTES = 60


@dataclass(slots=True)
class PredictivePolicy:
    """Lanes of our policy: ``needs`` are the replicas of the bound by (minute, lane).

    ``drain_seconds`` is by (minute, lane) too, with one row if all minutes share it. ``recent`` are the replicas that
    the mean of the last five minutes occupies. ``seen`` is False for minutes with missing or rejected load, ``steady``
    True for those with constant load.
    """

    needs: Floats
    drain_seconds: Floats
    recent: Floats
    seen: Mask
    steady: Mask
    name: str = "outrider"
    limits: prescale.ScaleLimits = field(default_factory=prescale.ScaleLimits)
    moved: ScalingHistory | None = None

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return int(self.needs.shape[1])

    def lane(self, chosen: NDArray[np.int64]) -> PredictivePolicy:
        """The single fleet that follows lane ``chosen[minute]``."""
        drain = np.broadcast_to(self.drain_seconds, self.needs.shape)
        rows = np.arange(chosen.size)
        return PredictivePolicy(
            self.needs[rows, chosen][:, None],
            drain[rows, chosen][:, None],
            self.recent,
            self.seen,
            self.steady,
            limits=self.limits,
        )

    def desired_replicas(self, state: FleetState) -> Floats:
        """Returns the plan's decision for every lane."""
        minute = state.minute[:, 0]
        if self.moved is None:
            self.moved = ScalingHistory.none(state.total)
        self.moved.note(state.total, state.minute)
        drain = self.drain_seconds[np.minimum(minute, self.drain_seconds.shape[0] - 1)]
        occupied = round_up((state.served + state.queue / drain) / state.per_replica)
        coming, steady = self.needs[minute], self.steady[minute][:, None]
        blind = np.isnan(state.rate) | ~self.seen[minute][:, None]
        since = state.minute - REVERSAL_MINUTES
        shrunk = steady & (self.moved.fewer_at >= since)
        # one noisy minute of a constant load is over before a replica serves
        occupied = np.where(shrunk, np.minimum(occupied, self.recent[minute][:, None]), occupied)
        return prescale.decide(
            current=state.total,
            ready=state.total,
            now=np.where(blind, np.nan, occupied),
            coming=np.where(blind & (state.queue > 0), np.maximum(coming, occupied), coming),
            stay=coming,
            most=self.moved.most(self.limits),
            cooling=steady & (self.moved.more_at >= since),
            shrunk=shrunk,
        )


@dataclass(slots=True)
class ScalingHistory:
    """Minutes of the last growth and the last shrinkage of each fleet, and its replicas over the last hour."""

    total: Floats
    more_at: Floats
    fewer_at: Floats
    hour: Floats
    fewest: Floats
    noted: int = -1
    count: int = 0

    @staticmethod
    def none(total: Floats) -> ScalingHistory:
        """History without any change."""
        never = np.full(total.shape, -np.inf)
        return ScalingHistory(total, never, never, np.tile(total, (_HOUR_MINUTES, 1, 1)), total)

    def note(self, total: Floats, minute: NDArray[np.int64]) -> None:
        """Records the current replicas; ``minute`` is (stretches, 1)."""
        stamp = int(minute.sum())  # stretches advance together
        if (total != self.total).any():
            self.more_at = np.where(total > self.total, minute, self.more_at)
            self.fewer_at = np.where(total < self.total, minute, self.fewer_at)
            self.total = total
        elif stamp == self.noted:
            return
        self.count += stamp != self.noted
        self.noted = stamp
        self.hour[self.count % _HOUR_MINUTES] = total
        self.fewest = self.hour.min(axis=0)

    def most(self, limits: prescale.ScaleLimits) -> Floats:
        """The most replicas allowed now by the limits of the plan."""
        return prescale.reachable_replicas(self.total, self.fewest, limits)


def build_policy(
    workload: Workload, startup: timedelta, rules: Sequence[BoundRule] = RULES, ahead: Floats | None = None
) -> PredictivePolicy:
    """Builds a policy with all rules as lanes, from forecasts without later data."""
    paths = forecast_paths(workload, startup) if ahead is None else ahead
    loads = {basis: _load(workload, paths, basis, startup) for basis in {rule.basis for rule in rules}}
    bounds = np.stack([loads[rule.basis] * (1.0 + rule.headroom) for rule in rules], axis=1)
    drain = np.array([[rule.drain.total_seconds() for rule in rules]])
    trusted = np.isfinite(drop_collapses(workload.slots, workload.season))
    seen = np.concatenate([[True], trusted])[np.minimum(_complete(workload), trusted.size)]
    needs = np.maximum(round_up(bounds / workload.per_replica), 1.0)
    recent = round_up(_recent_means(workload, RECENT_MINUTES[Basis.FORECAST]) / workload.per_replica)
    return PredictivePolicy(needs, drain, recent, seen, _steady(workload))


def forecast_paths(workload: Workload, startup: timedelta) -> Floats:
    """The plan's forecasts at every slot, as far as a start-up time needs them."""
    lead = -(-round(startup.total_seconds()) // 60) + 1
    steps = 2 + -(-lead // workload.slot_minutes)
    trusted = drop_collapses(workload.slots, workload.season)
    return build_paths(trusted, workload.season, workload.slot_minutes * 60.0, steps)


def _complete(workload: Workload) -> NDArray[np.int64]:
    """The number of complete slots at the beginning of each minute."""
    return np.arange(workload.load.size) // workload.slot_minutes


def _load(workload: Workload, paths: Floats, basis: Basis, startup: timedelta) -> Floats:
    """The load of a basis, by the minute, as known at its beginning."""
    recent = _recent_means(workload, RECENT_MINUTES[basis])
    if basis is Basis.PRESENT:
        return recent
    minutes, slot = np.arange(workload.load.size), workload.slot_minutes
    origin = np.clip(_complete(workload) - 1, 0, paths.shape[0] - 1)
    # a slot is a mean, taken at its middle; column 0 is the newest complete slot
    now = minutes / slot - origin - 0.5
    serves = now + (startup / timedelta(minutes=1) + 1.0) / slot
    then = now - RECENT_MINUTES[basis] / 2.0 / slot
    return basis_load(basis, recent, load_at(paths, origin, then), load_at(paths, origin, serves))


def _recent_means(workload: Workload, minutes: int) -> Floats:
    """Mean of the seen ones among the last minutes before each one; without any the newest known mean, first 0."""
    seen = workload.seen.astype(np.float64)
    sums = np.concatenate([[0.0], np.cumsum(np.where(workload.seen, workload.load, 0.0))])
    counts = np.concatenate([[0.0], np.cumsum(seen)])
    end = np.arange(workload.load.size)
    begin = np.maximum(end - minutes, 0)
    count = counts[end] - counts[begin]
    newest = np.maximum.accumulate(np.where(count > 0, end, 0))
    means = (sums[end] - sums[begin]) / np.maximum(count, 1.0)
    result: Floats = means[newest]
    return result


def _steady(workload: Workload) -> Mask:
    """True if ten-minute means of the last half hour stayed within a tenth."""
    means = _recent_means(workload, _STEADY_MEAN_MINUTES)
    windows = sliding_window_view(np.concatenate([np.repeat(means[:1], REVERSAL_MINUTES), means]), REVERSAL_MINUTES + 1)
    steady: Mask = windows.max(axis=1) <= windows.min(axis=1) * (1.0 + prescale.STEADY)
    return steady
