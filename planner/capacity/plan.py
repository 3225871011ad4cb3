"""The plan: a forecast and a recommendation for every service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isfinite

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
    PlanReason,
    Recommendation,
    SignalKey,
    Window,
)
from outrider.windows import holding
from planner.capacity import demand, derivation, no_action_impact, node_rounding, prescale
from planner.capacity.formula import buffer_for
from planner.capacity.lead_bound import DEFAULT_RULE, BoundRule
from planner.capacity.present import UNKNOWN, PresentLoad
from planner.forecast import batch_forecast
from planner.forecast.batch_forecast import LOAD, Nights
from planner.forecast.calendar import NO_CALENDAR, Calendar
from planner.forecast.history import HistoryFacts, clean_history
from planner.performance import slo_capacity
from planner.performance.headroom import capacity_per_second
from planner.performance.service_facts import ServiceFacts

INFLIGHT = SignalKey("svc_inflight_requests")
QUEUE = SignalKey("svc_queue_requests")
KEYS = (LOAD, INFLIGHT, QUEUE)
"""Signals that the history may have; the load is enough."""

HISTORY = timedelta(days=15)
STEP = timedelta(minutes=10)
_TOO_OLD = timedelta(days=1)
_WEEK_SECONDS = 7 * 86400.0
# more are needed than the target has
_HELD_BACK = frozenset({PlanReason.STEP_LIMIT, PlanReason.SCALE_OUT_COOLING, PlanReason.SPIKE_DOUBTED})


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Planner settings. ``scaling_window`` is the time between two scaling decisions.

    ``nights`` are the nightly fits by service; a service without one uses the ensemble alone. ``buffer`` applies until
    the forecast error of a service is known. ``rules`` make the load to plan for, each chosen by the service's replayed
    history; without one the default rule applies. ``service_facts`` holds SLOs and other bounds on replicas;
    a service without them has no SLO-based capacity. ``present`` is the load of the present half minute.
    """

    buffer: float = 0.25
    scaling_window: timedelta = timedelta(minutes=10)
    horizon: timedelta = timedelta(hours=24)
    nights: Nights = field(default_factory=dict)
    calendar: Calendar = NO_CALENDAR
    limits: prescale.ScaleLimits = field(default_factory=prescale.ScaleLimits)
    rules: Mapping[EntityRef, BoundRule] = field(default_factory=dict)
    service_facts: Mapping[EntityRef, ServiceFacts] = field(default_factory=dict)
    present: Mapping[EntityRef, PresentLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanBasis:
    """What a plan keeps for the next: cleaned history, forecasts and capacities. ``settings`` are those of the plan."""

    history: Window
    facts: Sequence[HistoryFacts]
    forecasts: Mapping[EntityRef, Forecast | NoPlanReason]
    calibrations: Mapping[EntityRef, Calibration]
    capacities: Mapping[EntityRef, slo_capacity.SloCapacity]
    settings: PlanSettings

    def upper_bound(self, service: EntityRef, now: datetime) -> float | None:
        """The highest load that the forecast expects now, in requests per second; None without a forecast."""
        forecast = self.forecasts.get(service)
        return _upper_bound(forecast, now) if isinstance(forecast, Forecast) else None

    def per_replica(self, service: EntityRef) -> float | None:
        """Requests per second that one replica serves, without buffer; None without a valid calibration."""
        known = self.capacities.get(service)
        valid = known is not None and _invalid_field(known.calibration) is None
        return capacity_per_second(known.calibration, 1, 0.0) if known is not None and valid else None


def plan(
    history: Window,
    calibrations: Mapping[EntityRef, Calibration],
    fleet: Sequence[FleetService],
    now: datetime,
    *,
    settings: PlanSettings | None = None,
) -> Plan:
    """Makes one forecast and one recommendation (or the reason for none) for each service of ``fleet``.

    ``history`` is a window of services with ``svc_requests_per_second`` in steps of ten minutes over up to 15 days, and
    with requests in flight and queued if known. Missing slots are NaN; its times need not be sorted. A forecast is made
    whenever there is history, also without a calibration. A problem of one service does not affect the others.
    """
    return plan_with_basis(history, calibrations, fleet, now, settings or PlanSettings())[0]


def plan_with_basis(
    history: Window,
    calibrations: Mapping[EntityRef, Calibration],
    fleet: Sequence[FleetService],
    now: datetime,
    chosen: PlanSettings,
) -> tuple[Plan, PlanBasis]:
    """Returns the plan, and what ``replan`` needs to revise it before the next one. See ``plan``."""
    clean, facts = clean_history(history, LOAD, now)
    capacities = {
        service: _slo_capacity(calibration, chosen.service_facts.get(service))
        for service, calibration in calibrations.items()
    }
    bounded_calibrations = {service: capacity.calibration for service, capacity in capacities.items()}
    doubts = {row: _doubt(clean, row, bounded_calibrations, fleet, now, chosen) for row in range(len(clean.entities))}
    forecasted = batch_forecast.forecast_all(
        _drop_doubted(clean, doubts), now, chosen.horizon, chosen.nights, chosen.calendar
    )
    basis = PlanBasis(clean, facts, forecasted, calibrations, capacities, chosen)
    forecasts = {
        service.service: known for service in fleet if isinstance(known := forecasted.get(service.service), Forecast)
    }
    load = _present_load(basis, fleet, now) if chosen.present else lambda row: doubts[row]
    results = _recommendations(basis, fleet, fleet, load, now)
    return Plan(tuple(forecasts.values()), results, tuple(calibrations.values())), basis


def replan(
    basis: PlanBasis,
    fleet: Sequence[FleetService],
    changed: Mapping[EntityRef, Sequence[str]],
    present: Mapping[EntityRef, PresentLoad],
    now: datetime,
) -> tuple[Recommendation | NoRecommendation, ...]:
    """Revises the recommendations of ``changed`` services for the present, with the forecasts of the last plan.

    ``fleet`` are all services with their replicas of now. ``changed`` maps a service to the reasons, which the
    derivation then holds as ``replanned``.
    """
    revised = replace(basis, settings=replace(basis.settings, present=present))
    chosen = [service for service in fleet if service.service in changed]
    results = _recommendations(revised, chosen, fleet, _present_load(revised, fleet, now), now)
    return tuple(
        replace(item, derivation={**item.derivation, "replanned": list(changed[item.service])})
        if isinstance(item, Recommendation)
        else item
        for item in results
    )


def _present_load(
    basis: PlanBasis, fleet: Sequence[FleetService], now: datetime
) -> Callable[[int], demand.TrustedLoad]:
    """The load of a row of the history, replaced by that of the present if they differ."""
    bounded = {service: capacity.calibration for service, capacity in basis.capacities.items()}
    return lambda row: _doubt(basis.history, row, bounded, fleet, now, basis.settings, basis.forecasts)


def _recommendations(
    basis: PlanBasis,
    chosen: Sequence[FleetService],
    fleet: Sequence[FleetService],
    load: Callable[[int], demand.TrustedLoad],
    now: datetime,
) -> tuple[Recommendation | NoRecommendation, ...]:
    """One result for each of the ``chosen`` services of ``fleet``; ``load`` returns the load of a row of history."""
    listed = Counter(service.service for service in fleet)
    rows = {entity: row for row, entity in enumerate(basis.history.entities)}
    results: list[Recommendation | NoRecommendation] = []
    for service in chosen:
        entity, row = service.service, rows.get(service.service)
        known = basis.forecasts.get(entity)
        rejection = _rejection(service, basis.calibrations.get(entity), listed, now)
        early = _without_history(service, row, known, basis.history, now)
        if early is not None or rejection is not None or row is None or not isinstance(known, Forecast):
            results.append(early or rejection or NoRecommendation(entity, NoPlanReason.NO_HISTORY, now))
            continue
        capacity, settings = basis.capacities[entity], basis.settings
        demand_inputs = demand.DemandInputs(
            basis.history, row, basis.facts[row], known, capacity.calibration, service, load(row), now,
            settings.rules.get(entity, DEFAULT_RULE), capacity, settings.limits.drain,
        )  # fmt: skip
        results.append(_recommend_safely(demand_inputs, settings))
    return tuple(results)


def _upper_bound(forecast: Forecast, now: datetime) -> float | None:
    """The highest quantile of the slot that contains ``now``."""
    values = forecast.quantiles[max(forecast.quantiles)]
    if not values.size:
        return None
    slot = int(np.searchsorted(forecast.times, now.timestamp(), side="right")) - 1
    return float(values[min(max(slot, 0), values.size - 1)])


def weekly_growth(times: Floats, values: Floats, now: datetime) -> float | None:
    """Growth of the load from one week to the next: 0.2 means 20 % more in the next week.

    The last seven days over the seven before, minus one, over slots known in both. None with less than two weeks of
    history, with half of the slots missing, or without load in the earlier week.
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


def _slo_capacity(calibration: Calibration, known: ServiceFacts | None) -> slo_capacity.SloCapacity:
    """Capacity under the SLO. An invalid calibration is refused later, with the field's name."""
    if _invalid_field(calibration) is not None:
        return slo_capacity.SloCapacity(calibration, slo_capacity.Verdict.NO_CALIBRATION)
    return slo_capacity.refine(calibration, known or ServiceFacts())


def _doubt(
    clean: Window,
    row: int,
    calibrations: Mapping[EntityRef, Calibration],
    fleet: Sequence[FleetService],
    now: datetime,
    settings: PlanSettings,
    forecasts: Mapping[EntityRef, Forecast | NoPlanReason] | None = None,
) -> demand.TrustedLoad:
    """The current load, and whether it is a spike in a single sample.

    With ``forecasts`` the load of the present counts where it differs from the slots; the history of a forecast has
    slots alone.
    """
    service = next((candidate for candidate in fleet if candidate.service == clean.entities[row]), None)
    untrusted = holding(clean.column_status(LOAD)[row])
    load = prescale.load_now(clean.times, clean.column(LOAD)[row], untrusted, now, clean.step)
    present = settings.present.get(clean.entities[row], UNKNOWN)
    if forecasts is not None:
        known = forecasts.get(clean.entities[row])
        load = demand.with_present(load, present, _upper_bound(known, now) if isinstance(known, Forecast) else None)
    calibration = calibrations.get(clean.entities[row])
    if service is None or calibration is None or _invalid_field(calibration) is not None:
        return demand.TrustedLoad(load, load.newest, doubted=False, present=present)
    try:
        trusted = demand.trust_load(load, calibration, service, settings.limits, settings.buffer)
    except OutriderError:  # reported for this service when its recommendation is made
        trusted = demand.TrustedLoad(load, load.newest, doubted=False)
    return replace(trusted, present=present)


def _drop_doubted(clean: Window, doubts: Mapping[int, demand.TrustedLoad]) -> Window:
    """The history without doubted samples: a forecast must not continue them."""
    rows = [row for row, load in doubts.items() if load.doubted]
    if not rows:
        return clean
    values = clean.values.copy()
    column = clean.keys.index(LOAD)
    for row in rows:
        known = np.flatnonzero(np.isfinite(values[row, :, column]))
        values[row, known[-1], column] = np.nan
    return replace(clean, values=values)


def _without_history(
    service: FleetService, row: int | None, forecast: Forecast | NoPlanReason | None, clean: Window, now: datetime
) -> NoRecommendation | None:
    if row is None or forecast is None:
        return NoRecommendation(service.service, NoPlanReason.NO_HISTORY, now)
    if not isinstance(forecast, Forecast):
        detail = "plan.failed_forecast" if forecast is NoPlanReason.FAILED else ""
        return NoRecommendation(service.service, forecast, now, detail)
    known = np.isfinite(clean.column(LOAD)[row]) & (clean.times < now.timestamp())
    if not known.any() or clean.times[known].max() < (now - _TOO_OLD).timestamp():
        return NoRecommendation(service.service, NoPlanReason.NO_VALUES, now)
    return None


def _rejection(
    service: FleetService, calibration: Calibration | None, listed: Mapping[EntityRef, int], now: datetime
) -> NoRecommendation | None:
    """The reason why a service cannot be planned, None if it can."""
    entity = service.service
    if listed[entity] > 1:
        return NoRecommendation(entity, NoPlanReason.LISTED_TWICE, now, "plan.listed_twice", {"n": str(listed[entity])})
    if service.floor > service.ceiling or service.floor < 0:
        limits = {"floor": str(service.floor), "ceiling": str(service.ceiling)}
        return NoRecommendation(entity, NoPlanReason.LIMITS_CONTRADICT, now, "plan.limits_contradict", limits)
    if calibration is None:
        missing = NoPlanReason.NO_CALIBRATION if service.current_replicas else NoPlanReason.NO_REPLICAS
        detail, arguments = service.no_calibration or ("", {})
        return NoRecommendation(entity, missing, now, detail, arguments)
    fault = _invalid_field(calibration)
    if fault is None:
        return None
    reason = NoPlanReason.BAD_CALIBRATION
    return NoRecommendation(
        entity, reason, now, "plan.bad_calibration", {"field": fault, "value": str(getattr(calibration, fault))}
    )


def _invalid_field(calibration: Calibration) -> str | None:
    """The first invalid field of a calibration."""
    for name in ("tokens_per_request", "batch", "tokens_per_second_per_sequence"):
        if not (isfinite(getattr(calibration, name)) and getattr(calibration, name) > 0):
            return name
    for name in ("tensor_parallel", "pipeline_parallel"):
        if getattr(calibration, name) < 1:
            return name
    if not (isfinite(calibration.startup_seconds) and calibration.startup_seconds >= 0):
        return "startup_seconds"
    return None


def _recommend_safely(demand_inputs: demand.DemandInputs, settings: PlanSettings) -> Recommendation | NoRecommendation:
    """The recommendation; an arithmetic error of one service is reported and affects only that service."""
    try:
        return _recommend(demand_inputs, settings)
    except (OutriderError, ValueError, ArithmeticError) as error:
        message = error.message if isinstance(error, OutriderError) else str(error)
        arguments = {"error": message[:200]}
        return NoRecommendation(
            demand_inputs.service.service, NoPlanReason.FAILED, demand_inputs.now, "plan.failed", arguments
        )


def _recommend(demand_inputs: demand.DemandInputs, settings: PlanSettings) -> Recommendation:
    service, calibration, now = demand_inputs.service, demand_inputs.calibration, demand_inputs.now
    lead = service.lead or _configured_lead(calibration)
    ahead_of = timedelta(seconds=lead.seconds)
    until = now + ahead_of + settings.scaling_window
    buffer = buffer_for(demand_inputs.forecast.buffers, (until - now).total_seconds(), settings.buffer)
    count = demand.count(demand_inputs, until, buffer, settings.scaling_window)
    group = calibration.tensor_parallel * calibration.pipeline_parallel
    goal = prescale.target(
        current=service.current_replicas,
        floor=service.floor,
        ceiling=service.ceiling,
        quota=None if service.quota_gpus is None else service.quota_gpus // group,
        placeable=service.placeable_replicas,
        need_now=count.now,
        need_forecast=count.forecast,
        need_survivors=count.survivors.need,
        most=prescale.most_replicas(service.current_replicas, service.recent, now, settings.limits),
        ready=service.ready_replicas,
        cooling=demand_inputs.load.load.steady
        and prescale.is_cooling(service.current_replicas, service.recent, now, settings.limits),
        shrunk=demand_inputs.load.load.steady
        and prescale.is_shrunk(service.current_replicas, service.recent, now, settings.limits),
        doubted=demand_inputs.load.doubted,
    )
    ordered = capacity_per_second(calibration, service.current_replicas, buffer.value)
    ready = capacity_per_second(calibration, min(service.ready_replicas, service.current_replicas), buffer.value)
    # capacity left after a scale-in may have to be added again: the need counts from there
    remaining = ordered * min(1.0, goal.replicas / max(1, service.current_replicas))
    short = (demand_inputs.load.load.newest or 0.0) > min(ready, ordered) * (1 + 1e-9) or demand.is_short_now(
        demand_inputs, count
    )
    need_at = now if short else prescale.first_need(demand_inputs.forecast, remaining, count.level)
    if need_at is not None:
        need_at = max(need_at, now)  # the forecast of an earlier plan begins before now
    need_at = None if need_at is None else need_at.replace(microsecond=0)
    top, limit = _top(service, group)
    needed_by = None if need_at is None else (need_at - ahead_of).replace(microsecond=0)
    against = _against_start(service.current_replicas, goal, needed_by, top, limit, now)
    if against:
        needed_by = None
    gpus = goal.replicas * group
    inputs = derivation.DerivationInputs(
        demand_inputs, count, goal, lead, until, ordered, ready, buffer, settings.horizon
    )
    growth = weekly_growth(demand_inputs.history.times, demand_inputs.values, now)
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
            **derivation.derivation(inputs),
            "short": {
                "short_from": None if need_at is None else rfc3339(need_at),
                "start_by": None if needed_by is None else rfc3339(needed_by),
                "is_now": need_at is not None and need_at <= now,
                "is_past": needed_by is not None and needed_by <= now,
                "limited_by": against or None,
            },
            "most": {"replicas": top, "limit": limit},
            "nodes": node_rounding.round_to_nodes(goal.replicas, group, service),
            "weekly_growth_ratio": growth,
        },
        reason=goal.reason,
        made_at=now,
    )


def _against_start(
    current: int, goal: prescale.Target, needed_by: datetime | None, top: int, limit: str, now: datetime
) -> str:
    """What leaves no time to start by: the limit that allows no start, or that enough are ordered; else empty.

    Replicas removed by a scale-in may come back.
    """
    if needed_by is None:
        return ""
    if min(current, goal.replicas) >= top:
        return limit
    if needed_by > now or goal.replicas > current:
        return ""
    return goal.binding if goal.reason in _HELD_BACK else no_action_impact.ORDERED


def _top(service: FleetService, group: int) -> tuple[int, str]:
    """The most replicas that may be ordered, and the limit that allows no more."""
    limits = [(service.ceiling, "ceiling")]
    if service.quota_gpus is not None:
        limits.append((service.quota_gpus // group, "quota"))
    if service.placeable_replicas is not None:
        limits.append((max(service.placeable_replicas, service.current_replicas), "free_gpus"))
    return min(limits, key=lambda limit: limit[0])


def _configured_lead(calibration: Calibration) -> LeadTime:
    source = calibration.startup_source or "configured"
    return LeadTime(
        calibration.startup_seconds, source, parts=(LeadPart("start", calibration.startup_seconds, source),)
    )


__all__ = [
    "HISTORY",
    "KEYS",
    "LOAD",
    "STEP",
    "HistoryFacts",
    "PlanBasis",
    "PlanSettings",
    "plan",
    "plan_with_basis",
    "replan",
    "weekly_growth",
]
