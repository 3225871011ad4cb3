"""Two tiers of forecasts: a fast one for every service at every plan, a slow one with Prophet once a night.

Whoever brings another fast tier changes ``fast`` alone: the plan asks for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from outrider.model import EntityRef, Forecast, NoPlanReason, SignalKey, Window
from planner.forecast.select import DEFAULT_MODELS, forecast

LOAD = SignalKey("svc_requests_per_second")
SLOW_MODELS = ("prophet",)
FAST_MODELS = tuple(name for name in DEFAULT_MODELS if name not in SLOW_MODELS)
Answers = Mapping[EntityRef, Forecast | NoPlanReason]


def fast(
    history: Window, now: datetime, horizon: timedelta, models: Sequence[str] = FAST_MODELS
) -> dict[EntityRef, Forecast | NoPlanReason]:
    """A forecast of the load of every service of a window of cleaned values, in a time fit for every plan.

    A service whose series cannot be forecast is answered with ``FAILED``: it costs nobody else a forecast.
    """
    values = history.column(LOAD)
    found: dict[EntityRef, Forecast | NoPlanReason] = {}
    for row, service in enumerate(history.entities):
        try:
            found[service] = forecast(
                history.times,
                values[row],
                signal=LOAD.name,
                entity=service,
                now=now,
                horizon=horizon,
                step=history.step,
                models=models,
            )
        except (ValueError, ArithmeticError, RuntimeError):
            found[service] = NoPlanReason.FAILED
    return found


def nightly(history: Window, now: datetime, horizon: timedelta) -> dict[EntityRef, Forecast | NoPlanReason]:
    """The same with every model that there is, Prophet among them: seconds a service."""
    return fast(history, now, horizon, DEFAULT_MODELS)
