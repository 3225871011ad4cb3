"""Our scaling policy in a replay: the plan's load bound and the plan's decision, every minute.

The margin of the bound above the median is not set by hand. Every margin is replayed on the traffic so far, and the
best one is used (``quantile``).
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
from planner.replay.fleet import FleetState
from planner.replay.policies import round_up
from planner.replay.workload import Workload

Mask = NDArray[np.bool_]

REVERSAL_MINUTES = round(prescale.NO_REVERSAL.total_seconds() / 60.0)
LOOK_PAST_LEAD_MINUTES = round(prescale.LOOK_PAST_LEAD.total_seconds() / 60.0)
DRAIN_SECONDS = prescale.DRAIN.total_seconds()
_HOUR_MINUTES = 60


@dataclass(slots=True)
class PredictivePolicy:
    """Lanes of our policy: ``out`` and ``hold`` are replicas by (minute, lane).

    ``out`` is the forecast's need when a replica could serve, ``hold`` the need of survivors until then. ``seen`` is
    False for minutes with missing or rejected load, ``steady`` True for those with constant load.
    """

    out: Floats
    hold: Floats
    seen: Mask
    steady: Mask
    name: str = "outrider"
    limits: prescale.ScaleLimits = field(default_factory=prescale.ScaleLimits)
    moved: ScalingHistory | None = None

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return int(self.out.shape[1])

    def lane(self, chosen: NDArray[np.int64]) -> PredictivePolicy:
        """The single fleet that follows lane ``chosen[minute]``."""
        rows = np.arange(chosen.size)
        return PredictivePolicy(
            self.out[rows, chosen][:, None], self.hold[rows, chosen][:, None], self.seen, self.steady
        )

    def desired_replicas(self, state: FleetState) -> Floats:
        """Returns the plan's decision for every lane."""
        if self.moved is None:
            self.moved = ScalingHistory.none(state.total)
        self.moved.note(state.total, state.minute)
        queue = state.queue / (state.per_replica * DRAIN_SECONDS)
        carried = state.served if state.rate is None else np.full(state.served.shape, state.rate)
        running = carried / state.per_replica
        occupied = round_up(running + queue)
        coming = self.out[state.minute]
        since = state.minute - REVERSAL_MINUTES
        blind = state.rate is None or not self.seen[state.minute]
        return prescale.decide(
            current=state.total,
            ready=state.total,
            now=np.full(occupied.shape, np.nan) if blind else occupied,
            coming=np.maximum(coming, np.where(queue > 0, occupied, 0.0)) if blind else coming,
            stay=np.maximum(
                self.hold[state.minute], np.maximum(coming, round_up(running * (1.0 + prescale.HYSTERESIS)))
            ),
            most=self.moved.most(self.limits),
            cooling=self.moved.more_at > since,
            shrunk=self.moved.fewer_at > since if self.steady[state.minute] else False,
        )


@dataclass(slots=True)
class ScalingHistory:
    """Minutes of the last growth and the last shrinkage of each lane, and its replicas over the last hour."""

    total: Floats
    more_at: Floats
    fewer_at: Floats
    hour: Floats

    @staticmethod
    def none(total: Floats) -> ScalingHistory:
        """History without any change."""
        never = np.full(total.size, -np.inf)
        return ScalingHistory(total, never, never, np.tile(total, (_HOUR_MINUTES, 1)))

    def note(self, total: Floats, minute: int) -> None:
        """Records the current replicas."""
        if (total != self.total).any():
            self.more_at = np.where(total > self.total, minute, self.more_at)
            self.fewer_at = np.where(total < self.total, minute, self.fewer_at)
            self.total = total
        self.hour[minute % _HOUR_MINUTES] = total

    def most(self, limits: prescale.ScaleLimits) -> Floats:
        """The most replicas allowed now by the limits of the plan."""
        return prescale.reachable_replicas(self.total, self.hour.min(axis=0), limits)


def build_policy(
    workload: Workload, startup: timedelta, margins: tuple[float, ...] = MARGINS, ahead: Paths | None = None
) -> PredictivePolicy:
    """Builds a policy with all margins as lanes, from forecasts without later data."""
    lead = -(-round(startup.total_seconds()) // 60) + 1
    trusted = drop_collapses(workload.slots, workload.season)
    load_paths = ahead or forecast_paths(workload, startup)
    out, hold = _bounds(workload, load_paths, margins, lead)
    steady = _steady(workload)
    recent = _recent_highest(np.maximum(out, hold), REVERSAL_MINUTES)
    hold = np.where(steady[:, None], recent * (1.0 + prescale.HYSTERESIS), hold)
    replicas = round_up(out / workload.per_replica)
    seen = np.isfinite(trusted)[origins(workload)]
    return PredictivePolicy(replicas, np.maximum(round_up(hold / workload.per_replica), replicas), seen, steady)


def forecast_paths(workload: Workload, startup: timedelta) -> Paths:
    """The plan's forecasts at every slot, as far as a start-up time needs them."""
    lead = -(-round(startup.total_seconds()) // 60) + 1
    steps = -(-(lead + 2 * workload.slot_minutes + LOOK_PAST_LEAD_MINUTES) // workload.slot_minutes)
    return build_paths(
        drop_collapses(workload.slots, workload.season), workload.season, workload.slot_minutes * 60.0, steps
    )


def origins(workload: Workload) -> np.ndarray:
    """The newest slot known at the beginning of each minute.

    A slot is known one minute after its timestamp. If its first minutes are on one line, they give the line to the next
    slot. The end of a missing slot is known when the next one has begun.
    """
    slots, wide = workload.slots.size, workload.slot_minutes
    known_at = np.arange(slots) * wide + 1
    if wide > LINE_MINUTES:
        begins = np.flatnonzero(np.isfinite(workload.slots[:-1])) * wide
        first = workload.load[begins[:, None] + np.arange(LINE_MINUTES)]
        line_ends = extrapolate_line(first, np.full(begins.size, float(wide - LINE_MINUTES + 1)))
        on_line = begins[np.isfinite(line_ends)]
        known_at[on_line // wide + 1] = on_line + LINE_MINUTES
    result: np.ndarray = np.maximum(np.searchsorted(known_at, np.arange(workload.load.size), side="right") - 1, 0)
    return result


def _bounds(workload: Workload, ahead: Paths, margins: tuple[float, ...], lead: int) -> tuple[Floats, Floats]:
    """The load when a replica could serve, and the highest until then, by (minute, margin)."""
    minutes = np.arange(workload.load.size)
    origin = origins(workload)
    after = (minutes - origin * workload.slot_minutes).astype(np.float64)
    # before the first known slot the newest complete minute is the load
    now = np.where(after < 0, np.concatenate([workload.load[:1], workload.load[:-1]]), 0.0)
    out, hold = np.empty((minutes.size, len(margins))), np.empty((minutes.size, len(margins)))
    for column, margin in enumerate(margins):
        bound = ahead.bound(margin)[origin]
        serves, until = (after + lead) / workload.slot_minutes, (after + lead + LOOK_PAST_LEAD_MINUTES)
        out[:, column] = highest_between(bound, serves, serves)
        hold[:, column] = np.maximum(
            now, highest_between(bound, after / workload.slot_minutes, until / workload.slot_minutes)
        )
    return out, hold


def _steady(workload: Workload) -> Mask:
    """True if the load of the last half hour stayed within a tenth."""
    most = _recent_highest(workload.load[:, None], REVERSAL_MINUTES)[:, 0]
    least = -_recent_highest(-workload.load[:, None], REVERSAL_MINUTES)[:, 0]
    steady: Mask = most <= least * (1.0 + prescale.STEADY)
    return np.concatenate([[False], steady[:-1]])


def _recent_highest(values: Floats, span: int) -> Floats:
    """The highest of each column over the last ``span`` rows and this one."""
    padded = np.concatenate([np.repeat(values[:1], span, axis=0), values])
    result: Floats = sliding_window_view(padded, span + 1, axis=0).max(axis=-1)
    return result
