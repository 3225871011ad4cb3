"""Checks that a rule runs when it fires: each adds one line to the timeline of its incident. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from alerts.state.machine import evidence_of
from detectors.statistics.theil_sen import all_pairs, theil_sen
from outrider.model import (
    Alert,
    AlertState,
    EntityKind,
    EntityRef,
    Floats,
    Incident,
    Plan,
    Recommendation,
    SignalKey,
    TimelineEntry,
)
from outrider.topology import Topology
from outrider.vocabulary.rules import RuleCheck
from remediation.decide.rule_actions import THEN
from service.engine.detect import RecentValues

SPAN = timedelta(minutes=10)
LONGER = 1.5  # prompts of the last minutes against those before
_TEXT = "incidents.timeline.check_"
_LEAST_POINTS = 5
_AVAILABLE = "_available_ratio"
_REQUESTS, _TOKENS = SignalKey("svc_requests_total"), SignalKey("svc_prompt_tokens_total")


@dataclass(frozen=True, slots=True)
class CheckFacts:
    """What checks read: recent values, the newest plan, and which services an entity affects."""

    values: RecentValues
    plan: Plan
    topology: Topology


def with_checks(
    incidents: Sequence[Incident], alerts: Sequence[Alert], facts: CheckFacts, now: datetime
) -> tuple[Incident, ...]:
    """Returns the incidents with the results of the checks of their firing rules, each written once."""
    by_fingerprint = {alert.fingerprint: alert for alert in alerts if alert.state is AlertState.FIRING}
    return tuple(_checked(incident, by_fingerprint, facts, now) for incident in incidents)


def _checked(incident: Incident, alerts: Mapping[str, Alert], facts: CheckFacts, now: datetime) -> Incident:
    if incident.resolved_at is not None:
        return incident
    own = [alerts[fingerprint] for fingerprint in incident.alerts if fingerprint in alerts]
    known = {(entry.what, entry.arguments.get("entity")) for entry in incident.timeline}
    results = (result for alert in own for result in _results(alert, facts))
    new = {
        (text, arguments["entity"]): TimelineEntry(now, text, arguments)
        for text, arguments in results
        if (text, arguments["entity"]) not in known
    }
    return replace(incident, timeline=(*incident.timeline, *new.values()), updated_at=now) if new else incident


def _results(alert: Alert, facts: CheckFacts) -> Iterator[tuple[str, dict[str, str]]]:
    for word in alert.annotations.get(THEN, "").split(","):
        check = _CHECKS.get(word)
        for result in check(alert, facts) if check is not None else ():
            yield f"{_TEXT}{word}", {"entity": str(alert.entity), **result}


def _time_to_exhaustion(alert: Alert, facts: CheckFacts) -> Iterator[dict[str, str]]:
    """Yields the hours until the ratio of the alert reaches its end at its present trend: 100 %, or 0 % available."""
    signal = next((item.signal for item in evidence_of(alert) if item.signal.endswith("_ratio")), None)
    if signal is None:
        return
    times, level = _values_of(alert.entity, alert.entity.kind, SignalKey(signal), facts.values)
    end = 0.0 if signal.endswith(_AVAILABLE) else 1.0
    left = np.abs(end - level)
    if times.size < _LEAST_POINTS or left[-1] <= 0.0:
        return
    trend = theil_sen(-left[None, :], times, all_pairs(times.size))
    if not trend.low[0] > 0:
        return
    hours = float(left[-1]) / float(trend.slope[0]) / 3600.0
    yield {"signal": signal, "percent": f"{level[-1] * 100:.0f}", "end": f"{end * 100:.0f}", "hours": f"{hours:.2g}"}


def _long_prompts(alert: Alert, facts: CheckFacts) -> Iterator[dict[str, str]]:
    """Yields the tokens of a prompt now and before, if prompts became much longer. No exporter names the tenant."""
    if alert.entity.kind is not EntityKind.SERVICE:
        return
    times, requests = _values_of(alert.entity, EntityKind.SERVICE, _REQUESTS, facts.values)
    token_times, tokens = _values_of(alert.entity, EntityKind.SERVICE, _TOKENS, facts.values)
    if times.size < _LEAST_POINTS or token_times.size < _LEAST_POINTS:
        return
    middle = times[-1] - SPAN.total_seconds() / 2
    now = _per_request(tokens[token_times > middle], requests[times > middle])
    before = _per_request(tokens[token_times <= middle], requests[times <= middle])
    if now is None or before is None or now < LONGER * before:
        return
    yield {"tokens": f"{now:.0f}", "before": f"{before:.0f}"}


def _capacity_plan(alert: Alert, facts: CheckFacts) -> Iterator[dict[str, str]]:
    """Yields the draft plan of each service that depends on the entity of the alert."""
    affected = {alert.entity, *facts.topology.affected_by(alert.entity)}
    for item in facts.plan.recommendations:
        if isinstance(item, Recommendation) and item.service in affected:
            counts = (item.current_replicas, item.target_replicas, item.gpus)
            running, needed, gpus = map(str, counts)
            yield {"entity": str(item.service), "running": running, "needed": needed, "gpus": gpus}


def _per_request(tokens: Floats, requests: Floats) -> float | None:
    return float(tokens.sum() / requests.sum()) if requests.sum() > 0 else None


def _values_of(entity: EntityRef, kind: EntityKind, key: SignalKey, values: RecentValues) -> tuple[Floats, Floats]:
    """The known values of the last minutes, with their times; empty for a signal that no detector reads."""
    try:
        window = values.window(kind, (key,), SPAN)
        row = window.entities.index(entity)
    except (KeyError, ValueError):
        return np.zeros(0), np.zeros(0)
    level = window.column(key)[row]
    known = np.isfinite(level)
    return window.times[known], level[known]


_CHECKS: Mapping[str, Callable[[Alert, CheckFacts], Iterator[dict[str, str]]]] = {
    RuleCheck.TIME_TO_EXHAUSTION.value: _time_to_exhaustion,
    RuleCheck.LONG_PROMPTS.value: _long_prompts,
    RuleCheck.CAPACITY_PLAN.value: _capacity_plan,
}
