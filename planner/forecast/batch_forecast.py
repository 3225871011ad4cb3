"""Load forecasts of all services for a plan: the ensemble in one batch, and the nightly models that help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityRef, Forecast, NoPlanReason, SignalKey, Window
from planner.forecast.calendar import NO_CALENDAR, Calendar
from planner.forecast.forecaster import FAST_MODELS, forecast, forecast_rows, forecast_selected
from planner.forecast.nightly_fit import Fits, NightlyDecision

__all__ = ["FAST_MODELS", "LOAD", "Forecasts", "Nights", "forecast_all"]

LOAD = SignalKey("svc_requests_per_second")
Forecasts = dict[EntityRef, Forecast | NoPlanReason]
Nights = Mapping[EntityRef, NightlyDecision]
NO_NIGHT = NightlyDecision(Fits())
_BATCH = 64
_FORECAST_ERRORS = (ValueError, TypeError, ArithmeticError, LookupError, RuntimeError)


def forecast_all(
    history: Window,
    now: datetime,
    horizon: timedelta,
    nights: Nights | None = None,
    calendar: Calendar = NO_CALENDAR,
) -> Forecasts:
    """Forecasts the load of every service of a window of cleaned values, fast enough for every plan.

    Services with selected nightly models use their existing fits; nothing is fitted anew. All others use the ensemble
    and carry the nightly reasons. Each of the two groups is one batch. A service that cannot be forecast gets
    ``FAILED``; the others keep their forecasts.
    """
    known = nights or {}
    selected = {service for service, night in known.items() if night.selected}
    plain = [row for row, service in enumerate(history.entities) if service not in selected]
    forecasts = _forecast_plain(history, plain, now, horizon, known, calendar)
    rows = [row for row, service in enumerate(history.entities) if service in selected]
    return forecasts | _forecast_selected(history, rows, now, horizon, known, calendar)


def _forecast_plain(
    history: Window, rows: Sequence[int], now: datetime, horizon: timedelta, nights: Nights, calendar: Calendar
) -> Forecasts:
    services = [history.entities[row] for row in rows]
    values = history.column(LOAD)[np.asarray(rows, dtype=np.intp)]
    try:
        answers = forecast_rows(
            history.times,
            values,
            signal=LOAD.name,
            entities=services,
            now=now,
            horizon=horizon,
            step=history.step,
            calendar=calendar,
            reasons={service: (*night.why, *night.notes) for service, night in nights.items()},
        )
    except _FORECAST_ERRORS:  # forecasting each alone shows which one fails
        return {
            service: _with_notes(
                _forecast_service(history, row, now, horizon, nights.get(service, NO_NIGHT), calendar),
                nights.get(service, NO_NIGHT),
            )
            for row, service in zip(rows, services, strict=True)
        }
    return dict(zip(services, answers, strict=True))


def _forecast_selected(
    history: Window, rows: Sequence[int], now: datetime, horizon: timedelta, nights: Nights, calendar: Calendar
) -> Forecasts:
    """Forecasts part by part; if a fit fails, those of its part are forecast one by one."""
    forecasts: Forecasts = {}
    for first in range(0, len(rows), _BATCH):
        part = rows[first : first + _BATCH]
        services = [history.entities[row] for row in part]
        try:
            answers = forecast_selected(
                history.times,
                history.column(LOAD)[np.asarray(part, dtype=np.intp)],
                signal=LOAD.name,
                entities=services,
                nights=[nights[service] for service in services],
                now=now,
                horizon=horizon,
                step=history.step,
                calendar=calendar,
            )
        except _FORECAST_ERRORS:
            answers = [
                _forecast_service(history, row, now, horizon, nights[service], calendar)
                for row, service in zip(part, services, strict=True)
            ]
        forecasts |= {
            service: _with_notes(result, nights[service]) for service, result in zip(services, answers, strict=True)
        }
    return forecasts


def _with_notes(result: Forecast | NoPlanReason, night: NightlyDecision) -> Forecast | NoPlanReason:
    return replace(result, why=(*result.why, *night.notes)) if isinstance(result, Forecast) else result


def _forecast_service(
    history: Window, row: int, now: datetime, horizon: timedelta, night: NightlyDecision, calendar: Calendar
) -> Forecast | NoPlanReason:
    try:
        result = forecast(
            history.times,
            history.column(LOAD)[row],
            signal=LOAD.name,
            entity=history.entities[row],
            now=now,
            horizon=horizon,
            step=history.step,
            models=(*FAST_MODELS, *night.fits.requested),
            fits=night.fits,
            may_fit=False,
            calendar=calendar,
        )
    except _FORECAST_ERRORS:
        return NoPlanReason.FAILED
    return result
