"""Sections of the weekly report: one question each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.documents.summaries import entity_name, fault_name, rule_name, word
from outrider.model import Action, Forecast, Recommendation
from outrider.records import degrade_levels
from outrider.records.feedback import RulePrecision
from outrider.text.i18n import Language
from outrider.vocabulary import indicators
from outrider.vocabulary.indicators import MEASURES
from reports.document import words
from reports.document.model import BarChart, Cell, Column, LineChart, Section, Table
from reports.inputs.figures import QUANTILES, ServiceFigures
from reports.inputs.history import IncidentFigures
from reports.inputs.week import Week
from reports.plots import availability_chart, traffic_chart

_MOST_ROWS = 30
_CUT = ("incidents", "actions", "shadow")
_MOST_RULES = 8
_MOST_CHARTS = 6
_SIGNALS = (("svc_ttft_seconds", "ttft"), ("svc_tpot_seconds", "tpot"), ("svc_latency_seconds", "e2e"))


def sections(week: Week, language: Language) -> tuple[Section, ...]:
    """Returns all sections, in the order of an on-call engineer's questions."""
    return (
        _slo(week, language),
        _incidents(week, language),
        _actions(week, language),
        _capacity(week, language),
        _cost(week, language),
        _alerts(week, language),
    )


def cost_cell(week: Week, language: Language) -> Cell:
    """Cost per 1k tokens of the whole fleet, or a note that no price is configured."""
    if week.price_per_gpu_hour is None:
        return Cell(words.text("none", language), note=words.text("no_price", language))
    tokens = sum(service.tokens for service in week.services)
    cost = indicators.cost_per_1k_tokens(week.price_per_gpu_hour, week.fleet.held_hours, tokens)
    return words.unknown(language) if cost is None else Cell(f"{cost:.4g} {week.currency}".strip(), cost)


def _slo(week: Week, language: Language) -> Section:
    busiest = sorted(week.services, key=lambda service: -service.requests)[:_MOST_CHARTS]
    return section(
        "promise",
        language,
        tables=(
            table(
                "promise",
                language,
                "service requests# availability# by_requests# by_probe# unknown# success# sla#",
                [_slo_row(service, language) for service in week.services],
            ),
            table("latency", language, "service signal p50# p95# p99#", _latency_rows(week.services, language)),
            table(
                "budget", language, "service burn# left#", [_budget_row(service, language) for service in week.services]
            ),
        ),
        charts=tuple(availability_chart(service, week, language) for service in busiest),
    )


def _slo_row(service: ServiceFigures, language: Language) -> tuple[Cell, ...]:
    worse = service.availability.worse
    up, slots = worse.ratio, worse.up + worse.down + worse.unknown
    return (
        _service(service),
        words.number(service.requests, language),
        words.ratio(up, language, kept=MEASURES["availability"].kept(up)),
        words.ratio(service.availability.requests.ratio, language),
        words.ratio(service.availability.probe.ratio, language),
        words.ratio(worse.unknown / slots if slots else None, language, digits=1),
        words.ratio(service.success, language, kept=MEASURES["success"].kept(service.success)),
        words.attainment(service.attainment, language),
    )


def _latency_rows(services: Sequence[ServiceFigures], language: Language) -> list[tuple[Cell, ...]]:
    return [
        (
            _service(service),
            Cell(words.text(f"signal_{label}", language), label),
            *(words.latency(service.latencies[name][quantile], language) for quantile in QUANTILES),
        )
        for service in services
        for name, label in _SIGNALS
    ]


def _budget_row(service: ServiceFigures, language: Language) -> tuple[Cell, ...]:
    target = MEASURES["availability"].target or 0.999
    spent = indicators.burn_rate(service.availability.worse.ratio, target)
    left = indicators.error_budget_left(service.availability.worse.ratio, target)
    kept = None if spent is None else spent <= 1.0
    return (_service(service), words.ratio(spent, language, digits=0, kept=kept), words.ratio(left, language, digits=0))


def _incidents(week: Week, language: Language) -> Section:
    rows = [_incident_row(figures, language) for figures in week.history.incidents]
    columns = "opened priority cause where mttd# mtta# mttr# alerts# pages#"
    return section("incidents", language, tables=(table("incidents", language, columns, rows),))


def _incident_row(figures: IncidentFigures, language: Language) -> tuple[Cell, ...]:
    incident, cause = figures.incident, figures.incident.suspected_cause
    known = cause is not None
    recovered = words.seconds(figures.recover_seconds, language)
    return (
        words.instant(incident.opened_at, language),
        Cell(incident.priority.value, incident.priority.value),
        Cell(fault_name(cause.fault, language), cause.fault) if cause else Cell(words.text("unknown_cause", language)),
        Cell(entity_name(cause.entity, language), cause.entity.key) if known and cause else words.unknown(language),
        words.seconds(figures.detect_seconds, language),
        words.seconds(figures.acknowledge_seconds, language),
        recovered if incident.resolved_at else Cell(words.text("open", language)),
        words.number(len(incident.alerts), language),
        words.number(incident.pages, language),
    )


def _actions(week: Week, language: Language) -> Section:
    rows = [_action_row(action, language) for action in week.history.actions]
    return section(
        "actions",
        language,
        tables=(
            table("actions", language, "at action target decision reason status", rows),
            table("levels", language, "service level since until duration#", _level_rows(week, language)),
        ),
    )


def _level_rows(week: Week, language: Language) -> list[tuple[Cell, ...]]:
    """The time that each service spent at each degrade level."""
    return [
        (
            Cell(words.name(period.service), period.service.key),
            Cell(f"{period.level} {word('degrade_level', period.name, language)}", str(period.level)),
            words.instant(period.since, language),
            words.instant(period.until, language) if period.until else Cell(words.text("open", language)),
            words.seconds(period.duration.total_seconds() if period.duration else None, language),
        )
        for period in degrade_levels.periods(week.history.actions)
    ]


def _action_row(action: Action, language: Language) -> tuple[Cell, ...]:
    return (
        words.instant(action.decided_at, language),
        Cell(word("action_kind", action.kind, language), action.kind.value),
        Cell(entity_name(action.target, language), action.target.key),
        Cell(word("verdict", action.decision, language), action.decision.value),
        Cell(word("decision_reason", action.reason, language), action.reason.value),
        Cell(word("action_status", action.status, language), action.status.value),
    )


def _capacity(week: Week, language: Language) -> Section:
    forecasts = {forecast.entity: forecast for forecast in week.plan.forecasts}
    rows = []
    for recommendation in week.plan.recommendations:
        forecast = forecasts.get(recommendation.service)
        head = Cell(words.name(recommendation.service), recommendation.service.key)
        if isinstance(recommendation, Recommendation):
            rows.append((head, *_recommended(recommendation, forecast, week, language)))
        else:
            reason = Cell(word("plan_reason", recommendation.reason, language), recommendation.reason.value)
            blank = words.unknown(language)
            rows.append((head, *[blank] * 8, reason))
    columns = "service now# need# gpus# peak# growth# next_week# need_at error# reason"
    charted = [
        service for service in sorted(week.services, key=lambda s: -s.requests) if np.isfinite(service.traffic).any()
    ]
    return section(
        "capacity",
        language,
        tables=(table("capacity", language, columns, rows),),
        charts=tuple(
            traffic_chart(service, forecasts.get(service.service), week, language) for service in charted[:_MOST_CHARTS]
        ),
    )


def _recommended(
    recommendation: Recommendation, forecast: Forecast | None, week: Week, language: Language
) -> tuple[Cell, ...]:
    growth = recommendation.derivation.get("weekly_growth_ratio")
    peak = float(forecast.quantiles[0.95].max()) if forecast is not None and 0.95 in forecast.quantiles else None
    this_week = next((s.traffic for s in week.services if s.service == recommendation.service), np.empty(0))
    highest = float(np.nanmax(this_week)) if np.isfinite(this_week).any() else None
    coming = highest * (1.0 + growth) if growth is not None and highest is not None else None
    error = forecast.score.wape if forecast is not None else None
    return (
        words.number(recommendation.current_replicas, language),
        words.number(recommendation.target_replicas, language),
        words.number(recommendation.gpus, language),
        words.number(peak, language, digits=1),
        words.unknown(language) if growth is None else Cell(f"{growth * 100:+.0f} %", growth),
        words.number(coming, language, digits=1),
        words.instant(recommendation.need_at, language),
        words.ratio(error, language, digits=1),
        Cell(word("plan_reason", recommendation.reason, language), recommendation.reason.value),
    )


def _cost(week: Week, language: Language) -> Section:
    fleet = week.fleet
    tokens = sum(service.tokens for service in week.services)
    per_watt_hour = indicators.tokens_per_watt_hour(tokens, fleet.joules)
    used = words.ratio(fleet.utilisation, language, 0, MEASURES["gpu_utilisation"].kept(fleet.utilisation))
    prefix = words.ratio(fleet.prefix_hit, language, 0, MEASURES["prefix_hit"].kept(fleet.prefix_hit))
    rows = [
        _row("row_gpu_hours", _hours(fleet.held_hours if fleet.gpus else None, language), language),
        _measured("gpu_hours_idle", _hours(fleet.idle_hours, language), language),
        _measured("gpu_hours_lost", _hours(fleet.lost_hours, language), language),
        _measured("gpu_utilisation", used, language),
        _row("row_tokens", words.number(tokens if week.services else None, language), language),
        _measured("cost_per_1k_tokens", cost_cell(week, language), language),
        _measured("tokens_per_watt_hour", words.number(per_watt_hour, language, digits=0), language),
        _measured("prefix_hit", prefix, language),
    ]
    return section("cost", language, tables=(table("cost", language, "measure value# goal", rows),))


def _alerts(week: Week, language: Language) -> Section:
    history = week.history
    count = len(history.incidents)
    folded = indicators.folded_share(history.pages, history.alerts_fired)
    noops = indicators.noops_share(history.changes_automatic, history.changes)
    precision = indicators.page_precision(history.pages_useful, history.pages_judged)
    durations = ((name, history.mean(name)) for name in ("mttd", "mtta", "mttr"))
    rows = [
        _row("row_incidents", words.number(count, language), language),
        *(
            _measured(name, words.seconds(value, language, MEASURES[name].kept(value)), language)
            for name, value in durations
        ),
        _row("row_alerts", words.number(history.alerts_fired, language), language),
        _row("row_pages", words.number(history.pages, language), language),
        _measured(
            "pages_per_incident",
            words.number(indicators.pages_per_incident(history.pages, count), language, digits=2),
            language,
        ),
        _measured("folded", words.ratio(folded, language, 0), language),
        _row("row_pages_judged", words.number(history.pages_judged, language), language),
        _measured("page_precision", words.ratio(precision, language, 0), language),
        _row("row_changes", words.number(history.changes, language), language),
        _measured("noops", words.ratio(noops, language, 0, MEASURES["noops"].kept(noops)), language),
    ]
    rules = [
        (Cell(rule_name(rule, language), rule), words.number(count, language))
        for rule, count in history.rules[:_MOST_RULES]
    ]
    return section(
        "alerts",
        language,
        tables=(
            table("alerts", language, "measure value# goal", rows),
            table("rules", language, "rule count#", rules),
            table(
                "precision",
                language,
                "rule judged# useful# wrong_cause# not_useful# precision# interval",
                [_precision_row(rule, language) for rule in history.precisions],
            ),
        ),
    )


def _precision_row(precision: RulePrecision, language: Language) -> tuple[Cell, ...]:
    low, high = precision.interval
    return (
        Cell(rule_name(precision.rule, language), precision.rule),
        words.number(precision.judged, language),
        words.number(precision.useful, language),
        words.number(precision.wrong_cause, language),
        words.number(precision.not_useful, language),
        words.ratio(precision.precision, language, 0),
        Cell(f"{words.percent(low, 0)} – {words.percent(high, 0)}"),
    )


def _service(service: ServiceFigures) -> Cell:
    return Cell(words.name(service.service), service.service.key)


def _hours(value: float | None, language: Language) -> Cell:
    if value is None:
        return words.unknown(language)
    return Cell(words.text("unit_hours", language, value=f"{value:,.1f}"), value)


def _row(key: str, value: Cell, language: Language) -> tuple[Cell, ...]:
    return (Cell(words.text(key, language), key.removeprefix("row_")), value, Cell(""))


def _measured(name: str, value: Cell, language: Language) -> tuple[Cell, ...]:
    title = MEASURES[name].title(language)
    return (Cell(title, name, note=MEASURES[name].formula(language)), value, Cell(words.goal(name)))


def table(name: str, language: Language, columns: str, rows: Sequence[tuple[Cell, ...]]) -> Table:
    """Builds a table; ``columns`` are keys, numeric ones end in #."""
    more = len(rows) - _MOST_ROWS
    return Table(
        id=name,
        title=words.text(f"table_{name}", language),
        columns=tuple(
            Column(key.rstrip("#"), words.text(f"col_{key.rstrip('#')}", language), key.endswith("#"))
            for key in columns.split()
        ),
        rows=tuple(rows[:_MOST_ROWS]) if name in _CUT else tuple(rows),
        empty=words.text(f"empty_{name}", language) if not rows else "",
        more=words.text("more_rows", language, count=more) if name in _CUT and more > 0 else "",
    )


def section(
    name: str, language: Language, *, tables: tuple[Table, ...] = (), charts: tuple[BarChart | LineChart, ...] = ()
) -> Section:
    """Builds a section with its texts by name."""
    return Section(
        id=name,
        title=words.text(f"section_{name}", language),
        lead=words.text(f"section_{name}_lead", language),
        tables=tables,
        charts=charts,
    )
