"""``outrider capacity replay``: our policy beside static peak, common autoscalers, Prophet and an oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.errors import UsageError
from outrider.model import Floats
from planner.replay.aws_predictive import hourly_policy
from planner.replay.backtest import Trace
from planner.replay.fleet import SETTLE_MINUTES, Run, Strategy, simulate
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
from planner.replay.rule_choice import choose_rules
from planner.replay.workload import Workload, build_workload

WAITING_GOAL = 0.005
"""Largest share of requests that may wait over two seconds."""
MOST_STARTUP = timedelta(hours=1)
REVERSAL_MINUTES = 30
STEADY_RATIO = 0.05
RIVALS = ("keda", "hpa", "aws", "cron", "knative", "prophet")
_SHADOW_AFTER_DAYS = 2
_STRETCH = timedelta(days=1)


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
    minutes: dict[str, Floats] = field(default_factory=dict)

    def rival(self, name: str, setting: float | None) -> StrategyScore | None:
        """The named policy at that setting."""
        return next((row for row in self.strategies if row.name == name and row.setting == setting), None)

    def rivals(self) -> tuple[str, ...]:
        """Names of the other policies with settings."""
        names = {row.name for row in self.strategies}
        return tuple(name for name in RIVALS if name in names)

    def best(self, name: str) -> StrategyScore | None:
        """The named policy at its cheapest setting, in hindsight, that met the goal on this trace; None without one."""
        rows = [row for row in self.strategies if row.name == name]
        rows = [row for row in rows if row.requests_waiting_over_2s_ratio <= WAITING_GOAL]
        return min(rows, key=lambda row: row.gpu_hours_ratio, default=None)

    def shown(self, name: str) -> StrategyScore:
        """The best setting, else the one with the least waiting."""
        rows = [row for row in self.strategies if row.name == name]
        return self.best(name) or min(rows, key=lambda row: (row.requests_waiting_over_2s_ratio, row.gpu_hours_ratio))

    def as_dict(self) -> dict[str, Any]:
        """The keys of one trace of ``outrider capacity replay -o json``."""
        best = {name: self.best(name) for name in self.rivals()}
        return {
            "name": self.name,
            "gpu_hours_ratio": self.ours.gpu_hours_ratio,
            "requests_waiting_over_2s_ratio": self.ours.requests_waiting_over_2s_ratio,
            "oracle_ratio": self.oracle_ratio,
            **{f"{name}_ratio": row and row.gpu_hours_ratio for name, row in best.items()},
            **{
                f"{name}_waiting_over_2s_ratio": row and row.requests_waiting_over_2s_ratio
                for name, row in best.items()
            },
            "rival_settings": {name: row and row.setting for name, row in best.items()},
            "reversals_within_30min": self.ours.reversals_within_30min,
            "turns_within_30min": self.turns_within_30min,
            "times_oracle": self.ours.gpu_hours_ratio / self.oracle_ratio,
            "strategies": [asdict(row) for row in self.strategies],
        }


@dataclass(frozen=True, slots=True)
class ScalingReplay:
    """All traces at one start-up time."""

    startup: timedelta
    traces: tuple[TraceReplay, ...]

    def as_dict(self) -> dict[str, Any]:
        """The keys of ``outrider capacity replay -o json``."""
        ours = [trace.ours for trace in self.traces]
        oracle = float(np.mean([trace.oracle_ratio for trace in self.traces]))
        mean = float(np.mean([row.gpu_hours_ratio for row in ours]))
        worst = max(row.requests_waiting_over_2s_ratio for row in ours)
        return {
            "startup_seconds": self.startup.total_seconds(),
            "traces": [trace.as_dict() for trace in self.traces],
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
    ahead: Floats
    prophet: Curves | None


Progress = Callable[[str, float], None]


def replay(
    traces: Sequence[Trace],
    *,
    startup: timedelta,
    prophet: bool = False,
    progress: Progress = lambda _stage, _share: None,
) -> ScalingReplay:
    """Replays every trace. Raises UsageError for a start-up time outside 0 to one hour."""
    return replays(traces, [startup], prophet=prophet, progress=progress)[0]


def replays(
    traces: Sequence[Trace],
    startups: Sequence[timedelta],
    *,
    prophet: bool = False,
    progress: Progress = lambda _stage, _share: None,
) -> list[ScalingReplay]:
    """Replays at several start-up times; forecasts are made once per trace.

    ``prophet`` False leaves that policy out.
    """
    for startup in startups:
        check_startup(startup)
    replayed: list[tuple[TraceReplay, ...]] = []
    for index, trace in enumerate(traces):
        report = partial(_part, progress, "prophet", index, len(traces))
        replayed.append(replay_one(trace, startups, prophet=prophet, progress=report))
        progress("replay", (index + 1) / len(traces))
    return join(replayed, startups)


def check_startup(startup: timedelta) -> None:
    """Raises UsageError for a start-up time outside 0 to one hour."""
    if not timedelta(0) < startup <= MOST_STARTUP:
        hint = "give the time from launch to serving, up to 1h, such as 5m"
        raise UsageError(f"--startup is {startup}", hint=hint)


def replay_one(
    trace: Trace,
    startups: Sequence[timedelta],
    *,
    prophet: bool,
    progress: Callable[[float], None] = lambda _share: None,
) -> tuple[TraceReplay, ...]:
    """Replays one trace at every start-up time; may run in a worker process."""
    forecasts = forecast_trace(build_workload(trace), max(startups), prophet=prophet, progress=progress)
    return tuple(replay_trace(forecasts, startup) for startup in startups)


def join(traces: Sequence[tuple[TraceReplay, ...]], startups: Sequence[timedelta]) -> list[ScalingReplay]:
    """Joins the results of ``replay_one`` of all traces by start-up time."""
    return [ScalingReplay(startup, rows) for startup, rows in zip(startups, zip(*traces, strict=True), strict=True)]


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
    curves = fit_curves(traffic, max(0, traffic.first - SETTLE_MINUTES), longest, progress) if prophet else None
    return TraceForecasts(traffic, forecast_paths(traffic, longest), curves)


def replay_trace(forecasts: TraceForecasts, startup: timedelta) -> TraceReplay:
    """Replays one trace: our policy replays itself to choose its rule, then runs beside the others."""
    traffic = forecasts.traffic
    ours, _ = choose_policy(traffic, startup, forecasts.ahead)
    minutes = -(-round(startup.total_seconds()) // 60)
    rivals: list[tuple[Strategy, Sequence[float | None]]] = [
        (ours, (None,)),
        (static_peak(traffic), (None,)),
        (UtilizationPolicy(np.array(UTILIZATION_TARGETS)), UTILIZATION_TARGETS),
        (ConcurrencyPolicy(np.array(WORK_TARGETS)), WORK_TARGETS),
        hourly_policy(traffic, minutes),
        cron(traffic, minutes),
        (ConcurrencyPolicy(np.array(KNATIVE_TARGETS), name="knative", least=0.0, window_seconds=60.0), KNATIVE_TARGETS),
    ]
    if forecasts.prophet is not None:
        rivals.append(formula_policy(traffic, forecasts.prophet, startup))
    run = simulate(traffic, [strategy for strategy, _ in rivals], startup, traffic.first, stretch=_STRETCH)
    labels = [(strategy.name, setting) for strategy, settings in rivals for setting in settings]
    rows = _rows(traffic, run, labels)
    return TraceReplay(
        name=traffic.name,
        ours=rows[0],
        oracle_ratio=least_replica_minutes(traffic, startup.total_seconds() / 60.0) / _static(traffic),
        strategies=tuple(rows),
        turns_within_30min=reversals(run.replicas[:, 0], traffic.expected[traffic.first :], steady=None),
        minutes={
            "need": traffic.load[traffic.first :] / traffic.per_replica,
            "replicas": run.replicas[:, 0],
            "waiting": run.waiting[:, 0] / np.maximum(run.arrived, 1e-9),
        },
    )


def choose_policy(
    traffic: Workload, startup: timedelta, ahead: Floats | None = None
) -> tuple[PredictivePolicy, NDArray[np.int64]]:
    """Our policy at the rules chosen by its own replay, minute by minute, and these rules (indices of ``RULES``)."""
    lanes = build_policy(traffic, startup, ahead=ahead)
    shadow = simulate(traffic, [lanes], startup, _SHADOW_AFTER_DAYS * 1440, stretch=_STRETCH)
    chosen = choose_rules(traffic, shadow)
    return lanes.lane(chosen), chosen


def _static(traffic: Workload) -> float:
    return float(traffic.peak * (traffic.load.size - traffic.first))


def _rows(traffic: Workload, run: Run, labels: Sequence[tuple[str, float | None]]) -> list[StrategyScore]:
    cost = run.replica_minutes(traffic.first) / _static(traffic)
    waiting = run.waiting_ratio(traffic.first)
    begin, load = traffic.first - run.first, traffic.expected[traffic.first :]
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

    ``replicas`` and ``load`` (the expected one, without the noise of minutes) are by minute. A pair counts only if the
    load, from half an hour before the first change to the second, stayed within ``steady`` of itself; None counts all
    pairs.
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
