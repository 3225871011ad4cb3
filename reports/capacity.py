"""The capacity report: needs and forecasts of each service, and what the plan changed or proposed this week."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

import numpy as np

from outrider.audit import AuditEvent, AuditRecord
from outrider.documents.summaries import because, word
from outrider.model import Action, ActionKind, ActionStatus, Recommendation
from outrider.ports import MetricStore, StateReader
from outrider.text.i18n import Language
from outrider.wire.cursors import position_of
from reports.document import words
from reports.document.model import Cell, ReportModel, Section
from reports.frame import frame_report
from reports.inputs.week import Week
from reports.inputs.week_reader import read_week
from reports.plots import traffic_chart
from reports.sections import section, table

_PAGE = 5000
_MOST_CHARTS = 6
_LONGEST_STEP = timedelta(hours=1)  # the longest validity of a plan: after that the engine was not running
_DONE_WITHIN = timedelta(minutes=15)


def capacity(
    state: StateReader, metrics: MetricStore, week: str, now: datetime, language: Language = "en"
) -> ReportModel:
    """Builds the report of one ISO week, up to ``now`` for the current week.

    An empty store gives a report with a notice. Raises UsageError for a week that cannot be read or is in the future.
    """
    read = read_week(state, metrics, week, now)
    changes = list(_planned_changes(_plans(state, read.start, read.end)))
    sections = (_needs(read, language), _coming(read, language), _shadow(read, changes, language))
    empty = read.empty and not read.plan.recommendations
    return frame_report("capacity", read, week, now, language, sections=() if empty else sections, empty=empty)


@dataclass(frozen=True, slots=True)
class _PlannedChange:
    """A replica count wanted by the plan from ``at``, with ``current`` replicas; it was valid for ``hours``."""

    at: datetime
    service: str
    current: int
    target: int
    binding: str
    reason: str
    hours: float


def _plans(state: StateReader, start: datetime, end: datetime) -> list[AuditRecord]:
    """Plans made in [start, end), oldest first."""
    plans: list[AuditRecord] = []
    after = None
    while True:
        page = state.audit(_PAGE, after)
        plans += [record for record in page if record.event is AuditEvent.PLAN_MADE and start <= record.at < end]
        if len(page) < _PAGE or page[-1].at < start:
            return plans[::-1]
        after = position_of(page[-1])


def _planned_changes(plans: Sequence[AuditRecord]) -> Iterator[_PlannedChange]:
    """Each change of the plan's target for a service."""
    by_service: dict[str, list[AuditRecord]] = defaultdict(list)
    for record in plans:
        if "target" in record.detail:
            by_service[record.subject].append(record)
    for service, records in sorted(by_service.items()):
        spans = [min(later.at - record.at, _LONGEST_STEP) for record, later in pairwise(records)]
        first, hours = records[0], 0.0
        for record, span in zip(records, [*spans, timedelta(0)], strict=True):
            if (record.detail["current"], record.detail["target"]) != (first.detail["current"], first.detail["target"]):
                yield _planned_change(service, first, hours)
                first, hours = record, 0.0
            hours += span.total_seconds() / 3600.0
        yield _planned_change(service, first, hours)


def _planned_change(service: str, record: AuditRecord, hours: float) -> _PlannedChange:
    current, target = int(record.detail["current"]), int(record.detail["target"])
    return _PlannedChange(record.at, service, current, target, record.detail.get("binding", ""), record.reason, hours)


def _needs(week: Week, language: Language) -> Section:
    rows = []
    for recommendation in week.plan.recommendations:
        head = Cell(words.name(recommendation.service), recommendation.service.key)
        reason = Cell(word("plan_reason", recommendation.reason, language), recommendation.reason.value)
        if not isinstance(recommendation, Recommendation):
            rows.append((head, *[words.unknown(language)] * 8, reason))
            continue
        lead, cost = recommendation.lead_time.total_seconds(), recommendation.cost_per_hour
        source = str((recommendation.derivation.get("lead") or {}).get("source", ""))
        rows.append(
            (
                head,
                words.number(recommendation.current_replicas, language),
                words.number(recommendation.target_replicas, language),
                words.number(recommendation.gpus, language),
                Cell(recommendation.gpu_type, recommendation.gpu_type),
                words.instant(recommendation.needed_by, language),
                words.instant(recommendation.need_at, language),
                Cell(f"{words.seconds(lead, language).text} ({word('lead_source', source, language)})", lead),
                words.unknown(language)
                if cost is None
                else Cell(f"{cost:.2f} {recommendation.currency}".strip(), cost),
                reason,
            )
        )
    columns = "service now# need# gpus# gpu_type start_by need_at lead# cost_hour# reason"
    return section("needs", language, tables=(table("needs", language, columns, rows),))


def _coming(week: Week, language: Language) -> Section:
    """Forecast of each service, its accuracy on unseen history, and the load of the week."""
    forecasts = {forecast.entity: forecast for forecast in week.plan.forecasts}
    rows = []
    for entity, forecast in forecasts.items():
        peak = forecast.quantiles.get(0.95)
        rows.append(
            (
                Cell(words.name(entity), entity.key),
                Cell(forecast.model, forecast.model),
                words.ratio(forecast.score.wape, language, digits=1),
                words.ratio(forecast.score.coverage90, language, digits=0),
                words.number(None if peak is None else float(peak.max()), language, digits=1),
                Cell(because(forecast.why, language), because(forecast.why)),
            )
        )
    charted = [
        service for service in sorted(week.services, key=lambda s: -s.requests) if np.isfinite(service.traffic).any()
    ]
    charts = tuple(
        traffic_chart(service, forecasts.get(service.service), week, language) for service in charted[:_MOST_CHARTS]
    )
    columns = "service model error# coverage# peak# chosen_because"
    return section("coming", language, tables=(table("coming", language, columns, rows),), charts=charts)


def _shadow(week: Week, changes: Sequence[_PlannedChange], language: Language) -> Section:
    """Targets of the plan, what was done of them, and the replica-hours in between."""
    proposed = [change for change in changes if change.target != change.current]
    rows = [
        (
            words.instant(change.at, language),
            Cell(change.service, change.service),
            words.number(change.current, language),
            words.number(change.target, language),
            Cell(word("plan_reason", change.reason, language), change.reason),
            _done(change, week.history.actions, language),
        )
        for change in sorted(proposed, key=lambda change: change.at, reverse=True)
    ]
    sums = []
    for service in sorted({change.service for change in changes}):
        own = [change for change in changes if change.service == service]
        more = sum(max(0, change.target - change.current) * change.hours for change in own)
        fewer = sum(max(0, change.current - change.target) * change.hours for change in own)
        outs = sum(change.target > change.current for change in own)
        ins = sum(change.target < change.current for change in own)
        sums.append(
            (
                Cell(service, service),
                words.number(outs, language),
                words.number(ins, language),
                words.number(more, language, digits=1),
                words.number(fewer, language, digits=1),
            )
        )
    return section(
        "shadow",
        language,
        tables=(
            table("shadow_sums", language, "service outs# ins# hours_more# hours_fewer#", sums),
            table("shadow", language, "at service now# need# reason done", rows),
        ),
    )


def _done(change: _PlannedChange, actions: Sequence[Action], language: Language) -> Cell:
    """Outcome of the scaling action that followed, or the lack of one."""
    own = [
        action
        for action in actions
        if action.kind is ActionKind.SCALE
        and str(action.target) == change.service
        and change.at <= action.decided_at <= change.at + _DONE_WITHIN
    ]
    if not own:
        return Cell(words.text("not_done", language), "not_done")
    status: ActionStatus = own[0].status
    return Cell(word("action_status", status, language), status.value)
