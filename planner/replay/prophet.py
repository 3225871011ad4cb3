"""The rival that forecasts by rote: the formula on what Prophet says as it comes out of the box.

Prophet is fitted on the values themselves every two hours of the trace, on what was known then alone, and its peak
until a replica could serve goes through the formula: replicas = peak x (1 + buffer) / what a replica carries.
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
from planner.replay.policies import Planned, ceiled
from planner.replay.workload import World

REFIT_EVERY = timedelta(hours=2)
BUFFERS = (0.25, 0.0, 0.5, 1.0, 2.0)
"""The formula's own buffer, none, and far more than anybody holds."""


@dataclass(frozen=True, slots=True)
class Curves:
    """What each fit said: (fits, slots ahead), column 0 the slot of ``begins``, the first that it had not seen."""

    begins: NDArray[np.int64]
    said: Floats


def fitted(
    traffic: World, first: int, longest: timedelta, progress: Callable[[float], None] = lambda _share: None
) -> Curves:
    """A fit every two hours from minute ``first`` on, evaluated so far that starts of up to ``longest`` can use it.

    Where Stan finds no optimum the newest value is carried on. Slow: a few tenths of a second a fit.
    """
    wide = traffic.slot_minutes
    every = max(1, round(REFIT_EVERY / timedelta(minutes=wide)))
    steps = every + 2 + -(-round(longest / timedelta(minutes=1)) // wide)
    begins = np.arange(max(2, first // wide), traffic.slots.size + 1, every)
    known = fill_gaps(traffic.slots, traffic.season)
    said = np.empty((begins.size, steps))
    for row, begin in enumerate(begins.tolist()):
        said[row] = known[begin - 1]
        with suppress(RuntimeError, ValueError):
            said[row] = default_forecast(Series(0.0, wide * 60.0, traffic.slots[:begin]), steps)
        progress((row + 1) / begins.size)
    return Curves(begins, np.maximum(said, 0.0))


def formula_of(
    traffic: World, curves: Curves, startup: timedelta, buffers: Sequence[float] = BUFFERS
) -> tuple[Planned, Sequence[float]]:
    """Replicas of every minute, a lane a buffer. A slot is known a minute after its instant, and so is a fit on it.

    The newest slot of a fit is the one before ``begins``: it speaks from a minute after that one's instant on.

    Minutes before the first fit, which are not replayed, have what carries them.
    """
    wide, minutes = traffic.slot_minutes, np.arange(traffic.load.size)
    fit = np.searchsorted((curves.begins - 1) * wide, minutes - 1, side="right") - 1
    row = np.maximum(fit, 0)
    begin = minutes / wide - curves.begins[row]  # below 0 until the first slot that it had not seen
    peak = highest_between(curves.said[row], begin, begin + (startup / timedelta(minutes=1) + 1.0) / wide)
    peak = np.where(fit < 0, traffic.load, peak)
    needs = ceiled(peak[:, None] * (1.0 + np.array(buffers)) / traffic.per_replica)
    return Planned("prophet", np.maximum(needs, 1.0)), buffers
