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
    """Reads one ISO week, up to ``now`` for the current week. Raises UsageError for a future week."""
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
    """Price of a GPU-hour in the newest plan."""
    for recommendation in plan.recommendations:
        if isinstance(recommendation, NoRecommendation):
            continue
        if (
            isinstance(recommendation, Recommendation)
            and recommendation.cost_per_hour is not None
            and recommendation.gpus
        ):
            return recommendation.cost_per_hour / recommendation.gpus, recommendation.currency
    return None, ""


def _next_minute(now: datetime) -> datetime:
    return from_unix(-(-now.timestamp() // 60) * 60)
