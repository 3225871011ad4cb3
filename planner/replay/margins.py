"""How far above the median a service is planned: the margin that would have been best on its own past."""

from __future__ import annotations

from datetime import timedelta

from outrider.errors import UsageError
from outrider.model import Floats
from planner.capacity.lead_bound import DEFAULT_MARGIN
from planner.replay.backtest import Trace
from planner.replay.score import MOST_STARTUP, tuned
from planner.replay.workload import world


def margin_of(times: Floats, values: Floats, step: timedelta, lead: timedelta) -> float:
    """The margin that the replay of the loop on this history ends with; the usual one with too little history.

    ``times`` are unix seconds on an even grid, missing ``values`` NaN. The very function that
    ``outrider capacity replay`` runs, at a start-up of ``lead``.
    """
    startup = min(max(lead, timedelta(minutes=1)), MOST_STARTUP)
    try:
        traffic = world(Trace("history", times, values, step))
    except UsageError:
        return DEFAULT_MARGIN
    return float(tuned(traffic, startup)[1][-1])
