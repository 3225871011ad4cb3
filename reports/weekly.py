"""The weekly SLA report: SLOs, incidents, actions, cost, and the plan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from outrider.ports import MetricStore, StateReader
from outrider.text.i18n import Language
from outrider.vocabulary import indicators
from reports.document import words
from reports.document.model import Cell, Headline, ReportModel
from reports.frame import frame_report
from reports.inputs.figures import ServiceFigures
from reports.inputs.history import HistoryFigures
from reports.inputs.week import Week
from reports.inputs.week_reader import read_week
from reports.sections import cost_cell, sections


def weekly(
    state: StateReader,
    metrics: MetricStore,
    week: str,
    now: datetime,
    language: Language = "en",
    *,
    price_per_gpu_hour: float | None = None,
    currency: str = "",
) -> ReportModel:
    """Builds the report of one ISO week, up to ``now`` for the current week.

    Without a price, that of the newest plan is used; without that, there is no cost. An empty store gives a report with
    a notice (``empty`` is True). Raises UsageError for a week that cannot be read or is in the future.
    """
    read = read_week(state, metrics, week, now, price_per_gpu_hour=price_per_gpu_hour, currency=currency)
    return frame_report(
        "weekly",
        read,
        week,
        now,
        language,
        headlines=() if read.empty else _headlines(read, language),
        sections=() if read.empty else sections(read, language),
        empty=read.empty,
    )


def _headlines(week: Week, language: Language) -> tuple[Headline, ...]:
    up, down, unknown = (
        sum(getattr(s.availability.worse, part) for s in week.services) for part in ("up", "down", "unknown")
    )
    available = indicators.Availability(up, down, unknown)
    requests = sum(s.requests for s in week.services)
    failed = sum(s.requests * (1.0 - s.success) for s in week.services if s.success is not None)
    history, fleet = week.history, week.fleet
    opened = [figures.incident for figures in history.incidents]
    note = words.text(
        "head_incidents_note",
        language,
        p0=sum(i.priority == "P0" for i in opened),
        p1=sum(i.priority == "P1" for i in opened),
        open=sum(i.resolved_at is None for i in opened),
    )
    return (
        words.headline("availability", _ratio_cell("availability", available.ratio, language), language),
        words.headline(
            "success", _ratio_cell("success", indicators.success_ratio(requests, failed), language), language
        ),
        words.headline("sla_attainment", words.attainment(_total_attainment(week.services), language), language),
        Headline(
            "", words.text("head_incidents", language), Cell(str(len(opened)), float(len(opened)), note=note), note
        ),
        words.headline("mttr", _seconds_cell("mttr", history.mean("mttr"), language), language),
        words.headline("noops", _ratio_cell("noops", _noops(history), language, digits=0), language),
        words.headline("gpu_utilisation", _ratio_cell("gpu_utilisation", fleet.utilisation, language, 0), language),
        words.headline("cost_per_1k_tokens", cost_cell(week, language), language),
    )


def _total_attainment(services: Sequence[ServiceFigures]) -> indicators.Attainment | None:
    """Attainment of all services, weighted by their requests."""
    known = [service.attainment for service in services if service.attainment is not None]
    total = sum(attainment.requests for attainment in known)
    if total <= 0:
        return None
    lower, upper = (np.sum([getattr(e, side) * e.requests for e in known]) / total for side in ("lower", "upper"))
    return indicators.Attainment(float(lower), float(upper), total)


def _noops(history: HistoryFigures) -> float | None:
    return indicators.noops_share(history.changes_automatic, history.changes)


def _ratio_cell(name: str, value: float | None, language: Language, digits: int = 2) -> Cell:
    return words.ratio(value, language, digits, kept=indicators.MEASURES[name].kept(value))


def _seconds_cell(name: str, value: float | None, language: Language) -> Cell:
    return words.seconds(value, language, kept=indicators.MEASURES[name].kept(value))
