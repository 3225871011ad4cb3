"""Bound rule of a service, chosen by a replay of its own history."""

from __future__ import annotations

from datetime import timedelta

from outrider.errors import UsageError
from outrider.model import Floats
from planner.capacity.lead_bound import DEFAULT_RULE, RULES, BoundRule
from planner.replay.backtest import Trace
from planner.replay.score import MOST_STARTUP, choose_policy
from planner.replay.workload import build_workload


def best_rule(times: Floats, values: Floats, step: timedelta, lead: timedelta) -> BoundRule:
    """Returns the rule chosen at the end of a replay of this history; the default one with too little history.

    ``times`` are unix seconds on an even grid, missing ``values`` NaN. Uses the same function as ``outrider capacity
    replay``, at a start-up time of ``lead``.
    """
    startup = min(max(lead, timedelta(minutes=1)), MOST_STARTUP)
    try:
        traffic = build_workload(Trace("history", times, values, step))
    except UsageError:
        return DEFAULT_RULE
    return RULES[int(choose_policy(traffic, startup)[1][-1])]
