"""What the plan would have done with a past day, and what would have happened without its forecast.

Policies are led through the same load, each from the replicas that it wants at the beginning: the plan, which
forecasts from what was known at each instant alone; the same rules without a forecast, which order replicas when
the load is there; and nobody starting anything. Replicas serve a lead time after their order. What waits is
counted by the fluid queue.
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
from planner.capacity.fluid_queue import Waiting, requests_beyond, simulate_queue
from planner.capacity.formula import whole
from planner.performance.headroom import capacity_per_second

Forecaster = Callable[[Floats, Floats, datetime], Forecast | None]
"""(times, values before the instant, the instant) -> what a plan of that instant would have known."""

_LEAST_KNOWN = 0.5
_DAY, _CLIMB = timedelta(hours=24), timedelta(hours=14)
_LEAD_IN, _LEAD_OUT = timedelta(hours=1), timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Rules:
    """What both policies obey."""

    floor: int
    ceiling: int
    lead: timedelta
    buffer: float = 0.25
    scaling_window: timedelta = timedelta(minutes=10)
    limits: prescale.ScaleLimits = field(default_factory=prescale.ScaleLimits)


@dataclass(frozen=True, slots=True)
class Order:
    """One change of the number of replicas: when it was ordered, and when it was there."""

    at: datetime
    ready_at: datetime
    replicas: int
    before: int


@dataclass(frozen=True, slots=True)
class Led:
    """What became of a day under one policy. ``broken``: requests that came while the load was above the promised."""

    orders: tuple[Order, ...]
    waited: Waiting
    replica_hours: float
    broken: float = 0.0


@dataclass(frozen=True, slots=True)
class Hindsight:
    """One service's day: when the load left its trough, when it peaked, and three ways to have met it.

    ``planned`` is the plan, ``reactive`` the same without a forecast; ``held`` is nobody starting anything: the
    replicas that the plan had at the trough, kept from there on.
    """

    service: EntityRef
    begins: datetime
    ends: datetime
    trough_at: datetime
    peak_at: datetime
    peak: float
    planned: Led
    reactive: Led
    held: Led

    @property
    def first_start(self) -> Order | None:
        """The plan's first scale-out on the way from the trough to the peak."""
        climbing = [one for one in self.planned.orders if one.replicas > one.before and one.at <= self.peak_at]
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
    """Lead all policies through the last climb to a day's peak; None where half of its load is missing.

    Policies order by ``calibration``, which a promise may bound; replicas carry what ``serves`` says (None: the same).
    The peak is the highest load of the last 24 hours, the trough the lowest of the hours before it. ``times``
    are unix seconds, rising; missing values are NaN.
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
    night = [one for one in planned if one.at.timestamp() <= trough_at][-1]
    night = replace(night, ready_at=night.at)
    return Hindsight(
        service,
        begins,
        ends,
        from_unix(trough_at),
        from_unix(peak_at),
        float(np.nanmax(day)),
        _led(planned, climb_times, climb, calibration, serves),
        _led(reactive, climb_times, climb, calibration, serves),
        _led([night], climb_times[low:], climb[low:], calibration, serves),
    )


def _orders(
    times: Floats,
    values: Floats,
    steps: np.ndarray,
    calibration: Calibration,
    rules: Rules,
    forecaster: Forecaster | None,
) -> list[Order]:
    """Every decision of one policy, the number at the beginning first."""
    orders: list[Order] = []
    lately: list[tuple[datetime, int]] = []
    current: int | None = None
    for step in steps:
        now = from_unix(float(times[step]))
        known_times, known = times[:step], values[:step]
        said = forecaster(known_times, known, now) if forecaster is not None else None
        fresh = known[-prescale.FRESH_SLOTS :]
        fresh = fresh[np.isfinite(fresh)]
        recent = float(fresh.max()) if fresh.size else None
        until = now + rules.lead + rules.scaling_window
        ahead = prescale.peak(said, until).value if said is not None else 0.0
        stay = prescale.peak(said, until + prescale.NO_REVERSAL).value if said is not None else 0.0
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
                most=prescale.most_replicas(current, lately, now, rules.limits),
                cooling=prescale.is_cooling(current, lately, now, rules.limits),
            ).replicas
            if wanted != current:
                orders.append(Order(now, now + rules.lead if wanted > current else now, wanted, current))
        current = wanted
        lately = [*lately[-6:], (now, current)]
    return orders


def _led(
    orders: list[Order], times: Floats, values: Floats, calibration: Calibration, serves: Calibration | None
) -> Led:
    """Who waited, and what it cost: replicas are paid for from their order on, and serve when they are ready."""
    end = float(times[-1])
    serving = _levels(orders, [one.ready_at.timestamp() for one in orders])
    begins, counts = np.array([at for at, _ in serving]), np.array([count for _, count in serving], dtype=np.float64)
    promised = capacity_per_second(calibration, 1, 0.0)
    each = promised if serves is None else capacity_per_second(serves, 1, 0.0)
    paid = [(one.at.timestamp(), one.replicas) for one in orders]
    ends = [at for at, _ in paid[1:]] + [end]
    hours = sum(count * max(0.0, stop - at) for (at, count), stop in zip(paid, ends, strict=True)) / 3600.0
    broken = requests_beyond(times, values, begins, counts * promised)
    return Led(tuple(orders[1:]), simulate_queue(times, values, begins, counts * each), hours, broken)


def _levels(orders: list[Order], ready: list[float]) -> list[tuple[float, int]]:
    """How many serve from when on: an order that is not there yet is overtaken by a later scale-in."""
    moments = sorted(set(ready) | {one.at.timestamp() for one in orders})
    found = []
    for moment in moments:
        there = [one.replicas for one, at in zip(orders, ready, strict=True) if at <= moment]
        ordered = [one.replicas for one in orders if one.at.timestamp() <= moment]
        found.append((moment, min(there[-1], ordered[-1])))
    return found
