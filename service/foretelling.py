"""What was forecast for now, for detectors: of the plans of this start-up the newest that could still be acted upon.

A plan that is made while traffic is off already has taken that up, and capacity for it has yet to start. So what
comes is held against what was said an hour before; until this process has a plan so old, against its first one.
Plans of an earlier start-up may have been made with other settings, and are not looked at.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

import numpy as np

from outrider.model import Forecast, Foreseen, Plan

AHEAD = timedelta(hours=1)
"""Longer than replicas take to be ordered and started, and a horizon that is kept (``outrider forecast kept``)."""

_LOW, _MIDDLE = 0.05, 0.5


class Foretelling:
    """Remembers the plans of the last ``AHEAD``. One of it belongs to one cycle."""

    def __init__(self, ahead: timedelta = AHEAD) -> None:
        self._ahead = ahead
        self._plans: deque[tuple[Forecast, ...]] = deque()
        self._slot: tuple[tuple[Forecast, ...], Foreseen] | None = None
        self._ends = -np.inf

    def take(self, plan: Plan) -> None:
        """A new plan. One without forecasts says nothing, and the one before goes on speaking."""
        told = tuple(said for said in plan.forecasts if said.score.folds > 0 and said.times.size)
        if told:
            self._plans.append(told)

    def at(self, now: datetime) -> Foreseen | None:
        """What is forecast of the slot around ``now``, None before the first plan with a forecast that was judged."""
        while len(self._plans) > 1 and self._plans[1][0].made_at <= now - self._ahead:
            self._plans.popleft()
        if not self._plans:
            return None
        oldest, instant = self._plans[0], now.timestamp()
        if self._slot is None or self._slot[0] is not oldest or not self._ends - 60.0 <= instant < self._ends:
            self._ends = np.floor(instant / 60.0) * 60.0 + 60.0  # slots are no shorter than minutes
            self._slot = oldest, _foreseen(oldest, instant)
        return self._slot[1]


def _foreseen(told: tuple[Forecast, ...], instant: float) -> Foreseen:
    values = np.full((3, len(told)), np.nan)
    for row, said in enumerate(told):
        place = int(np.searchsorted(said.times, instant, side="right")) - 1
        if place >= 0 and instant < said.times[place] + said.step.total_seconds():
            levels = (_LOW, _MIDDLE, max(said.quantiles))
            values[:, row] = [said.quantiles[level][place] if level in said.quantiles else np.nan for level in levels]
    return Foreseen(
        entities=tuple(said.entity for said in told),
        signals=tuple(said.signal for said in told),
        step_seconds=np.array([said.step.total_seconds() for said in told]),
        made_at=np.array([said.made_at.timestamp() for said in told]),
        low=values[0],
        middle=values[1],
        high=values[2],
    )
