"""Forecasts of all services for a plan: the fast tier in one stroke, and those of the night where they help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from outrider.model import EntityRef, Forecast, NoPlanReason, SignalKey, Window
from planner.forecast.calendar import NO_CALENDAR, Calendar
from planner.forecast.nights import Fits
from planner.forecast.select import FAST_MODELS, forecast, forecast_rows

__all__ = ["FAST_MODELS", "LOAD", "Answers", "Nights", "fast"]

LOAD = SignalKey("svc_requests_per_second")
Answers = dict[EntityRef, Forecast | NoPlanReason]
Nights = Mapping[EntityRef, Fits]
_WRONG = (ValueError, ArithmeticError, RuntimeError)


def fast(
    history: Window,
    now: datetime,
    horizon: timedelta,
    nights: Nights | None = None,
    calendar: Calendar = NO_CALENDAR,
) -> Answers:
    """A forecast of the load of every service of a window of cleaned values, in a time fit for every plan.

    Those of ``nights`` listen to what was fitted for them, and nothing is fitted anew; all others are
    forecast in one stroke. A service whose series cannot be forecast is answered with ``FAILED``: it costs nobody
    else a forecast.
    """
    with_night = nights or {}
    plain = [row for row, service in enumerate(history.entities) if service not in with_night]
    found = _many(history, plain, now, horizon, calendar)
    for row, service in enumerate(history.entities):
        if service in with_night:
            night = with_night[service]
            models = (*FAST_MODELS, *night.asked)
            found[service] = _one(
                history, row, now, horizon, models=models, fits=night, may_fit=False, calendar=calendar
            )
    return found


def _many(history: Window, rows: Sequence[int], now: datetime, horizon: timedelta, calendar: Calendar) -> Answers:
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
        )
    except _WRONG:  # whose fault it is shows when each is asked alone
        return {
            service: _one(history, row, now, horizon, models=FAST_MODELS, calendar=calendar)
            for row, service in zip(rows, services, strict=True)
        }
    return dict(zip(services, answers, strict=True))


def _one(history: Window, row: int, now: datetime, horizon: timedelta, **more: Any) -> Forecast | NoPlanReason:
    try:
        return forecast(
            history.times,
            history.column(LOAD)[row],
            signal=LOAD.name,
            entity=history.entities[row],
            now=now,
            horizon=horizon,
            step=history.step,
            **more,
        )
    except _WRONG:
        return NoPlanReason.FAILED
