"""The plan: a forecast and a recommendation for every service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isfinite
from typing import Literal

import numpy as np

from outrider.clock import rfc3339
from outrider.errors import OutriderError
from outrider.model import (
    Calibration,
    EntityRef,
    FleetService,
    Floats,
    Forecast,
    LeadPart,
    LeadTime,
    NoPlanReason,
    NoRecommendation,
    Plan,
    Recommendation,
    SignalKey,
    Window,
)
from outrider.windows import holding
from planner.capacity import demand, derivation, node_rounding, prescale
from planner.capacity.formula import buffer_for
from planner.capacity.lead_bound import USUAL_MARGIN
from planner.forecast import batch_forecast
from planner.forecast.batch_forecast import LOAD, Nights
from planner.forecast.calendar import NO_CALENDAR, Calendar
from planner.forecast.history import Facts, cleaned
from planner.performance import slo_capacity
from planner.performance.headroom import capacity_per_second
from planner.performance.service_facts import Known

INFLIGHT = SignalKey("svc_inflight_requests")
QUEUE = SignalKey("svc_queue_requests")
KEYS = (LOAD, INFLIGHT, QUEUE)
"""What the history may carry; the load is enough."""

HISTORY = timedelta(days=15)
STEP = timedelta(minutes=10)
_TOO_OLD = timedelta(days=1)
_WEEK_SECONDS = 7 * 86400.0


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What an operator may set. ``scaling_window`` is how long one scaling step takes to be decided anew.

    ``nights`` are what was fitted last night, by service; a service without one has the fast tier alone.
    ``buffer`` counts until the error of a service's forecast is known. ``margins`` say how far above the median
    each service is planned, as its own replayed past advises; a service without one has the usual margin.
    ``promises`` are what services promise and what else bounds their replicas; one without is not refined.
    """

    buffer: float = 0.25
    scaling_window: timedelta = timedelta(minutes=10)
    horizon: timedelta = timedelta(hours=24)
    nights: Nights = field(default_factory=dict)
    calendar: Calendar = NO_CALENDAR
    limits: prescale.ScaleLimits = field(default_factory=prescale.ScaleLimits)
    margins: Mapping[EntityRef, float] = field(default_factory=dict)
    promises: Mapping[EntityRef, Known] = field(default_factory=dict)


def plan(
    history: Window,
    calibrations: Mapping[EntityRef, Calibration],
    fleet: Sequence[FleetService],
    now: datetime,
    *,
    settings: PlanSettings | None = None,
) -> Plan:
    """One forecast and one recommendation (or the reason for none) a service of ``fleet``.

    ``history`` is a window of services with ``svc_requests_per_second`` in steps of ten minutes over
    up to 15 days (and, where known, requests in flight and queued); missing slots are NaN, and its times
    need not be sorted. A forecast is made wherever there is history, also without a calibration. What is
    wrong with one service is said of that service, and of no other.
    """
    chosen = settings or PlanSettings()
    clean, facts = cleaned(history, LOAD, now)
    held = {service: _held(calibration, chosen.promises.get(service)) for service, calibration in calibrations.items()}
    counted = {service: found.calibration for service, found in held.items()}
    doubts = {row: _doubt(clean, row, counted, fleet, now, chosen) for row in range(len(clean.entities))}
    said = batch_forecast.forecast_all(
        _without_doubted(clean, doubts), now, chosen.horizon, chosen.nights, chosen.calendar
    )
    listed = Counter(service.service for service in fleet)
    forecasts: dict[EntityRef, Forecast] = {}
    answers: list[Recommendation | NoRecommendation] = []
    for service in fleet:
        known = said.get(service.service)
        if isinstance(known, Forecast):
            forecasts[service.service] = known
        refused = _refused(service, calibrations.get(service.service), listed, now)
        row = clean.entities.index(service.service) if service.service in clean.entities else None
        early = _without_history(service, row, known, clean, now)
        if early is not None or refused is not None or row is None or not isinstance(known, Forecast):
            answers.append(early or refused or NoRecommendation(service.service, NoPlanReason.NO_HISTORY, now))
            continue
        bounded = held[service.service]
        case = demand.Case(
            clean,
            row,
            facts[row],
            known,
            bounded.calibration,
            service,
            doubts[row],
            now,
            chosen.margins.get(service.service, USUAL_MARGIN),
            bounded,
        )
        answers.append(_isolated(case, chosen))
    return Plan(tuple(forecasts.values()), tuple(answers), tuple(calibrations.values()))


def weekly_growth(times: Floats, values: Floats, now: datetime) -> float | None:
    """Growth of load from one week to the next: .2 means that next week brings 20 % more.

    The last seven days over the seven before, minus one, over slots known in both. None with less
    than two weeks of history, with half of the slots missing, or without load in the earlier week.
    """
    known = np.isfinite(values) & (times < now.timestamp())
    if not known.any():
        return None
    end = now.timestamp()
    step = float(np.median(np.diff(times))) if times.size > 1 else 0.0
    if step <= 0 or times[known].min() > end - 2 * _WEEK_SECONDS + step:
        return None
    slots = round(_WEEK_SECONDS / step)
    index = np.floor((end - times[known]) / step - 1e-9).astype(int)
    weeks = np.full(2 * slots, np.nan)
    inside = index < 2 * slots
    weeks[index[inside]] = values[known][inside]
    this, last = weeks[:slots], weeks[slots:]
    both = ~np.isnan(this) & ~np.isnan(last)
    if both.mean() < 0.5 or last[both].sum() <= 0:
        return None
    return float(this[both].sum() / last[both].sum()) - 1.0


def _held(calibration: Calibration, known: Known | None) -> slo_capacity.Refined:
    """What the formula counts with; a calibration that cannot be counted with is refused later, by its field."""
    if _faulty(calibration) is not None:
        return slo_capacity.Refined(calibration, slo_capacity.Verdict.NO_CALIBRATION)
    return slo_capacity.refined(calibration, known or Known())


def _doubt(
    clean: Window,
    row: int,
    calibrations: Mapping[EntityRef, Calibration],
    fleet: Sequence[FleetService],
    now: datetime,
    settings: PlanSettings,
) -> demand.Believed:
    """The load of now, and whether it is a spike that one sample alone tells of."""
    service = next((one for one in fleet if one.service == clean.entities[row]), None)
    held = holding(clean.column_status(LOAD)[row])
    load = prescale.load_now(clean.times, clean.column(LOAD)[row], held, now, clean.step)
    calibration = calibrations.get(clean.entities[row])
    if service is None or calibration is None or _faulty(calibration) is not None:
        return demand.Believed(load, load.newest, doubted=False)
    try:
        return demand.believed(load, calibration, service, settings.limits, settings.buffer)
    except OutriderError:  # said of this service when its recommendation is made
        return demand.Believed(load, load.newest, doubted=False)


def _without_doubted(clean: Window, doubts: Mapping[int, demand.Believed]) -> Window:
    """The history without the samples that are doubted: a forecast must not carry them on."""
    rows = [row for row, found in doubts.items() if found.doubted]
    if not rows:
        return clean
    values = clean.values.copy()
    place = clean.keys.index(LOAD)
    for row in rows:
        known = np.flatnonzero(np.isfinite(values[row, :, place]))
        values[row, known[-1], place] = np.nan
    return replace(clean, values=values)


def _without_history(
    service: FleetService, row: int | None, said: Forecast | NoPlanReason | None, clean: Window, now: datetime
) -> NoRecommendation | None:
    if row is None or said is None:
        return NoRecommendation(service.service, NoPlanReason.NO_HISTORY, now)
    if not isinstance(said, Forecast):
        detail = "plan.failed_forecast" if said is NoPlanReason.FAILED else ""
        return NoRecommendation(service.service, said, now, detail)
    known = np.isfinite(clean.column(LOAD)[row]) & (clean.times < now.timestamp())
    if not known.any() or clean.times[known].max() < (now - _TOO_OLD).timestamp():
        return NoRecommendation(service.service, NoPlanReason.NO_VALUES, now)
    return None


def _refused(
    service: FleetService, calibration: Calibration | None, listed: Mapping[EntityRef, int], now: datetime
) -> NoRecommendation | None:
    """What is wrong with what was told of a service, None when a plan can be made."""
    entity = service.service
    if listed[entity] > 1:
        return NoRecommendation(entity, NoPlanReason.LISTED_TWICE, now, "plan.listed_twice", {"n": str(listed[entity])})
    if service.floor > service.ceiling or service.floor < 0:
        limits = {"floor": str(service.floor), "ceiling": str(service.ceiling)}
        return NoRecommendation(entity, NoPlanReason.LIMITS_CONTRADICT, now, "plan.limits_contradict", limits)
    if calibration is None:
        why = NoPlanReason.NO_CALIBRATION if service.current_replicas else NoPlanReason.NO_REPLICAS
        detail, arguments = service.no_calibration or ("", {})
        return NoRecommendation(entity, why, now, detail, arguments)
    fault = _faulty(calibration)
    if fault is None:
        return None
    reason = NoPlanReason.BAD_CALIBRATION
    return NoRecommendation(
        entity, reason, now, "plan.bad_calibration", {"field": fault, "value": str(getattr(calibration, fault))}
    )


def _faulty(calibration: Calibration) -> str | None:
    """The first figure of a calibration that cannot be counted with."""
    for name in ("tokens_per_request", "batch", "tokens_per_second_per_sequence"):
        if not (isfinite(getattr(calibration, name)) and getattr(calibration, name) > 0):
            return name
    for name in ("tensor_parallel", "pipeline_parallel"):
        if getattr(calibration, name) < 1:
            return name
    if not (isfinite(calibration.startup_seconds) and calibration.startup_seconds >= 0):
        return "startup_seconds"
    return None


def _isolated(case: demand.Case, settings: PlanSettings) -> Recommendation | NoRecommendation:
    """The recommendation; a fault in the arithmetic of one service is named and costs that one its plan."""
    try:
        return _recommend(case, settings)
    except (OutriderError, ValueError, ArithmeticError) as error:
        said = error.message if isinstance(error, OutriderError) else str(error)
        arguments = {"error": said[:200]}
        return NoRecommendation(case.service.service, NoPlanReason.FAILED, case.now, "plan.failed", arguments)


def _recommend(case: demand.Case, settings: PlanSettings) -> Recommendation:
    service, calibration, now = case.service, case.calibration, case.now
    lead = service.lead or _configured(calibration)
    ahead_of = timedelta(seconds=lead.seconds)
    until = now + ahead_of + settings.scaling_window
    buffer = buffer_for(case.said.buffers, (until - now).total_seconds(), settings.buffer)
    count = demand.count(case, until, buffer, settings.scaling_window)
    group = calibration.tensor_parallel * calibration.pipeline_parallel
    goal = prescale.target(
        current=service.current_replicas,
        floor=service.floor,
        ceiling=service.ceiling,
        quota=None if service.quota_gpus is None else service.quota_gpus // group,
        need_now=count.now,
        need_forecast=count.forecast,
        need_survivors=count.survivors.need,
        most=prescale.most(service.current_replicas, service.lately, now, settings.limits),
        ready=service.ready_replicas,
        cooling=prescale.is_cooling(service.current_replicas, service.lately, now, settings.limits),
        shrunk=case.load.load.steady
        and prescale.is_shrunk(service.current_replicas, service.lately, now, settings.limits),
        doubted=case.load.doubted,
    )
    ordered = capacity_per_second(calibration, service.current_replicas, buffer.value)
    ready = capacity_per_second(calibration, min(service.ready_replicas, service.current_replicas), buffer.value)
    # what is left after a scale-in must be added to again: the moment counts from there
    left = ordered * min(1.0, goal.replicas / max(1, service.current_replicas))
    short = (case.load.load.newest or 0.0) > min(ready, ordered) * (1 + 1e-9) or demand.short_now(case, count)
    need_at = now if short else prescale.first_need(case.said, left, count.level)
    need_at = None if need_at is None else need_at.replace(microsecond=0)
    top = min(service.ceiling, service.ceiling if service.quota_gpus is None else service.quota_gpus // group)
    # where a limit lets nothing be started, there is no instant to start it by; what a scale-in takes may come back
    starts = need_at is not None and min(service.current_replicas, goal.replicas) < top
    needed_by = (need_at - ahead_of).replace(microsecond=0) if need_at and starts else None
    gpus = goal.replicas * group
    told = derivation.Told(case, count, goal, lead, until, ordered, ready, buffer, settings.horizon)
    growth = weekly_growth(case.history.times, case.values, now)
    return Recommendation(
        service=service.service,
        gpu_type=service.gpu_type,
        current_replicas=service.current_replicas,
        target_replicas=goal.replicas,
        gpus=gpus,
        floor=service.floor,
        ceiling=service.ceiling,
        binding=goal.binding,
        need_at=need_at,
        needed_by=needed_by,
        lead_time=ahead_of,
        cost_per_hour=None if service.price_per_gpu_hour is None else gpus * service.price_per_gpu_hour,
        currency=service.currency,
        derivation={
            **derivation.derivation(told),
            "short": {
                "short_from": None if need_at is None else rfc3339(need_at),
                "start_by": None if needed_by is None else rfc3339(needed_by),
                "is_now": need_at is not None and need_at <= now,
                "is_past": needed_by is not None and needed_by <= now,
                "limited_by": None if need_at is None or starts else _limit(service, top),
            },
            "nodes": node_rounding.rounded(goal.replicas, group, service),
            "weekly_growth_ratio": growth,
        },
        reason=goal.reason,
        made_at=now,
    )


def _limit(service: FleetService, top: int) -> Literal["ceiling", "quota"]:
    """What keeps a service from more than ``top`` replicas."""
    return "quota" if top < service.ceiling else "ceiling"


def _configured(calibration: Calibration) -> LeadTime:
    source = calibration.startup_source or "configured"
    return LeadTime(
        calibration.startup_seconds, source, parts=(LeadPart("start", calibration.startup_seconds, source),)
    )


__all__ = ["HISTORY", "KEYS", "LOAD", "STEP", "Facts", "PlanSettings", "plan", "weekly_growth"]
