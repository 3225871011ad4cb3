"""Expected traffic of a service: the forecast, or the seasonal baseline if no forecast is usable.

A forecast is usable if it has the same signal, slots as long as the readings, was made by this process and not in the
future, and covers now. Otherwise the seasonal baseline is used, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import Flags
from detectors.base.findings import evidence
from detectors.base.state_arrays import Arrays
from detectors.statistics.baseline import MATURE_SLOT_SECONDS, Expectation
from outrider.model import Evidence, Floats, ForecastView, Interval, Window
from outrider.vocabulary import catalog

RATE = "svc_requests_per_second"
SPAN = timedelta(minutes=10)  # a slot of the forecast; quantiles of longer slots are narrower
SCALES = 3.0  # around the baseline, if it replaces the forecast


class Reference(StrEnum):
    """Reference of the comparison, as the key of its text."""

    FORECAST = "traffic_was_forecast"
    NONE = "usual_no_forecast"
    PAST = "usual_forecast_past"
    OTHER_SIGNAL = "usual_forecast_of_other"
    OTHER_SLOT = "usual_forecast_other_slot"


_AGAINST = tuple(Reference)


@dataclass(frozen=True, slots=True)
class ExpectedTraffic:
    """Expected requests per second and their source; arrays of shape (entities,), NaN unknown.

    ``against`` are indexes into ``Reference``, ``place`` those of the entities in ``foreseen``, -1 for none.
    """

    low: Floats
    middle: Floats
    high: Floats
    against: NDArray[np.intp]
    place: NDArray[np.intp]
    foreseen: ForecastView | None
    at: float

    @property
    def forecast(self) -> Flags:
        """True if the forecast is used."""
        result: Flags = self.against == _AGAINST.index(Reference.FORECAST)
        return result

    def evidence(self, row: int) -> Evidence:
        """Reference of a row: the forecast and its time, or the reason that there is none."""
        foreseen, place, text = self.foreseen, int(self.place[row]), _AGAINST[self.against[row]]
        if foreseen is None or place < 0:
            return evidence(RATE, None, text)
        ago = max(0.0, self.at - float(foreseen.made_at[place]))  # after a clock step back it lies in the future
        arguments = {"minutes": f"{ago / 60.0:.0f}"}
        if text is Reference.FORECAST:
            low, middle, high = (float(item[row]) for item in (self.low, self.middle, self.high))
            return evidence(RATE, middle, text, Interval(low, high), low=low, middle=middle, high=high, **arguments)
        if text is Reference.OTHER_SIGNAL:
            other = foreseen.signals[place]
            units = {"unit": _unit(other), "wanted_unit": _unit(RATE)}
            return evidence(RATE, None, text, None, other=other, wanted=RATE, **units)
        if text is Reference.OTHER_SLOT:
            long, wanted = float(foreseen.step_seconds[place]), SPAN.total_seconds()
            return evidence(RATE, None, text, None, seconds=long, wanted=wanted)
        return evidence(RATE, None, text, None, **arguments)


def expected(window: Window, memory: Arrays, usual: Expectation, slot: int) -> ExpectedTraffic:
    """Expected traffic now.

    ``usual`` is the baseline of the one signal, ``memory`` its state, ``slot`` the half hour of the day.
    """
    at, count = float(window.times[-1]), len(window.entities)
    ripe = memory["slot_seconds"][:, 0, slot] >= MATURE_SLOT_SECONDS
    level, reach = np.where(ripe, usual.level[:, 0], np.nan), SCALES * usual.scale[:, 0]
    low, middle, high = level - reach, level, level + reach
    foreseen = window.foreseen
    against, place = np.full(count, _AGAINST.index(Reference.NONE)), np.full(count, -1, dtype=np.intp)
    if foreseen is not None:
        rows = {entity: row for row, entity in enumerate(foreseen.entities)}
        place = np.fromiter((rows.get(item, -1) for item in window.entities), dtype=np.intp, count=count)
        there = place >= 0
        against = np.where(there, _judged(foreseen, at)[place], against) if there.any() else against
        use = against == _AGAINST.index(Reference.FORECAST)
        low, middle, high = (
            np.where(use, item[place], other) if there.any() else other
            for item, other in ((foreseen.low, low), (foreseen.middle, middle), (foreseen.high, high))
        )
    return ExpectedTraffic(low, middle, high, np.asarray(against, dtype=np.intp), place, foreseen, at)


def _judged(foreseen: ForecastView, at: float) -> NDArray[np.intp]:
    """Usability of each forecast, as an index into ``Reference``."""
    same = np.array([signal == RATE for signal in foreseen.signals], dtype=np.bool_)
    reaches = (
        np.isfinite(foreseen.low) & np.isfinite(foreseen.middle) & np.isfinite(foreseen.high) & (foreseen.made_at <= at)
    )
    slots = np.isclose(foreseen.step_seconds, SPAN.total_seconds())
    kinds = [Reference.OTHER_SIGNAL, Reference.OTHER_SLOT, Reference.PAST]
    places = np.array([_AGAINST.index(kind) for kind in kinds], dtype=np.intp)
    return np.asarray(
        np.select([~same, ~slots, ~reaches], list(places), _AGAINST.index(Reference.FORECAST)), dtype=np.intp
    )


def _unit(signal: str) -> str:
    known = catalog.signals().get(signal)
    return known.unit if known else "?"
