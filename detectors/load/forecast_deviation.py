"""Deviation of traffic from its forecast, or from the seasonal baseline if no forecast is usable.

The ten-minute mean, as long as a forecast slot, is compared with the lowest and highest quantile of the forecast.
Replicas are planned for the highest. A deviation is outside both and far from the median for five minutes. It ends
after five minutes inside. It names no fault, and is suppressed while *gateway-fault* or *traffic-drop* explains it, or
if the calendar names the day. Without ten minutes of data or any expectation there is no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from detectors.base import sampling
from detectors.base.condition_durations import Flags, no_verdict_reasons
from detectors.base.findings import anomaly_finding, evidence
from detectors.base.state_arrays import Arrays
from detectors.load.expected_traffic import RATE, SPAN, ExpectedTraffic
from detectors.load.ingress_state import IngressDetector, IngressReading
from outrider import windows
from outrider.model import (
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    Window,
)

NAME = "traffic-forecast"
PERSISTS = timedelta(minutes=5)  # time outside before a report, and inside before its end
MORE, FEWER = 1.3, 0.6  # of the median; above the scatter of arrivals, below the effect of a calendar day
SEEN_SHARE = 0.5  # share of the ten minutes that must have data
STRETCH = 2.0  # of the usual interval; a reading covers at most this much of a data gap
LEARNING_SECONDS = 2 * 86400.0  # an hour of the day is known after two days


class ForecastDeviationDetector(IngressDetector):
    """More or fewer requests than forecast: names no fault; for reports."""

    name = NAME
    state_version = 1
    defaults: ClassVar[dict[str, Any]] = {
        **IngressDetector.defaults,
        "off_side": 0,
        "off_since": np.nan,
        "off_back": np.nan,
        "off_told": False,
    }

    def judge(self, window: Window, ingress: IngressReading, now: datetime) -> Iterable[Finding | NoVerdict]:
        """A finding per service that is outside for long; NoVerdict for unknown ones."""
        memory, due = ingress.memory, ingress.due
        near = _follow(window, memory, due, ingress.last)
        named = (memory["named_until"] >= due.at) | ingress.holiday
        other = memory["shut"] | memory["dropped"] | ((memory["off_side"] < 0) & named)
        result = _findings(window.entities, memory, near, due, other, now)
        return (*result, *_no_verdicts(window, memory, near, due))


def _follow(window: Window, memory: Arrays, due: ExpectedTraffic, last: float) -> Floats:
    """Updates and returns the mean of the last ten minutes, (entities,) per second. Changes ``memory``.

    ``last`` is the time of the previous update. A pending deviation does not survive a data gap.
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


def _findings(
    entities: tuple[EntityRef, ...], memory: Arrays, near: Floats, due: ExpectedTraffic, silent: Flags, now: datetime
) -> list[Finding]:
    """Deviations without another explanation (``silent``); no fault and no page."""
    findings = []
    for row in np.flatnonzero(memory["off_told"] & ~silent & np.isfinite(near) & np.isfinite(due.middle)):
        rate, middle, more = float(near[row]), float(due.middle[row]), bool(memory["off_side"][row] > 0)
        low, high = float(due.low[row]), float(due.high[row])
        limit = Interval(None, max(high, MORE * middle)) if more else Interval(min(low, FEWER * middle), None)
        observation = evidence(RATE, rate, "traffic_above" if more else "traffic_below", limit, rate=rate, due=middle)
        far = abs(rate - middle) / max(rate, middle)
        findings.append(
            anomaly_finding(
                NAME,
                entities[row],
                "above" if more else "below",
                signals=(RATE,),
                score=far,
                observed=rate,
                expected=limit,
                start=min(datetime.fromtimestamp(float(memory["off_since"][row]), tz=UTC), now),
                now=now,
                evidence_items=(observation, due.evidence(int(row))),
            )
        )
    return findings


def _no_verdicts(window: Window, memory: Arrays, near: Floats, due: ExpectedTraffic) -> list[NoVerdict]:
    """NoVerdicts and their reasons; a running deviation does not end for that."""
    known_rate, fit = np.isfinite(near), np.isfinite(due.middle)
    absent = ~known_rate & np.isnan(windows.believed(window, RATE)[:, -1])
    learning = ~known_rate | (memory["slot_seconds"][:, 0].sum(axis=1) < LEARNING_SECONDS)
    rows = np.flatnonzero(absent)
    reasons = dict(zip(rows.tolist(), no_verdict_reasons(window.column_status(RATE), rows), strict=True))
    for row in np.flatnonzero(~(known_rate & fit) & ~absent).tolist():
        reasons[row] = NoVerdictReason.WARMING_UP if learning[row] else NoVerdictReason.NO_EXPECTATION
    return [NoVerdict(NAME, window.entities[row], reasons[row]) for row in sorted(reasons)]


def _near(window: Window) -> Floats:
    columns = windows.recent(window, SPAN)
    values = windows.believed(window, RATE)[:, columns]
    each = sampling.spacing(window)[columns]  # cycles may be slower than configured
    stands = np.minimum(each, STRETCH * np.median(each))
    seconds = np.where(np.isnan(values), 0.0, stands).sum(axis=1)
    return np.where(seconds >= SEEN_SHARE * SPAN.total_seconds(), windows.mean_by_row(values), np.nan)
