"""``outrider capacity replay``: our policy beside static peak, common autoscalers, Prophet and an oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats
from planner.capacity.lead_bound import Paths
from planner.replay.backtest import Trace
from planner.replay.fleet import Run, Strategy, simulate
from planner.replay.policies import (
    KNATIVE_TARGETS,
    UTILIZATION_TARGETS,
    WORK_TARGETS,
    ConcurrencyPolicy,
    UtilizationPolicy,
    cron,
    static_peak,
)
from planner.replay.predictive import PredictivePolicy, build_policy, forecast_paths
from planner.replay.prophet_policy import Curves, fit_curves, formula_policy
from planner.replay.quantile import choose_margins
from planner.replay.workload import Workload, build_workload

WAITING_GOAL = 0.005
"""Largest share of requests that may wait over two seconds."""
MOST_STARTUP = timedelta(hours=1)
REVERSAL_MINUTES = 30
STEADY_RATIO = 0.05
_SETTLE_MINUTES = 720
_SHADOW_AFTER_DAYS = 2.5


@dataclass(frozen=True, slots=True)
class StrategyScore:
    """A policy at one setting on one trace. ``setting`` is None for a policy without settings."""

    name: str
    setting: float | None
    gpu_hours_ratio: float
    requests_waiting_over_2s_ratio: float
    first_request_delay_seconds: float
    reversals_within_30min: int


@dataclass(frozen=True, slots=True)
class TraceReplay:
    """One trace. ``strategies`` holds every setting of every policy including ours; ``minutes`` is for plots."""

    name: str
    ours: StrategyScore
    oracle_ratio: float
    strategies: tuple[StrategyScore, ...]
    turns_within_30min: int
    level: float
    minutes: dict[str, Floats] = field(default_factory=dict)

    def rival(self, name: str, setting: float | None) -> StrategyScore | None:
        """The named policy at that setting."""
        return next((row for row in self.strategies if row.name == name and row.setting == setting), None)


@dataclass(frozen=True, slots=True)
class ScalingReplay:
    """All traces at one start-up time.

    ``settings`` has for each other policy the cheapest setting (hindsight, one for all traces) that met the goal on
    every trace; None without one.
    """

    startup: timedelta
    traces: tuple[TraceReplay, ...]
    settings: dict[str, float | None]

    def as_dict(self) -> dict[str, Any]:
        """The keys of ``outrider capacity replay -o json``."""
        return {
            "startup_seconds": self.startup.total_seconds(),
            "traces": [self._row(trace) for trace in self.traces],
            "rival_settings": self.settings,
            **self._over_all(),
        }

    def _row(self, trace: TraceReplay) -> dict[str, Any]:
        ours = trace.ours
        return {
            "name": trace.name,
            "gpu_hours_ratio": ours.gpu_hours_ratio,
            "requests_waiting_over_2s_ratio": ours.requests_waiting_over_2s_ratio,
            "oracle_ratio": trace.oracle_ratio,
            **{f"{name}_ratio": self._cost(trace, name) for name in self.settings},
            **{f"{name}_waiting_over_2s_ratio": self._waiting(trace, name) for name in self.settings},
            "reversals_within_30min": ours.reversals_within_30min,
            "turns_within_30min": trace.turns_within_30min,
            "times_oracle": ours.gpu_hours_ratio / trace.oracle_ratio,
            "strategies": [asdict(row) for row in trace.strategies],
        }

    def _rival(self, trace: TraceReplay, name: str) -> StrategyScore | None:
        return trace.rival(name, self.settings[name]) if self.settings[name] is not None else None

    def _cost(self, trace: TraceReplay, name: str) -> float | None:
        rival = self._rival(trace, name)
        return None if rival is None else rival.gpu_hours_ratio

    def _waiting(self, trace: TraceReplay, name: str) -> float | None:
        rival = self._rival(trace, name)
        return None if rival is None else rival.requests_waiting_over_2s_ratio

    def _over_all(self) -> dict[str, Any]:
        ours = [trace.ours for trace in self.traces]
        oracle = float(np.mean([trace.oracle_ratio for trace in self.traces]))
        mean = float(np.mean([row.gpu_hours_ratio for row in ours]))
        worst = max(row.requests_waiting_over_2s_ratio for row in ours)
        return {
            "mean_gpu_hours_ratio": mean,
            "mean_oracle_ratio": oracle,
            "mean_times_oracle": mean / oracle,
            "worst_requests_waiting_over_2s_ratio": worst,
            "holds": worst <= WAITING_GOAL,
        }


@dataclass(frozen=True, slots=True)
class TraceForecasts:
    """A trace and its forecasts at all times: computed once for every start-up time.

    ``prophet`` None leaves that policy out.
    """

    traffic: Workload
    ahead: Paths
    prophet: Curves | None


Progress = Callable[[str, float], None]


def replay(
    traces: Sequence[Trace],
    *,
    startup: timedelta,
    prophet: bool = True,
    progress: Progress = lambda _stage, _share: None,
) -> ScalingReplay:
    """Replays every trace. Raises UsageError for a start-up time outside 0 to one hour."""
    return replays(traces, [startup], prophet=prophet, progress=progress)[0]


def replays(
    traces: Sequence[Trace],
    startups: Sequence[timedelta],
    *,
    prophet: bool = True,
    progress: Progress = lambda _stage, _share: None,
) -> list[ScalingReplay]:
    """Replays at several start-up times; forecasts are made once per trace.

    ``prophet`` False leaves that policy out.
    """
    for startup in startups:
        if not timedelta(0) < startup <= MOST_STARTUP:
            hint = "give the time from launch to serving, up to 1h, such as 5m"
            raise UsageError(f"--startup is {startup}", hint=hint)
    names = ("keda", "hpa", "cron", "knative", *(("prophet",) if prophet else ()))
    replayed: dict[timedelta, list[TraceReplay]] = {startup: [] for startup in startups}
    for index, trace in enumerate(traces):
        report = partial(_part, progress, "prophet", index, len(traces))
        forecasts = forecast_trace(build_workload(trace), max(startups), prophet=prophet, progress=report)
        for startup in startups:
            replayed[startup].append(replay_trace(forecasts, startup))
        progress("replay", (index + 1) / len(traces))
    return [
        ScalingReplay(startup, tuple(replayed[startup]), {name: _best(replayed[startup], name) for name in names})
        for startup in startups
    ]


def _part(progress: Progress, stage: str, index: int, count: int, share: float) -> None:
    progress(stage, (index + share) / count)


def forecast_trace(
    traffic: Workload,
    longest: timedelta,
    *,
    prophet: bool = False,
    progress: Callable[[float], None] = lambda _share: None,
) -> TraceForecasts:
    """Forecasts of a trace, for start-up times of up to ``longest``."""
    curves = fit_curves(traffic, _begin(traffic), longest, progress) if prophet else None
    return TraceForecasts(traffic, forecast_paths(traffic, longest), curves)


def _begin(traffic: Workload) -> int:
    """First simulated minute, some time before the first counted one."""
    return max(0, traffic.first - _SETTLE_MINUTES)


def replay_trace(forecasts: TraceForecasts, startup: timedelta) -> TraceReplay:
    """Replays one trace: our policy replays itself to choose its quantile, then runs beside the others."""
    traffic = forecasts.traffic
    ours, levels = tune_margin(traffic, startup, forecasts.ahead)
    minutes = -(-round(startup.total_seconds()) // 60)
    rivals: list[tuple[Strategy, Sequence[float | None]]] = [
        (ours, (None,)),
        (static_peak(traffic), (None,)),
        (UtilizationPolicy(np.array(UTILIZATION_TARGETS)), UTILIZATION_TARGETS),
        (ConcurrencyPolicy(np.array(WORK_TARGETS)), WORK_TARGETS),
        cron(traffic, minutes),
        (ConcurrencyPolicy(np.array(KNATIVE_TARGETS), name="knative", least=0.0, window_seconds=60.0), KNATIVE_TARGETS),
    ]
    if forecasts.prophet is not None:
        rivals.append(formula_policy(traffic, forecasts.prophet, startup))
    strategies = [strategy for strategy, _ in rivals]
    run = simulate(traffic, strategies, startup, _begin(traffic))
    labels = [(strategy.name, setting) for strategy, settings in rivals for setting in settings]
    rows = _rows(traffic, run, labels)
    begin = traffic.first - run.first
    load = traffic.load[traffic.first :]
    return TraceReplay(
        name=traffic.name,
        ours=rows[0],
        oracle_ratio=least_replica_minutes(traffic, startup.total_seconds() / 60.0) / _static(traffic),
        strategies=tuple(rows),
        turns_within_30min=reversals(run.replicas[begin:, 0], load, steady=None),
        level=float(levels[traffic.first :].mean()),
        minutes={
            "need": traffic.load[traffic.first :] / traffic.per_replica,
            "replicas": run.replicas[begin:, 0],
            "waiting": run.waiting[begin:, 0] / np.maximum(run.arrived[begin:], 1e-9),
        },
    )


def tune_margin(traffic: Workload, startup: timedelta, ahead: Paths | None = None) -> tuple[PredictivePolicy, Floats]:
    """Our policy at the levels chosen by its own replay, minute by minute, and these levels."""
    lanes = build_policy(traffic, startup, ahead=ahead)
    shadow = simulate(traffic, [lanes], startup, round(_SHADOW_AFTER_DAYS * 1440))
    lane, levels = choose_margins(traffic, shadow, startup)
    return lanes.lane(lane), levels


def _static(traffic: Workload) -> float:
    return float(traffic.peak * (traffic.load.size - traffic.first))


def _rows(traffic: Workload, run: Run, labels: Sequence[tuple[str, float | None]]) -> list[StrategyScore]:
    cost = run.replica_minutes(traffic.first) / _static(traffic)
    waiting = run.waiting_ratio(traffic.first)
    begin, load = traffic.first - run.first, traffic.load[traffic.first :]
    return [
        StrategyScore(
            name,
            setting,
            float(cost[lane]),
            float(waiting[lane]),
            float(run.cold_seconds[lane]),
            reversals(run.replicas[begin:, lane], load),
        )
        for lane, (name, setting) in enumerate(labels)
    ]


def _best(traces: Sequence[TraceReplay], name: str) -> float | None:
    """The setting of least mean cost among those that met the goal on every trace."""
    settings = dict.fromkeys(row.setting for row in traces[0].strategies if row.name == name)
    costs = {}
    for setting in settings:
        rows = [trace.rival(name, setting) for trace in traces]
        if all(row is not None and row.requests_waiting_over_2s_ratio <= WAITING_GOAL for row in rows):
            costs[setting] = float(np.mean([row.gpu_hours_ratio for row in rows if row is not None]))
    return min(costs, key=lambda setting: costs[setting]) if costs else None


def least_replica_minutes(workload: Workload, startup_minutes: float) -> float:
    """Replica-minutes from ``workload.first`` on, billed from launch.

    Exact by construction: the k-th replica is needed while the load needs k or more. Each stretch costs its length and
    one start-up time. A gap no longer than a start-up time is cheaper to bridge. Replicas of the first minute already
    run.
    """
    need = workload.need[workload.first :]
    total = 0.0
    for level in range(1, int(need.max()) + 1):
        edges = np.diff(np.concatenate([[0], (need >= level).astype(np.int8), [0]]))
        begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        gaps = begins[1:] - ends[:-1]
        total += float((ends - begins).sum() + np.minimum(gaps, startup_minutes).sum())
        total += startup_minutes if begins[0] > 0 else 0.0
    return total


def reversals(replicas: Floats, load: Floats, *, steady: float | None = STEADY_RATIO) -> int:
    """Counts pairs of successive changes in opposite directions at most half an hour apart.

    ``replicas`` and ``load`` are by minute. A pair counts only if the load, from half an hour before the first change
    to the second, stayed within ``steady`` of itself; None counts all pairs.
    """
    changes = np.diff(replicas)
    minutes = np.flatnonzero(changes) + 1
    count = 0
    for before, after in pairwise(minutes.tolist()):
        if after - before > REVERSAL_MINUTES or changes[before - 1] * changes[after - 1] > 0:
            continue
        recent = load[max(0, before - REVERSAL_MINUTES) : after + 1]
        if steady is None or recent.max() <= recent.min() * (1.0 + steady):
            count += 1
    return count
