"""The plan: a forecast and a recommendation for every service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from outrider.clock import rfc3339
from outrider.model import (
    Calibration,
    EntityRef,
    FleetService,
    Floats,
    Forecast,
    NoPlanReason,
    NoRecommendation,
    Plan,
    Recommendation,
    SignalKey,
    Window,
)
from outrider.windows import holding
from planner import prescale
from planner.capacity import Formula, formula, whole
from planner.forecast.calendar import NO_CALENDAR, Calendar
from planner.forecast.prophet import Fits
from planner.forecast.select import forecast, forecast_rows
from planner.forecast.series import DAY_SECONDS

LOAD = SignalKey("svc_requests_per_second")
INFLIGHT = SignalKey("svc_inflight_requests")
QUEUE = SignalKey("svc_queue_requests")
KEYS = (LOAD, INFLIGHT, QUEUE)
"""What the history may carry; the load is enough."""

HISTORY = timedelta(days=15)
STEP = timedelta(minutes=10)
_TOO_OLD = timedelta(days=1)
_WEEK_SECONDS = 7 * DAY_SECONDS


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What an operator may set. ``scaling_window`` is how long one scaling step takes to be decided anew.

    ``nights`` are the Prophets fitted last night, by service; without one a service has the fast tier alone.
    """

    buffer: float = 0.25
    scaling_window: timedelta = timedelta(minutes=10)
    horizon: timedelta = timedelta(hours=24)
    nights: Mapping[EntityRef, Fits] = field(default_factory=dict)
    calendar: Calendar = NO_CALENDAR


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
    up to 15 days (and, where known, requests in flight and queued); missing slots are NaN. A forecast
    is made wherever there is history, also without a calibration.
    """
    chosen = settings or PlanSettings()
    forecasts: list[Forecast] = []
    answers: list[Recommendation | NoRecommendation] = []
    said_of = _forecasts(history, [each.service for each in fleet], now, chosen)
    for service in fleet:
        outlook = said_of.get(service.service, NoPlanReason.NO_HISTORY)
        said, answer = _plan_one(history, outlook, calibrations.get(service.service), service, now, chosen)
        answers.append(answer)
        if said is not None:
            forecasts.append(said)
    return Plan(tuple(forecasts), tuple(answers), tuple(calibrations.values()))


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


def _forecasts(
    history: Window, services: Sequence[EntityRef], now: datetime, settings: PlanSettings
) -> dict[EntityRef, Forecast | NoPlanReason]:
    """All that the history knows in one stroke; one by one those for which a Prophet was fitted by night."""
    rows = {service: row for row, service in enumerate(history.entities)}
    known = [service for service in services if service in rows]
    plain = [service for service in known if service not in settings.nights]
    loads = history.column(LOAD)
    facts: dict[str, Any] = {
        "signal": LOAD.name,
        "now": now,
        "horizon": settings.horizon,
        "step": history.step,
        "calendar": settings.calendar,
    }
    many = forecast_rows(history.times, loads[[rows[each] for each in plain]], entities=plain, **facts)
    found = dict(zip(plain, many, strict=True))
    for service in known:
        fits = settings.nights.get(service)
        if fits is not None:
            found[service] = forecast(
                history.times, loads[rows[service]], entity=service, fits=fits, may_fit=False, **facts
            )
    return found


def _plan_one(
    history: Window,
    said: Forecast | NoPlanReason,
    calibration: Calibration | None,
    service: FleetService,
    now: datetime,
    settings: PlanSettings,
) -> tuple[Forecast | None, Recommendation | NoRecommendation]:
    if not isinstance(said, Forecast):
        return None, NoRecommendation(service.service, said, now)
    row = history.entities.index(service.service)
    values = history.column(LOAD)[row]
    known = np.isfinite(values) & (history.times < now.timestamp())
    if history.times[known].max() < (now - _TOO_OLD).timestamp():
        return said, NoRecommendation(service.service, NoPlanReason.NO_VALUES, now)
    if calibration is None or not _usable(calibration):
        missing = NoPlanReason.NO_CALIBRATION if service.current_replicas else NoPlanReason.NO_REPLICAS
        return said, NoRecommendation(service.service, missing, now)
    return said, _recommend(history, row, said, calibration, service, now, settings)


def _usable(calibration: Calibration) -> bool:
    figures = (calibration.batch, calibration.tokens_per_second_per_sequence, calibration.tokens_per_request)
    return bool(np.isfinite(figures).all()) and min(figures) > 0


def _recommend(
    history: Window,
    row: int,
    said: Forecast,
    calibration: Calibration,
    service: FleetService,
    now: datetime,
    settings: PlanSettings,
) -> Recommendation:
    lead = timedelta(seconds=calibration.startup_seconds)
    until = now + lead + settings.scaling_window
    values = history.column(LOAD)[row]
    load = prescale.load_now(history.times, values, holding(history.column_status(LOAD)[row]), now, history.step)
    ahead, day = prescale.peak(said, until), prescale.peak(said, now + settings.horizon)
    need_now = _replicas(calibration, load.newest, settings) if load.newest is not None else None
    survivors = _survivors(history, row, said, calibration, load, until, settings)
    goal = prescale.target(
        current=service.current_replicas,
        floor=service.floor,
        ceiling=service.ceiling,
        need_now=need_now,
        need_forecast=_replicas(calibration, ahead.value, settings),
        need_survivors=survivors,
    )
    capacity = prescale.capacity_per_second(calibration, service.current_replicas, settings.buffer)
    # what is left after a scale-in must be added to again: the moment counts from there
    left = capacity * min(1.0, goal.replicas / max(1, service.current_replicas))
    need_at = now if (load.newest or 0.0) > capacity * (1 + 1e-9) else prescale.first_need(said, left)
    bought = _formula(calibration, max(load.newest or 0.0, ahead.value), settings)
    gpus = goal.replicas * calibration.tensor_parallel * calibration.pipeline_parallel
    facts = {
        "load_now": load.newest,
        "load_last_half_hour": load.recent,
        "load_trusted": load.trusted,
        "capacity_now": capacity,
        "need_now": need_now,
        "need_survivors": survivors,
        "peak": {"value": ahead.value, "at": _instant(ahead.at), "until": rfc3339(until)},
        "next_24h": _next_day(calibration, day, settings),
        "weekly_growth_ratio": weekly_growth(history.times, values, now),
    }
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
        needed_by=need_at - lead if need_at else None,
        lead_time=lead,
        cost_per_hour=None if service.price_per_gpu_hour is None else gpus * service.price_per_gpu_hour,
        currency=service.currency,
        derivation={**bought.derivation, **facts, "forecast": _judged(said), "calibration": _basis(calibration)},
        reason=goal.reason,
        made_at=now,
    )


def _formula(calibration: Calibration, qps: float, settings: PlanSettings) -> Formula:
    return formula(
        qps=qps,
        tokens=calibration.tokens_per_request,
        batch=calibration.batch,
        tokens_per_second=calibration.tokens_per_second_per_sequence,
        buffer=settings.buffer,
        tp=calibration.tensor_parallel,
        pp=calibration.pipeline_parallel,
    )


def _replicas(calibration: Calibration, qps: float, settings: PlanSettings) -> int:
    return _formula(calibration, qps, settings).replicas


def _survivors(
    history: Window,
    row: int,
    said: Forecast,
    calibration: Calibration,
    load: prescale.LoadNow,
    until: datetime,
    settings: PlanSettings,
) -> int:
    """Replicas that must stay: for recent and coming load, and for the sequences in flight and queued."""
    coming = prescale.peak(said, until + prescale.NO_REVERSAL).value
    raw = _formula(calibration, max(load.recent or 0.0, coming), settings).units_raw
    # What is in flight includes what is queued, where both are known.
    held = max(_newest(history, row, QUEUE), _newest(history, row, INFLIGHT))
    raw = max(raw, held / calibration.batch * (1.0 + settings.buffer))
    return whole(raw * (1.0 + prescale.HYSTERESIS))


def _newest(history: Window, row: int, key: SignalKey) -> float:
    """The newest known value of the last few slots, 0 where the history does not carry the signal."""
    values = history.column(key)[row][-prescale.FRESH_SLOTS :]
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else 0.0


def _next_day(calibration: Calibration, day: prescale.Peak, settings: PlanSettings) -> dict[str, Any]:
    needed = _formula(calibration, day.value, settings)
    return {"peak": day.value, "at": _instant(day.at), "replicas": needed.replicas, "gpus": needed.gpus}


def _judged(said: Forecast) -> dict[str, Any]:
    return {
        "model": said.model,
        "why_model": said.why_model,
        "wape": said.score.wape,
        "wape_rival": said.score.wape_rival,
        "coverage90": said.score.coverage90,
        "folds": said.score.folds,
        "quantile": prescale.P95,
    }


def _basis(calibration: Calibration) -> dict[str, Any]:
    return {
        "origin": calibration.origin,
        "samples": calibration.samples,
        "startup_seconds": calibration.startup_seconds,
        "startup_source": calibration.startup_source,
    }


def _instant(at: datetime | None) -> str | None:
    return None if at is None else rfc3339(at)
