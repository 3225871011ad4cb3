"""Whether as much traffic comes as was forecast; where no forecast can be used, as is usual at this hour.

The mean of ten minutes, as long as a slot of the forecast, is held against the forecast's lowest and highest quantile:
the highest is what replicas are planned for. Outside is what lies beyond them and far from the median, too, for five
minutes; it ends after five minutes inside. A forecast counts if it is of the same signal, of slots of the same
length, made by this process, and reaches as far as now. Else what is usual at this hour stands in, and why is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors import readings
from detectors.baseline import MATURE_SLOT_SECONDS, SLOT_SECONDS, SLOTS, Usual
from detectors.memory import Arrays
from detectors.spells import Flags
from detectors.verdicts import evidence, oddity
from outrider import catalog, windows
from outrider.model import (
    EntityRef,
    Evidence,
    Finding,
    Floats,
    Foreseen,
    Interval,
    NoVerdict,
    NoVerdictReason,
    Window,
)

NAME = "traffic-forecast"  # what is told here as; no page is about it
RATE = "svc_requests_per_second"
SPAN = timedelta(minutes=10)  # a slot of the forecast: of longer ones the quantiles lie closer together
PERSISTS = timedelta(minutes=5)  # outside until it is told, and inside until it is over
MORE, FEWER = 1.3, 0.6  # of the median: above the scatter of arrivals, and below a day the calendar names
SCALES = 3.0  # about usual, where that stands in for the forecast
SEEN_SHARE = 0.5  # of the ten minutes: a mean of fewer is no level
STRETCH = 2.0  # of the usual time between readings: no reading speaks for more of a gap before it
DEFAULTS: dict[str, Any] = {"off_side": 0, "off_since": np.nan, "off_back": np.nan, "off_told": False}


class Against(StrEnum):
    """What traffic is held against, as the key of the text that says so."""

    FORECAST = "traffic_was_forecast"
    NONE = "usual_no_forecast"
    PAST = "usual_forecast_past"
    OTHER_SIGNAL = "usual_forecast_of_other"
    OTHER_SLOT = "usual_forecast_other_slot"


_AGAINST = tuple(Against)


@dataclass(frozen=True, slots=True)
class Expected:
    """What should come, in requests per second, and who says so; arrays of shape (entities,), NaN unknown.

    ``against`` are places in ``Against``, ``place`` those of the entities in ``foreseen``, -1 for none.
    """

    low: Floats
    middle: Floats
    high: Floats
    against: NDArray[np.intp]
    place: NDArray[np.intp]
    foreseen: Foreseen | None
    at: float

    @property
    def forecast(self) -> Flags:
        """Where the forecast speaks."""
        found: Flags = self.against == _AGAINST.index(Against.FORECAST)
        return found

    def why(self, row: int) -> Evidence:
        """What a row is held against: the forecast and when it was made, or why there is none."""
        said, place, text = self.foreseen, int(self.place[row]), _AGAINST[self.against[row]]
        if said is None or place < 0:
            return evidence(RATE, None, text)
        told = {"minutes": f"{(self.at - float(said.made_at[place])) / 60.0:.0f}"}
        if text is Against.FORECAST:
            low, middle, high = (float(one[row]) for one in (self.low, self.middle, self.high))
            return evidence(RATE, middle, text, Interval(low, high), low=low, middle=middle, high=high, **told)
        if text is Against.OTHER_SIGNAL:
            other = said.signals[place]
            units = {"unit": _unit(other), "wanted_unit": _unit(RATE)}
            return evidence(RATE, None, text, None, other=other, wanted=RATE, **units)
        if text is Against.OTHER_SLOT:
            long, wanted = float(said.step_seconds[place]), SPAN.total_seconds()
            return evidence(RATE, None, text, None, seconds=long, wanted=wanted)
        return evidence(RATE, None, text, None, **told)


def expected(window: Window, memory: Arrays, usual: Usual) -> Expected:
    """What should come now; ``usual`` is of the one signal, with the ``memory`` of its baseline beside it."""
    at, count = float(window.times[-1]), len(window.entities)
    ripe = memory["slot_seconds"][:, 0, int(at % 86400.0 / SLOT_SECONDS) % SLOTS] >= MATURE_SLOT_SECONDS
    level, reach = np.where(ripe, usual.level[:, 0], np.nan), SCALES * usual.scale[:, 0]
    low, middle, high = level - reach, level, level + reach
    said = window.foreseen
    against, place = np.full(count, _AGAINST.index(Against.NONE)), np.full(count, -1, dtype=np.intp)
    if said is not None:
        rows = {entity: row for row, entity in enumerate(said.entities)}
        place = np.fromiter((rows.get(one, -1) for one in window.entities), dtype=np.intp, count=count)
        there = place >= 0
        against = np.where(there, _judged(said, at)[place], against) if there.any() else against
        use = against == _AGAINST.index(Against.FORECAST)
        low, middle, high = (
            np.where(use, one[place], other) if there.any() else other
            for one, other in ((said.low, low), (said.middle, middle), (said.high, high))
        )
    return Expected(low, middle, high, np.asarray(against, dtype=np.intp), place, said, at)


def follow(window: Window, memory: Arrays, due: Expected, last: float) -> Floats:
    """Take up the mean of the last ten minutes, (entities,) per second, and return it. Changes ``memory``.

    ``last`` is the newest instant that was taken up before: what is not told yet does not outlast a gap.
    """
    near, at, long = _near(window), due.at, PERSISTS.total_seconds()
    with np.errstate(invalid="ignore"):
        above = (near > due.high) & (near > MORE * due.middle)
        below = (near < due.low) & (near < FEWER * due.middle)
        known = np.isfinite(near) & np.isfinite(due.middle)
    side = above.astype(np.int64) - below.astype(np.int64)
    begins = known & (side != 0) & ((side != memory["off_side"]) | (~memory["off_told"] & (at - last > long)))
    inside = known & (side == 0) & (memory["off_side"] != 0)
    memory["off_back"] = np.where(inside, np.fmin(memory["off_back"], at), np.where(known, np.nan, memory["off_back"]))
    over = inside & (~memory["off_told"] | (at - memory["off_back"] >= long))
    memory["off_since"] = np.where(begins, at, np.where(over, np.nan, memory["off_since"]))
    memory["off_side"] = np.where(begins, side, np.where(over, 0, memory["off_side"]))
    stays = known & (side != 0) & ~begins
    lasts = stays & (at - memory["off_since"] >= long)
    memory["off_told"] = np.where(begins | over, False, memory["off_told"] | lasts)
    return near


def findings(
    entities: tuple[EntityRef, ...], memory: Arrays, near: Floats, due: Expected, silent: Flags, now: datetime
) -> list[Finding]:
    """What is outside, but for entities of which something else says so (``silent``); no fault and no page."""
    found = []
    for row in np.flatnonzero(memory["off_told"] & ~silent & np.isfinite(near) & np.isfinite(due.middle)):
        rate, middle, more = float(near[row]), float(due.middle[row]), bool(memory["off_side"][row] > 0)
        low, high = float(due.low[row]), float(due.high[row])
        limit = Interval(None, max(high, MORE * middle)) if more else Interval(min(low, FEWER * middle), None)
        told = evidence(RATE, rate, "traffic_above" if more else "traffic_below", limit, rate=rate, due=middle)
        far = abs(rate - middle) / max(rate, middle)
        found.append(
            oddity(
                NAME,
                entities[row],
                "above" if more else "below",
                signals=(RATE,),
                score=far,
                observed=rate,
                expected=limit,
                start=min(datetime.fromtimestamp(float(memory["off_since"][row]), tz=UTC), now),
                now=now,
                because=(told, due.why(int(row))),
            )
        )
    return found


def silences(window: Window, memory: Arrays, near: Floats, due: Expected) -> list[NoVerdict]:
    """What was outside and of which nobody can say any more: it is not over for that."""
    unsure = np.flatnonzero(memory["off_told"] & ~(np.isfinite(near) & np.isfinite(due.middle)))
    return [NoVerdict(NAME, window.entities[row], NoVerdictReason.NO_VALUES) for row in unsure]


def _near(window: Window) -> Floats:
    columns = windows.recent(window, SPAN)
    values = windows.believed(window, RATE)[:, columns]
    each = readings.spacing(window)[columns]  # cycles may come slower than they were ordered
    stands = np.minimum(each, STRETCH * np.median(each))
    seconds = np.where(np.isnan(values), 0.0, stands).sum(axis=1)
    return np.where(seconds >= SEEN_SHARE * SPAN.total_seconds(), windows.row_means(values), np.nan)


def _judged(said: Foreseen, at: float) -> NDArray[np.intp]:
    """Whether each forecast counts, as a place in ``Against``."""
    same = np.array([signal == RATE for signal in said.signals], dtype=np.bool_)
    reaches = np.isfinite(said.low) & np.isfinite(said.middle) & np.isfinite(said.high) & (said.made_at <= at)
    slots = np.isclose(said.step_seconds, SPAN.total_seconds())
    kinds = [Against.OTHER_SIGNAL, Against.OTHER_SLOT, Against.PAST]
    places = np.array([_AGAINST.index(one) for one in kinds], dtype=np.intp)
    return np.asarray(
        np.select([~same, ~slots, ~reaches], list(places), _AGAINST.index(Against.FORECAST)), dtype=np.intp
    )


def _unit(signal: str) -> str:
    known = catalog.signals().get(signal)
    return known.unit if known else "?"
