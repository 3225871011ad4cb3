"""Hindsight of a past day: outcome of the plan, and outcome without its forecast.

Policies run through the same load, each from its own replicas at the start: the plan, which forecasts from the data
known at each time; the same rules without a forecast, which order replicas when the load arrives; and no starts at all.
Replicas serve a lead time after their order. Waiting requests are counted by the fluid queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np

from outrider.clock import from_unix
from outrider.model import Calibration, EntityRef, Floats, Forecast
from planner.capacity import prescale
from planner.capacity.demand import apply_formula
from planner.capacity.fluid_queue import WaitingRequests, requests_beyond, simulate_queue
from planner.capacity.formula import whole
from planner.performance.headroom import capacity_per_second

Forecaster = Callable[[Floats, Floats, datetime], Forecast | None]
"""(times, values before the timestamp, the timestamp) -> the forecast a plan would have had then."""

_LEAST_KNOWN = 0.5
_DAY, _CLIMB = timedelta(hours=24), timedelta(hours=14)
_LEAD_IN, _LEAD_OUT = timedelta(hours=1), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Rules:
    """Limits shared by both policies."""

    floor: int
    ceiling: int
    lead: timedelta
    buffer: float = 0.25
    scaling_window: timedelta = timedelta(minutes=10)
    limits: prescale.ScaleLimits = field(default_factory=prescale.ScaleLimits)


@dataclass(frozen=True, slots=True)
class Order:
    """One change of the replica count: time of the order, and time the replicas were ready."""

    at: datetime
    ready_at: datetime
    replicas: int
    before: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a day under one policy.

    ``above_slo`` are requests that arrived while the load exceeded the SLO capacity.
    """

    orders: tuple[Order, ...]
    waited: WaitingRequests
    replica_hours: float
    above_slo: float = 0.0


@dataclass(frozen=True, slots=True)
class Hindsight:
    """One service's day: times of its trough and its peak, and the outcome of three policies.

    ``planned`` is the plan, ``reactive`` the same without a forecast. ``held`` has no starts: it keeps the plan's
    replicas at the trough.
    """

    service: EntityRef
    begins: datetime
    ends: datetime
    trough_at: datetime
    peak_at: datetime
    peak: float
    planned: Outcome
    reactive: Outcome
    held: Outcome

    @property
    def first_start(self) -> Order | None:
        """The plan's first scale-out between trough and peak."""
        climbing = [
            order for order in self.planned.orders if order.replicas > order.before and order.at <= self.peak_at
        ]
        return climbing[0] if climbing else None


def hindsight(
    service: EntityRef,
    times: Floats,
    values: Floats,
    calibration: Calibration,
    rules: Rules,
    now: datetime,
    forecaster: Forecaster,
    serves: Calibration | None = None,
) -> Hindsight | None:
    """Runs all policies through the last climb to a day's peak; None if half of its load is missing.

    Policies order by ``calibration``, which an SLO may bound; replicas serve according to ``serves`` (None: the same).
    The peak is the highest load of the last 24 hours, the trough the lowest of the hours before it. ``times`` are unix
    seconds, rising; missing values are NaN.
    """
    past = times < now.timestamp()
    times, values = times[past], values[past]
    day = np.where(times >= (now - _DAY).timestamp(), values, np.nan)
    if not np.isfinite(day).any():
        return None
    peak_at = float(times[int(np.nanargmax(day))])
    before = np.where((times >= peak_at - _CLIMB.total_seconds()) & (times <= peak_at), values, np.nan)
    trough_at = float(times[int(np.nanargmin(before))])
    begins, ends = from_unix(trough_at) - _LEAD_IN, min(now, from_unix(peak_at) + _LEAD_OUT)
    inside = (times >= begins.timestamp()) & (times < ends.timestamp())
    if inside.sum() < 2 or np.isfinite(values[inside]).mean() < _LEAST_KNOWN:
        return None
    steps = np.flatnonzero(inside)
    planned = _orders(times, values, steps, calibration, rules, forecaster)
    reactive = _orders(times, values, steps, calibration, rules, None)
    climb_times, climb = times[inside], values[inside]
    low = int(np.searchsorted(climb_times, trough_at))
    night = [order for order in planned if order.at.timestamp() <= trough_at][-1]
    night = replace(night, ready_at=night.at)
    return Hindsight(
        service,
        begins,
        ends,
        from_unix(trough_at),
        from_unix(peak_at),
        float(np.nanmax(day)),
        _outcome(planned, climb_times, climb, calibration, serves),
        _outcome(reactive, climb_times, climb, calibration, serves),
        _outcome([night], climb_times[low:], climb[low:], calibration, serves),
    )


def _orders(
    times: Floats,
    values: Floats,
    steps: np.ndarray,
    calibration: Calibration,
    rules: Rules,
    forecaster: Forecaster | None,
) -> list[Order]:
    """Every decision of one policy, the initial count first."""
    orders: list[Order] = []
    recent_counts: list[tuple[datetime, int]] = []
    current: int | None = None
    for step in steps:
        now = from_unix(float(times[step]))
        known_times, known = times[:step], values[:step]
        forecast = forecaster(known_times, known, now) if forecaster is not None else None
        fresh = known[-prescale.FRESH_SLOTS :]
        fresh = fresh[np.isfinite(fresh)]
        recent = float(fresh.max()) if fresh.size else None
        until = now + rules.lead + rules.scaling_window
        ahead = prescale.peak(forecast, until).value if forecast is not None else 0.0
        stay = prescale.peak(forecast, until + prescale.NO_REVERSAL).value if forecast is not None else 0.0
        need_now = None if recent is None else apply_formula(calibration, float(fresh[-1]), rules.buffer).replicas
        coming = apply_formula(calibration, ahead, rules.buffer).replicas
        if current is None:
            wanted = min(max(rules.floor, need_now or 0, coming), rules.ceiling)
            orders.append(Order(now, now, wanted, wanted))
        else:
            room = apply_formula(calibration, max(recent or 0.0, stay), rules.buffer).units_raw * (
                1 + prescale.HYSTERESIS
            )
            wanted = prescale.target(
                current=current,
                floor=rules.floor,
                ceiling=rules.ceiling,
                need_now=need_now,
                need_forecast=coming,
                need_survivors=whole(room),
                most=prescale.most_replicas(current, recent_counts, now, rules.limits),
                cooling=prescale.is_cooling(current, recent_counts, now, rules.limits),
            ).replicas
            if wanted != current:
                orders.append(Order(now, now + rules.lead if wanted > current else now, wanted, current))
        current = wanted
        recent_counts = [*recent_counts[-6:], (now, current)]
    return orders


def _outcome(
    orders: list[Order], times: Floats, values: Floats, calibration: Calibration, serves: Calibration | None
) -> Outcome:
    """Waiting and cost: replicas are paid for from their order on, and serve when they are ready."""
    end = float(times[-1])
    serving = _levels(orders, [order.ready_at.timestamp() for order in orders])
    begins, counts = np.array([at for at, _ in serving]), np.array([count for _, count in serving], dtype=np.float64)
    under_slo = capacity_per_second(calibration, 1, 0.0)
    per_replica = under_slo if serves is None else capacity_per_second(serves, 1, 0.0)
    paid = [(order.at.timestamp(), order.replicas) for order in orders]
    ends = [at for at, _ in paid[1:]] + [end]
    hours = sum(count * max(0.0, stop - at) for (at, count), stop in zip(paid, ends, strict=True)) / 3600.0
    above_slo = requests_beyond(times, values, begins, counts * under_slo)
    return Outcome(tuple(orders[1:]), simulate_queue(times, values, begins, counts * per_replica), hours, above_slo)


def _levels(orders: list[Order], ready: list[float]) -> list[tuple[float, int]]:
    """Serving replicas over time: a later scale-in takes precedence over an order that is not ready yet."""
    moments = sorted(set(ready) | {order.at.timestamp() for order in orders})
    levels = []
    for moment in moments:
        ready_counts = [order.replicas for order, at in zip(orders, ready, strict=True) if at <= moment]
        ordered = [order.replicas for order in orders if order.at.timestamp() <= moment]
        levels.append((moment, min(ready_counts[-1], ordered[-1])))
    return levels
