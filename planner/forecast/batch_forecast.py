"""Forecasts of all services for a plan: the fast tier in one stroke, and those of the night where they help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityRef, Forecast, NoPlanReason, SignalKey, Window
from planner.forecast.calendar import NO_CALENDAR, Calendar
from planner.forecast.forecaster import FAST_MODELS, forecast, forecast_heard, forecast_rows
from planner.forecast.nightly_fit import Decided, Fits

__all__ = ["FAST_MODELS", "LOAD", "Answers", "Nights", "fast"]

LOAD = SignalKey("svc_requests_per_second")
Answers = dict[EntityRef, Forecast | NoPlanReason]
Nights = Mapping[EntityRef, Decided]
NO_NIGHT = Decided(Fits())
_PART = 64
_WRONG = (ValueError, TypeError, ArithmeticError, LookupError, RuntimeError)


def fast(
    history: Window,
    now: datetime,
    horizon: timedelta,
    nights: Nights | None = None,
    calendar: Calendar = NO_CALENDAR,
) -> Answers:
    """A forecast of the load of every service of a window of cleaned values, in a time fit for every plan.

    Where somebody of ``nights`` is heard, what was fitted is listened to and nothing is fitted anew; all other
    services are forecast with what the night said of those that are not heard. Each of the two goes in one stroke. A
    service whose series cannot be forecast is answered with ``FAILED``: it costs nobody else a forecast.
    """
    known = nights or {}
    heard = {service for service, night in known.items() if night.heard}
    plain = [row for row, service in enumerate(history.entities) if service not in heard]
    found = _many(history, plain, now, horizon, known, calendar)
    listening = [row for row, service in enumerate(history.entities) if service in heard]
    return found | _heard(history, listening, now, horizon, known, calendar)


def _many(
    history: Window, rows: Sequence[int], now: datetime, horizon: timedelta, nights: Nights, calendar: Calendar
) -> Answers:
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
            told={service: (*night.why, *night.notes) for service, night in nights.items()},
        )
    except _WRONG:  # whose fault it is shows when each is asked alone
        return {
            service: _noted(
                _one(history, row, now, horizon, nights.get(service, NO_NIGHT), calendar),
                nights.get(service, NO_NIGHT),
            )
            for row, service in zip(rows, services, strict=True)
        }
    return dict(zip(services, answers, strict=True))


def _heard(
    history: Window, rows: Sequence[int], now: datetime, horizon: timedelta, nights: Nights, calendar: Calendar
) -> Answers:
    """Part by part: a fit that breaks has those of its part alone asked one by one."""
    found: Answers = {}
    for first in range(0, len(rows), _PART):
        part = rows[first : first + _PART]
        services = [history.entities[row] for row in part]
        try:
            answers = forecast_heard(
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
        except _WRONG:
            answers = [
                _one(history, row, now, horizon, nights[service], calendar)
                for row, service in zip(part, services, strict=True)
            ]
        found |= {service: _noted(said, nights[service]) for service, said in zip(services, answers, strict=True)}
    return found


def _noted(found: Forecast | NoPlanReason, night: Decided) -> Forecast | NoPlanReason:
    return replace(found, why=(*found.why, *night.notes)) if isinstance(found, Forecast) else found


def _one(
    history: Window, row: int, now: datetime, horizon: timedelta, night: Decided, calendar: Calendar
) -> Forecast | NoPlanReason:
    try:
        found = forecast(
            history.times,
            history.column(LOAD)[row],
            signal=LOAD.name,
            entity=history.entities[row],
            now=now,
            horizon=horizon,
            step=history.step,
            models=(*FAST_MODELS, *night.fits.asked),
            fits=night.fits,
            may_fit=False,
            calendar=calendar,
        )
    except _WRONG:
        return NoPlanReason.FAILED
    return found
