"""Forecasts for the present, for detectors: per service the newest forecast that was early enough to act on.

A plan made after a traffic change includes the change, but its replicas still have to start. Load is therefore compared
with the forecast of an hour ago, or with the first forecast of a newer service. Plans from before a restart may have
other settings and are not used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityRef, Floats, Forecast, ForecastView, Plan

AHEAD = timedelta(hours=1)
"""Longer than the time to order and start replicas, and a horizon that is stored (``outrider forecast kept``)."""

KEPT = timedelta(days=2)
"""Retention of forecasts of a service that is no longer planned; a horizon is shorter."""

_LOW, _MIDDLE = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class _Levels:
    """One forecast. ``levels`` (3, slots): the lowest quantile, the median and the highest, NaN if not forecast."""

    signal: str
    made_at: datetime
    step_seconds: float
    times: Floats
    levels: Floats


class ForecastContext:
    """Remembers the forecasts of the last ``AHEAD``. Belongs to one cycle."""

    def __init__(self, ahead: timedelta = AHEAD) -> None:
        self._ahead = ahead
        self._forecasts: dict[EntityRef, deque[_Levels]] = {}
        self._view: ForecastView | None = None
        self._view_ends = -np.inf

    def add(self, plan: Plan) -> None:
        """Adds a new plan. A service without a forecast in it keeps its previous forecast.

        Forecasts made later than the new ones date from before a step back of the clock and are dropped.
        """
        for forecast in plan.forecasts:
            if forecast.score.folds > 0 and forecast.times.size:
                known = self._forecasts.setdefault(forecast.entity, deque())
                while known and known[-1].made_at > forecast.made_at:
                    known.pop()
                known.append(_levels(forecast))
                self._view_ends = -np.inf

    def view_at(self, now: datetime) -> ForecastView | None:
        """Returns the forecasts for the slot around ``now``, None before the first plan with a scored forecast."""
        at = now.timestamp()
        if not self._view_ends - 60.0 <= at < self._view_ends:
            self._view_ends = np.floor(at / 60.0) * 60.0 + 60.0  # a slot lasts at least a minute
            self._expire(now)
            self._view = _view([(entity, known[0]) for entity, known in self._forecasts.items()], at)
        return self._view

    def _expire(self, now: datetime) -> None:
        for entity, known in list(self._forecasts.items()):
            while len(known) > 1 and known[1].made_at <= now - self._ahead:
                known.popleft()
            if known[-1].made_at < now - KEPT:
                del self._forecasts[entity]


def _levels(forecast: Forecast) -> _Levels:
    unknown = np.full(forecast.times.size, np.nan)
    levels = (_LOW, _MIDDLE, max(forecast.quantiles))
    values = np.stack([forecast.quantiles.get(level, unknown) for level in levels])
    return _Levels(forecast.signal, forecast.made_at, forecast.step.total_seconds(), forecast.times, values)


def _view(forecasts: Sequence[tuple[EntityRef, _Levels]], at: float) -> ForecastView | None:
    if not forecasts:
        return None
    values = np.full((3, len(forecasts)), np.nan)
    for row, (_, forecast) in enumerate(forecasts):
        slot = int(np.searchsorted(forecast.times, at, side="right")) - 1
        if slot >= 0 and at < forecast.times[slot] + forecast.step_seconds:
            values[:, row] = forecast.levels[:, slot]
    return ForecastView(
        entities=tuple(entity for entity, _ in forecasts),
        signals=tuple(forecast.signal for _, forecast in forecasts),
        step_seconds=np.array([forecast.step_seconds for _, forecast in forecasts]),
        made_at=np.array([forecast.made_at.timestamp() for _, forecast in forecasts]),
        low=values[0],
        middle=values[1],
        high=values[2],
    )
