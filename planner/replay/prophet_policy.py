"""Reference policy with a default forecaster: the capacity formula on Prophet's default forecast.

Prophet is fitted on the values themselves every two hours of the trace, on the data known then. Its peak until a
replica could serve goes through the formula: replicas = peak x (1 + buffer) / capacity of a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats
from planner.capacity.lead_bound import fill_gaps, highest_between
from planner.forecast.prophet import default_forecast
from planner.forecast.series import Series
from planner.replay.policies import Timetable, round_up
from planner.replay.workload import Workload

REFIT_EVERY = timedelta(hours=2)
BUFFERS = (0.25, 0.0, 0.5, 1.0, 2.0)
"""The formula's default buffer, none, and far larger ones than used in practice."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Forecast of each fit: (fits, slots ahead); column 0 is the slot of ``begins``, the first unknown one."""

    begins: NDArray[np.int64]
    predicted: Floats


def fit_curves(
    traffic: Workload, first: int, longest: timedelta, progress: Callable[[float], None] = lambda _share: None
) -> Curves:
    """Fits every two hours from minute ``first`` on, evaluated far enough for start-up times of up to ``longest``.

    If Stan finds no optimum the newest value is carried forward. Slow: a few tenths of a second per fit.
    """
    wide = traffic.slot_minutes
    every = max(1, round(REFIT_EVERY / timedelta(minutes=wide)))
    steps = every + 2 + -(-round(longest / timedelta(minutes=1)) // wide)
    begins = np.arange(max(2, first // wide), traffic.slots.size + 1, every)
    known = fill_gaps(traffic.slots, traffic.season)
    predicted = np.empty((begins.size, steps))
    for row, begin in enumerate(begins.tolist()):
        predicted[row] = known[begin - 1]
        with suppress(RuntimeError, ValueError):
            predicted[row] = default_forecast(Series(0.0, wide * 60.0, traffic.slots[:begin]), steps)
        progress((row + 1) / begins.size)
    return Curves(begins, np.maximum(predicted, 0.0))


def formula_policy(
    traffic: Workload, curves: Curves, startup: timedelta, buffers: Sequence[float] = BUFFERS
) -> tuple[Timetable, Sequence[float]]:
    """Replicas of every minute, one lane per buffer. A slot is known when it is complete, and so is its fit.

    Slots are means, taken at their middle. Minutes before the first fit have the replicas of the newest known slot.
    """
    wide, minutes = traffic.slot_minutes, np.arange(traffic.load.size)
    fit = np.searchsorted(curves.begins * wide, minutes, side="right") - 1
    row = np.maximum(fit, 0)
    begin = minutes / wide - curves.begins[row] - 0.5
    peak = highest_between(curves.predicted[row], begin, begin + (startup / timedelta(minutes=1) + 1.0) / wide)
    known = fill_gaps(traffic.slots, traffic.season)[np.maximum(minutes // wide - 1, 0)]
    peak = np.where(fit < 0, known, peak)
    needs = round_up(peak[:, None] * (1.0 + np.array(buffers)) / traffic.per_replica)
    return Timetable("prophet", np.maximum(needs, 1.0)), buffers
