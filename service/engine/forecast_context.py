"""What was forecast for now, for detectors: of each service the newest forecast that could still be acted upon.

A plan that is made while traffic is off already has taken that up, and capacity for it has yet to start. So what
comes is held against what was said an hour before; of a service without a forecast so old, against its first one.
Plans of an earlier start-up may have been made with other settings, and are not looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.model import EntityRef, Floats, Forecast, ForecastView, Plan

AHEAD = timedelta(hours=1)
"""Longer than replicas take to be ordered and started, and a horizon that is kept (``outrider forecast kept``)."""

KEPT = timedelta(days=2)
"""What was forecast of a service that is planned no more is remembered so long; a horizon is shorter."""

_LOW, _MIDDLE = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class _Said:
    """One forecast: ``levels`` (3, slots) are its lowest quantile, its median and its highest, NaN where not told."""

    signal: str
    made_at: datetime
    step_seconds: float
    times: Floats
    levels: Floats


class ForecastContext:
    """Remembers what was forecast in the last ``AHEAD``. One of it belongs to one cycle."""

    def __init__(self, ahead: timedelta = AHEAD) -> None:
        self._ahead = ahead
        self._held: dict[EntityRef, deque[_Said]] = {}
        self._foreseen: ForecastView | None = None
        self._ends = -np.inf

    def take(self, plan: Plan) -> None:
        """A new plan. Of a service without a forecast in it the one before goes on speaking.

        Forecasts that were made later than the new ones were made under a clock that has been set back since.
        """
        for said in plan.forecasts:
            if said.score.folds > 0 and said.times.size:
                held = self._held.setdefault(said.entity, deque())
                while held and held[-1].made_at > said.made_at:
                    held.pop()
                held.append(_kept(said))
                self._ends = -np.inf

    def at(self, now: datetime) -> ForecastView | None:
        """What is forecast of the slot around ``now``, None before the first plan with a forecast that was judged."""
        instant = now.timestamp()
        if not self._ends - 60.0 <= instant < self._ends:
            self._ends = np.floor(instant / 60.0) * 60.0 + 60.0  # slots are no shorter than minutes
            self._forget(now)
            self._foreseen = _foreseen([(entity, held[0]) for entity, held in self._held.items()], instant)
        return self._foreseen

    def _forget(self, now: datetime) -> None:
        for entity, held in list(self._held.items()):
            while len(held) > 1 and held[1].made_at <= now - self._ahead:
                held.popleft()
            if held[-1].made_at < now - KEPT:
                del self._held[entity]


def _kept(said: Forecast) -> _Said:
    unknown = np.full(said.times.size, np.nan)
    levels = (_LOW, _MIDDLE, max(said.quantiles))
    values = np.stack([said.quantiles.get(level, unknown) for level in levels])
    return _Said(said.signal, said.made_at, said.step.total_seconds(), said.times, values)


def _foreseen(told: Sequence[tuple[EntityRef, _Said]], instant: float) -> ForecastView | None:
    if not told:
        return None
    values = np.full((3, len(told)), np.nan)
    for row, (_, said) in enumerate(told):
        place = int(np.searchsorted(said.times, instant, side="right")) - 1
        if place >= 0 and instant < said.times[place] + said.step_seconds:
            values[:, row] = said.levels[:, place]
    return ForecastView(
        entities=tuple(entity for entity, _ in told),
        signals=tuple(said.signal for _, said in told),
        step_seconds=np.array([said.step_seconds for _, said in told]),
        made_at=np.array([said.made_at.timestamp() for _, said in told]),
        low=values[0],
        middle=values[1],
        high=values[2],
    )
