"""Two tiers of forecasts: a fast one for every service at every plan, a slow one with Prophet once a night."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from outrider.model import EntityRef, Forecast, NoPlanReason, SignalKey, Window
from planner.forecast.prophet import Fits
from planner.forecast.select import FAST_MODELS, PROPHET, fit_by_night, forecast, forecast_rows

__all__ = ["FAST_MODELS", "LOAD", "SLOW_MODELS", "Answers", "fast", "nightly", "nights"]

LOAD = SignalKey("svc_requests_per_second")
SLOW_MODELS = (PROPHET,)
Answers = Mapping[EntityRef, Forecast | NoPlanReason]
Nights = Mapping[EntityRef, Fits]
_WRONG = (ValueError, ArithmeticError, RuntimeError)


def fast(
    history: Window, now: datetime, horizon: timedelta, known_nights: Nights | None = None
) -> dict[EntityRef, Forecast | NoPlanReason]:
    """A forecast of the load of every service of a window of cleaned values, in a time fit for every plan.

    Those of ``known_nights`` listen to their Prophets too, which are not fitted anew; all others are forecast in one
    stroke. A service whose series cannot be forecast is answered with ``FAILED``: it costs nobody else a forecast.
    """
    with_night = known_nights or {}
    plain = [row for row, service in enumerate(history.entities) if service not in with_night]
    found = _many(history, plain, now, horizon)
    for row, service in enumerate(history.entities):
        if service in with_night:
            found[service] = _one(history, row, now, horizon, fits=with_night[service], may_fit=False)
    return found


def nights(history: Window, now: datetime, horizon: timedelta, before: Nights | None = None) -> dict[EntityRef, Fits]:
    """The Prophets of every service: seconds each. Those of ``before`` are not made again."""
    values, earlier = history.column(LOAD), before or {}
    return {
        service: fit_by_night(
            history.times, values[row], now=now, horizon=horizon, step=history.step, fits=earlier.get(service)
        )
        for row, service in enumerate(history.entities)
    }


def nightly(
    history: Window, now: datetime, horizon: timedelta, known_nights: Nights | None = None
) -> dict[EntityRef, Forecast | NoPlanReason]:
    """What every service is expected to do with Prophet heard wherever it helps."""
    fits = known_nights or {}
    return {
        service: _one(history, row, now, horizon, fits=fits.get(service))
        for row, service in enumerate(history.entities)
    }


def _many(
    history: Window, rows: Sequence[int], now: datetime, horizon: timedelta
) -> dict[EntityRef, Forecast | NoPlanReason]:
    services = [history.entities[row] for row in rows]
    values = history.column(LOAD)[np.asarray(rows, dtype=np.intp)]
    try:
        answers = forecast_rows(
            history.times, values, signal=LOAD.name, entities=services, now=now, horizon=horizon, step=history.step
        )
    except _WRONG:  # whose fault it is shows when each is asked alone
        return {
            service: _one(history, row, now, horizon, models=FAST_MODELS)
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
