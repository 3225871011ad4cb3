"""The capacity report: what each service needs, what comes, and what the plan did or would have done this week."""

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
_LONGEST_STEP = timedelta(hours=1)  # a plan speaks for no longer: then the engine did not run
_DONE_WITHIN = timedelta(minutes=15)


def capacity(
    state: StateReader, metrics: MetricStore, week: str, now: datetime, language: Language = "en"
) -> ReportModel:
    """The report of one ISO week, up to ``now`` while the week runs.

    An empty store gives a report that says so. Raises UsageError for a week that cannot be read or lies wholly in
    the future.
    """
    read = read_week(state, metrics, week, now)
    wishes = list(_wishes(_plans(state, read.start, read.end)))
    sections = (_needs(read, language), _coming(read, language), _shadow(read, wishes, language))
    empty = read.empty and not read.plan.recommendations
    return frame_report("capacity", read, week, now, language, sections=() if empty else sections, empty=empty)


@dataclass(frozen=True, slots=True)
class _Wish:
    """A number that the plan wanted from ``at`` on, while ``current`` were there; it stood for ``hours``."""

    at: datetime
    service: str
    current: int
    target: int
    binding: str
    reason: str
    hours: float


def _plans(state: StateReader, start: datetime, end: datetime) -> list[AuditRecord]:
    """What was planned in [start, end), oldest first."""
    found: list[AuditRecord] = []
    after = None
    while True:
        page = state.audit(_PAGE, after)
        found += [one for one in page if one.event is AuditEvent.PLAN_MADE and start <= one.at < end]
        if len(page) < _PAGE or page[-1].at < start:
            return found[::-1]
        after = position_of(page[-1])


def _wishes(plans: Sequence[AuditRecord]) -> Iterator[_Wish]:
    """Each change of what the plan wanted of a service."""
    by_service: dict[str, list[AuditRecord]] = defaultdict(list)
    for one in plans:
        if "target" in one.detail:
            by_service[one.subject].append(one)
    for service, records in sorted(by_service.items()):
        spans = [min(later.at - one.at, _LONGEST_STEP) for one, later in pairwise(records)]
        first, hours = records[0], 0.0
        for one, span in zip(records, [*spans, timedelta(0)], strict=True):
            if (one.detail["current"], one.detail["target"]) != (first.detail["current"], first.detail["target"]):
                yield _wish(service, first, hours)
                first, hours = one, 0.0
            hours += span.total_seconds() / 3600.0
        yield _wish(service, first, hours)


def _wish(service: str, one: AuditRecord, hours: float) -> _Wish:
    current, target = int(one.detail["current"]), int(one.detail["target"])
    return _Wish(one.at, service, current, target, one.detail.get("binding", ""), one.reason, hours)


def _needs(week: Week, language: Language) -> Section:
    rows = []
    for each in week.plan.recommendations:
        head = Cell(words.name(each.service), each.service.key)
        reason = Cell(word("plan_reason", each.reason, language), each.reason.value)
        if not isinstance(each, Recommendation):
            rows.append((head, *[words.unknown(language)] * 8, reason))
            continue
        lead, cost = each.lead_time.total_seconds(), each.cost_per_hour
        source = str((each.derivation.get("lead") or {}).get("source", ""))
        rows.append(
            (
                head,
                words.number(each.current_replicas, language),
                words.number(each.target_replicas, language),
                words.number(each.gpus, language),
                Cell(each.gpu_type, each.gpu_type),
                words.instant(each.needed_by, language),
                words.instant(each.need_at, language),
                Cell(f"{words.seconds(lead, language).text} ({word('lead_source', source, language)})", lead),
                words.unknown(language) if cost is None else Cell(f"{cost:.2f} {each.currency}".strip(), cost),
                reason,
            )
        )
    columns = "service now# need# gpus# gpu_type start_by need_at lead# cost_hour# reason"
    return section("needs", language, tables=(table("needs", language, columns, rows),))


def _coming(week: Week, language: Language) -> Section:
    """The forecast of each service, how well it did on history it had not seen, and the load of the week."""
    forecasts = {each.entity: each for each in week.plan.forecasts}
    rows = []
    for entity, said in forecasts.items():
        peak = said.quantiles.get(0.95)
        rows.append(
            (
                Cell(words.name(entity), entity.key),
                Cell(said.model, said.model),
                words.ratio(said.score.wape, language, digits=1),
                words.ratio(said.score.coverage90, language, digits=0),
                words.number(None if peak is None else float(peak.max()), language, digits=1),
                Cell(because(said.why, language), because(said.why)),
            )
        )
    charted = [each for each in sorted(week.services, key=lambda s: -s.requests) if np.isfinite(each.traffic).any()]
    charts = tuple(traffic_chart(each, forecasts.get(each.service), week, language) for each in charted[:_MOST_CHARTS])
    columns = "service model error# coverage# peak# chosen_because"
    return section("coming", language, tables=(table("coming", language, columns, rows),), charts=charts)


def _shadow(week: Week, wishes: Sequence[_Wish], language: Language) -> Section:
    """What the plan wanted, what of it was done, and the replica-hours between the two."""
    wanted = [one for one in wishes if one.target != one.current]
    rows = [
        (
            words.instant(one.at, language),
            Cell(one.service, one.service),
            words.number(one.current, language),
            words.number(one.target, language),
            Cell(word("plan_reason", one.reason, language), one.reason),
            _done(one, week.history.actions, language),
        )
        for one in sorted(wanted, key=lambda one: one.at, reverse=True)
    ]
    sums = []
    for service in sorted({one.service for one in wishes}):
        own = [one for one in wishes if one.service == service]
        more = sum(max(0, one.target - one.current) * one.hours for one in own)
        fewer = sum(max(0, one.current - one.target) * one.hours for one in own)
        outs = sum(one.target > one.current for one in own)
        ins = sum(one.target < one.current for one in own)
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


def _done(wish: _Wish, actions: Sequence[Action], language: Language) -> Cell:
    """Whether a scaling of that service followed, and else what became of it."""
    own = [
        one
        for one in actions
        if one.kind is ActionKind.SCALE
        and str(one.target) == wish.service
        and wish.at <= one.decided_at <= wish.at + _DONE_WITHIN
    ]
    if not own:
        return Cell(words.text("not_done", language), "not_done")
    status: ActionStatus = own[0].status
    return Cell(word("action_status", status, language), status.value)
