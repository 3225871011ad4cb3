"""Impact on a service if no replica is started: requests waiting now, and those the forecast adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outrider.clock import from_unix, rfc3339
from outrider.documents.summaries import word
from outrider.text.i18n import Language, translate
from planner.capacity.demand import DemandInputs, ReplicaDemand, is_short_now, waiting_requests
from planner.capacity.fluid_queue import requests_beyond, simulate_queue
from planner.performance import slo_capacity
from planner.performance.headroom import capacity_per_second

ORDERED = "ordered"
"""In place of a limit: enough replicas are ordered, so that none is to be started although more are needed now."""


def facts(demand_inputs: DemandInputs, count: ReplicaDemand) -> dict[str, Any]:
    """Requests that wait longer than two seconds with the current replicas, by the median forecast.

    The current queue is served first. Replicas serve what was calibrated, regardless of the SLO. Requests that arrive
    above the capacity under the SLO are counted apart, None if no SLO bounds it. ``short_now`` holds the replicas
    needed now and those that serve if there are too few, otherwise None.
    """
    forecast, replicas = demand_inputs.forecast, demand_inputs.service.current_replicas
    under_slo = serves = capacity_per_second(demand_inputs.calibration, replicas, 0.0)
    bounded = demand_inputs.slo is not None and demand_inputs.slo.verdict is slo_capacity.Verdict.BOUNDED
    if demand_inputs.slo is not None and bounded:
        serves = replicas * demand_inputs.slo.facts["calibrated"]["requests_per_second"]
    begins, median = np.array([demand_inputs.now.timestamp()]), forecast.quantiles[0.5]
    result = simulate_queue(forecast.times, median, begins, np.array([serves]), queued=waiting_requests(demand_inputs))
    first = None if result.first_at is None else rfc3339(from_unix(result.first_at))
    above_slo = round(requests_beyond(forecast.times, median, begins, np.array([under_slo]))) if bounded else None
    serving = min(demand_inputs.service.ready_replicas, replicas)
    return {
        "waited": round(result.waited),
        "requests": round(result.requests),
        "first_at": first,
        "beyond_promise": above_slo,
        "queued": waiting_requests(demand_inputs),
        "short_now": {"need": count.now, "has": serving} if is_short_now(demand_inputs, count) else None,
    }


def lines(impact: Mapping[str, Any] | None, replicas: int, language: Language) -> list[str]:
    """Text of ``facts``; a service that is short now is never reported as free of waiting."""
    if not impact:
        return []
    key = "plan.without" if impact["waited"] >= 1 else "plan.without_none"
    short = impact.get("short_now")  # absent from plans of earlier versions
    if short:
        key = "plan.without_short" if impact["waited"] >= 1 else "plan.without_short_none"
    text = [translate(key, language, waited=f"{impact['waited']:,.0f}", replicas=replicas, **(short or {}))]
    if impact.get("beyond_promise"):
        text.append(translate("plan.without_slo", language, broken=f"{impact['beyond_promise']:,.0f}"))
    return text


def when_lines(shortage: Mapping[str, Any] | None, language: Language, *, covered: bool = False) -> list[str]:
    """Text of the time from which the service is short, and the latest start of replicas or the limit against it.

    ``covered``: none is to be started before, so that the need is a later one.
    """
    if not shortage or not shortage["short_from"]:
        return []
    at = translate("plan.short_at_once", language) if shortage["is_now"] else shortage["short_from"]
    if shortage["start_by"] is None:
        if shortage["limited_by"] == ORDERED:
            return [translate("plan.short_ordered", language, at=at)]
        limit = word("binding", shortage["limited_by"], language)
        return [translate("plan.short_limited", language, at=at, limit=limit)]
    key = "plan.short_past" if shortage["is_past"] else "plan.short_next" if covered else "plan.short_start"
    return [translate(key, language, at=at, by=shortage["start_by"])]
