"""Chooses the quantile that the policy plans with: the best one on the traffic so far."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from outrider.model import Floats
from planner.capacity.lead_bound import MARGINS
from planner.replay.fleet import Run
from planner.replay.workload import Workload

PRICES = ((timedelta(days=7), 40.0), (timedelta(days=1), 80.0))
"""Price of waiting by age: if 1 % of the requests waited over the last week, 40 % more GPU-hours were justified.

For the last day it is 80 %, which reacts sooner. At the goal of 0.5 % both together pay for 60 % more: waiting that
replicas can prevent stays below it, and waiting that no level prevents buys none.
"""
PRICED_AT = timedelta(minutes=5)
"""A longer start-up time raises the price in proportion: a mistake lasts until a replica is ready."""
_COST_OVER = timedelta(days=7)
_EVERY_MINUTES = 10


def choose_margins(traffic: Workload, shadow: Run, startup: timedelta) -> tuple[NDArray[np.int64], Floats]:
    """Chooses the lane of each minute of the trace, and its level.

    ``shadow`` ran one lane for each of ``MARGINS``; the choice of a minute uses only earlier minutes. The best lane has
    the least GPU-hours, relative to the cheapest level, plus the price of the requests that waited.
    """
    cost = _sums(shadow.billed_minutes, round(_COST_OVER.total_seconds() / 60.0))
    cost = cost / np.maximum(cost.min(axis=1, keepdims=True), 1e-9)
    dearer = max(1.0, startup / PRICED_AT)
    for back, price in PRICES:
        span = round(back.total_seconds() / 60.0)
        # an incomplete window counts as full at the pace of its first day: one early minute of waiting
        # is not a week of it
        least = float(shadow.arrived[:1440].mean()) * span
        requests = np.maximum(_sums(shadow.arrived[:, None], span), least)
        cost = cost + dearer * price * _sums(shadow.waiting, span) / np.maximum(requests, 1e-9)
    lane = cost.argmin(axis=1)
    lane = np.concatenate([np.zeros(1, dtype=np.int64), lane[:-1]])
    lane = lane[np.arange(lane.size) // _EVERY_MINUTES * _EVERY_MINUTES]
    lanes = np.concatenate([np.full(shadow.first, lane[0]), lane]).astype(np.int64)[: traffic.load.size]
    return lanes, np.array(MARGINS)[lanes]


def _sums(values: Floats, span: int) -> Floats:
    """Sums over the last ``span`` rows including this one, fewer at the beginning."""
    sums = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    ends = np.arange(1, values.shape[0] + 1)
    result: Floats = sums[ends] - sums[np.maximum(0, ends - span)]
    return result
