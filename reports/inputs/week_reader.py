"""Reads everything a report needs of one ISO week."""

from __future__ import annotations

from datetime import datetime

from outrider.clock import from_unix
from outrider.errors import UsageError
from outrider.model import NoRecommendation, Plan, Recommendation
from outrider.ports import MetricStore, StateReader
from reports.inputs.figures import read_services
from reports.inputs.fleet import read_fleet
from reports.inputs.history import read_history
from reports.inputs.week import Week, week_of, week_range


def read_week(
    state: StateReader,
    metrics: MetricStore,
    week: str,
    now: datetime,
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "",
) -> Week:
    """Everything of one ISO week, up to ``now`` while it runs. Raises UsageError for a week to come."""
    start, end = week_range(week)
    if start > now:
        raise UsageError(f"the week {week} has not begun", hint=f"the current week is {week_of(now)}")
    plan = state.plan()
    price, money = _price(plan) if price_per_gpu_hour is None else (price_per_gpu_hour, currency)
    until = min(end, _next_minute(now))
    return Week(
        start=start,
        end=until,
        services=read_services(metrics, start, until),
        fleet=read_fleet(metrics, state.topology(), start, until),
        history=read_history(state, metrics, start, until),
        plan=plan,
        price_per_gpu_hour=price,
        currency=money,
    )


def _price(plan: Plan) -> tuple[float | None, str]:
    """Price of a GPU-hour as the newest plan knows it."""
    for each in plan.recommendations:
        if isinstance(each, NoRecommendation):
            continue
        if isinstance(each, Recommendation) and each.cost_per_hour is not None and each.gpus:
            return each.cost_per_hour / each.gpus, each.currency
    return None, ""


def _next_minute(now: datetime) -> datetime:
    return from_unix(-(-now.timestamp() // 60) * 60)
