"""What becomes of a service if no replica is started: what waits now, and what the forecast adds to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from outrider.clock import from_unix, rfc3339
from outrider.documents.summaries import word
from outrider.text.i18n import Language, translate
from planner.capacity.demand import Case, Counted, queued, short_now
from planner.capacity.fluid_queue import beyond, waiting
from planner.performance import slo_capacity
from planner.performance.headroom import capacity_per_second


def facts(case: Case, count: Counted) -> dict[str, Any]:
    """Requests that wait longer than two seconds if the replicas of now stay as they are, by the median forecast.

    The queue of now stands before them. Replicas carry what was calibrated, whatever they are promised; requests
    that come while the load is above what keeps the promise are told apart, None where none bounds the count.
    ``short_now`` tells the replicas needed now and those that serve where the first are more, else it is None.
    """
    said, replicas = case.said, case.service.current_replicas
    promised = serves = capacity_per_second(case.calibration, replicas, 0.0)
    bounded = case.promise is not None and case.promise.verdict is slo_capacity.Verdict.BOUNDED
    if case.promise is not None and bounded:
        serves = replicas * case.promise.facts["calibrated"]["requests_per_second"]
    begins, median = np.array([case.now.timestamp()]), said.quantiles[0.5]
    found = waiting(said.times, median, begins, np.array([serves]), queued=queued(case))
    first = None if found.first_at is None else rfc3339(from_unix(found.first_at))
    broken = round(beyond(said.times, median, begins, np.array([promised]))) if bounded else None
    has = min(case.service.ready_replicas, replicas)
    return {
        "waited": round(found.waited),
        "requests": round(found.requests),
        "first_at": first,
        "beyond_promise": broken,
        "queued": queued(case),
        "short_now": {"need": count.now, "has": has} if short_now(case, count) else None,
    }


def lines(found: Mapping[str, Any] | None, replicas: int, language: Language) -> list[str]:
    """What ``facts`` says, as people read it; a service that is short now is never said to let nobody wait."""
    if not found:
        return []
    key = "plan.without" if found["waited"] >= 1 else "plan.without_none"
    short = found.get("short_now")  # a plan of an earlier version does not tell
    if short:
        key = "plan.without_short" if found["waited"] >= 1 else "plan.without_short_none"
    said = [translate(key, language, waited=f"{found['waited']:,.0f}", replicas=replicas, **(short or {}))]
    if found.get("beyond_promise"):
        said.append(translate("plan.without_promise", language, broken=f"{found['beyond_promise']:,.0f}"))
    return said


def when_lines(found: Mapping[str, Any] | None, language: Language) -> list[str]:
    """From when the service is short, and when replicas must be started for that, or why none can be."""
    if not found or not found["short_from"]:
        return []
    at = translate("plan.short_at_once", language) if found["is_now"] else found["short_from"]
    if found["start_by"] is None:
        limit = word("binding", found["limited_by"], language)
        return [translate("plan.short_limited", language, at=at, limit=limit)]
    key = "plan.short_past" if found["is_past"] else "plan.short_start"
    return [translate(key, language, at=at, by=found["start_by"])]
