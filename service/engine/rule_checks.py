"""Checks that a rule runs when it fires: each adds one line to the timeline of its incident. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from alerts.state.machine import evidence_of
from detectors.statistics.theil_sen import all_pairs, theil_sen
from outrider.model import Alert, AlertState, EntityKind, EntityRef, Floats, Incident, SignalKey, TimelineEntry
from outrider.vocabulary.rules import RuleCheck
from remediation.decide.rule_actions import THEN
from service.engine.detect import RecentValues

SPAN = timedelta(minutes=10)
LONGER = 1.5  # prompts of the last minutes against those before
_TEXT = "incidents.timeline.check_"
_LEAST_POINTS = 5
_REQUESTS, _TOKENS = SignalKey("svc_requests_total"), SignalKey("svc_prompt_tokens_total")


def with_checks(
    incidents: Sequence[Incident], alerts: Sequence[Alert], values: RecentValues, now: datetime
) -> tuple[Incident, ...]:
    """Returns the incidents with the results of the checks of their firing rules, each written once."""
    by_fingerprint = {alert.fingerprint: alert for alert in alerts if alert.state is AlertState.FIRING}
    return tuple(_checked(incident, by_fingerprint, values, now) for incident in incidents)


def _checked(incident: Incident, alerts: Mapping[str, Alert], values: RecentValues, now: datetime) -> Incident:
    if incident.resolved_at is not None:
        return incident
    own = [alerts[fingerprint] for fingerprint in incident.alerts if fingerprint in alerts]
    known = {(entry.what, entry.arguments.get("entity")) for entry in incident.timeline}
    new = [
        TimelineEntry(now, text, arguments)
        for alert in own
        for text, arguments in _results(alert, values)
        if (text, arguments["entity"]) not in known
    ]
    return replace(incident, timeline=(*incident.timeline, *new), updated_at=now) if new else incident


def _results(alert: Alert, values: RecentValues) -> Iterator[tuple[str, dict[str, str]]]:
    for word in alert.annotations.get(THEN, "").split(","):
        check = _CHECKS.get(word)
        found = check(alert, values) if check is not None else None
        if found is not None:
            yield f"{_TEXT}{word}", {"entity": str(alert.entity), **found}


def _time_to_exhaustion(alert: Alert, values: RecentValues) -> dict[str, str] | None:
    """Hours until the ratio of the alert reaches 100 % at its present trend; None without a rising trend."""
    signal = next((item.signal for item in evidence_of(alert) if item.signal.endswith("_ratio")), None)
    if signal is None:
        return None
    times, level = _values_of(alert.entity, alert.entity.kind, SignalKey(signal), values)
    if times.size < _LEAST_POINTS or level[-1] >= 1.0:
        return None
    trend = theil_sen(level[None, :], times, all_pairs(times.size))
    if not trend.low[0] > 0:
        return None
    hours = (1.0 - float(level[-1])) / float(trend.slope[0]) / 3600.0
    return {"signal": signal, "percent": f"{level[-1] * 100:.0f}", "hours": f"{hours:.2g}"}


def _long_prompts(alert: Alert, values: RecentValues) -> dict[str, str] | None:
    """Tokens of a prompt now and before; None unless prompts became much longer. No exporter names the tenant."""
    if alert.entity.kind is not EntityKind.SERVICE:
        return None
    times, requests = _values_of(alert.entity, EntityKind.SERVICE, _REQUESTS, values)
    token_times, tokens = _values_of(alert.entity, EntityKind.SERVICE, _TOKENS, values)
    if times.size < _LEAST_POINTS or token_times.size < _LEAST_POINTS:
        return None
    middle = times[-1] - SPAN.total_seconds() / 2
    now = _per_request(tokens[token_times > middle], requests[times > middle])
    before = _per_request(tokens[token_times <= middle], requests[times <= middle])
    if now is None or before is None or now < LONGER * before:
        return None
    return {"tokens": f"{now:.0f}", "before": f"{before:.0f}"}


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


_CHECKS: Mapping[str, Callable[[Alert, RecentValues], dict[str, str] | None]] = {
    RuleCheck.TIME_TO_EXHAUSTION.value: _time_to_exhaustion,
    RuleCheck.LONG_PROMPTS.value: _long_prompts,
}
