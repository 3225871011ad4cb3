"""What every report of a week begins with: reading the week, and the frame around its sections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from outrider.clock import from_unix
from outrider.errors import UsageError
from outrider.model import NoRecommendation, Plan, Recommendation
from outrider.ports import MetricStore, StateReader
from outrider.text.i18n import Language
from reports.document import words
from reports.document.model import Headline, ReportModel, Section
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


def framed(
    report: str,
    read: Week,
    week: str,
    now: datetime,
    language: Language,
    *,
    headlines: tuple[Headline, ...] = (),
    sections: tuple[Section, ...] = (),
    empty: bool = False,
) -> ReportModel:
    """The report around its sections; ``report`` names its texts."""
    start, end = week_range(week)
    last = (end - timedelta(days=1)).date()
    period = words.text("period_running" if read.end < end else "period", language, start=start.date(), end=last)
    return ReportModel(
        report=report,
        week=week_of(start),
        title=words.text(f"{report}_title", language),
        description=words.text(f"{report}_description", language),
        period=period,
        start=start,
        end=end,
        made_at=now,
        made=words.text("made_at", language, at=f"{now.astimezone(UTC):%Y-%m-%d %H:%M}"),
        language=language,
        empty=empty,
        notice=words.text("no_data", language) if empty else "",
        headlines=headlines,
        sections=sections,
        footer=words.text("footer", language),
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
