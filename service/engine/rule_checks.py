"""Checks that a rule runs when it fires: each adds one line to the timeline of its incident. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from alerts.state.machine import evidence_of
from detectors.statistics.theil_sen import all_pairs, theil_sen
from outrider import windows
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
from outrider.vocabulary.tenants import NO_TENANT, name_of, service_of
from outrider.wire.cardinality import OTHER
from remediation.decide.rule_actions import THEN
from service.engine import prompt_length
from service.engine.detect import RecentValues

SPAN = timedelta(minutes=10)
LONGER = 2.0  # prompts of the last minute against the usual ones: another mix of requests is within that
RECENT = timedelta(minutes=1)
BEFORE = timedelta(minutes=2)  # older values show the usual shares of tenants
_TEXT = "incidents.timeline.check_"
_LEAST_POINTS = 5
_AVAILABLE = "_available_ratio"
_OF_TENANT = SignalKey("tenant_prompt_tokens_total")
_MOST_OF_IT = 0.5  # of the growth: less than that is not one tenant's
NEEDS = {EntityKind.TENANT: (_OF_TENANT,)}


Result = tuple[str, dict[str, str]]  # outcome, which completes the name of the text, and the arguments of the text


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
    known = {(_check_of(entry.what), entry.arguments.get("entity")) for entry in incident.timeline}
    new: dict[tuple[str, str], TimelineEntry] = {}
    for text, arguments in (result for alert in own for result in _results(alert, facts)):
        place = (_check_of(text), arguments["entity"])
        if place not in known:
            new.setdefault(place, TimelineEntry(now, text, arguments))
    return replace(incident, timeline=(*incident.timeline, *new.values()), updated_at=now) if new else incident


def _results(alert: Alert, facts: CheckFacts) -> Iterator[tuple[str, dict[str, str]]]:
    for word in alert.annotations.get(THEN, "").split(","):
        check = _CHECKS.get(word)
        for outcome, result in check(alert, facts) if check is not None else ():
            yield f"{_TEXT}{word}{outcome}", {"entity": str(alert.entity), **result}


def _check_of(text: str) -> str:
    """The check that wrote a line, whatever its outcome; another text as it is."""
    word = text.removeprefix(_TEXT)
    return next((check for check in _CHECKS if text.startswith(_TEXT) and word.startswith(check)), text)


def _time_to_exhaustion(alert: Alert, facts: CheckFacts) -> Iterator[Result]:
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
    result = {"signal": signal, "percent": f"{level[-1] * 100:.0f}", "end": f"{end * 100:.0f}", "hours": f"{hours:.2g}"}
    yield "", result


def _long_prompts(alert: Alert, facts: CheckFacts) -> Iterator[Result]:
    """Yields the tokens of a prompt now and usually, if prompts are much longer, and the tenant that causes it."""
    length = prompt_length.lengths(facts.values).get(alert.entity)
    if length is not None and length.ratio >= LONGER:
        outcome, sender = _sender(alert.entity, length.ratio, facts.values)
        yield outcome, {"tokens": f"{length.recent:.0f}", "before": f"{length.usual:.0f}", **sender}


def _sender(service: EntityRef, longer: float, values: RecentValues) -> Result:
    """The tenant that causes most of the longer prompts, with its shares now and before.

    Prompts are ``longer`` times as long: the shares are of the tokens of a mean prompt, whatever the request rate.
    Nothing if no source reports tenants. ``_spread``: no single tenant, with the largest one.
    """
    before, after = _shares_of_tenants(service, values)
    named = [name for name in after if name not in (OTHER, NO_TENANT)]
    if not named or not before:
        return "", {}
    growth = {name: max(0.0, longer * share - before.get(name, 0.0)) for name, share in after.items()}
    grown = max(named, key=lambda name: (growth[name], name))
    alone = growth[grown] >= _MOST_OF_IT * sum(growth.values()) > 0
    tenant = grown if alone else max(named, key=lambda name: (after[name], name))
    percent, earlier = (f"{100.0 * part.get(tenant, 0.0):.0f}" for part in (after, before))
    words = {"tenant": tenant, "percent": percent, "earlier": earlier}
    return ("_tenant" if alone else "_spread"), words


def _shares_of_tenants(service: EntityRef, values: RecentValues) -> tuple[dict[str, float], dict[str, float]]:
    """Share of each tenant in the prompt tokens of a service, before and in the last minute; empty without values."""
    window = values.window(EntityKind.TENANT, (_OF_TENANT,), prompt_length.SPAN)
    if not window.times.size:
        return {}, {}
    level = np.nan_to_num(windows.believed(window, _OF_TENANT))
    rows = [row for row, tenant in enumerate(window.entities) if service_of(tenant) == service]
    names = [name_of(window.entities[row]) for row in rows]
    result: list[dict[str, float]] = []
    age = window.times[-1] - window.times
    for part in (age >= BEFORE.total_seconds(), age < RECENT.total_seconds()):
        tokens = level[rows][:, part].sum(axis=1)
        shares = tokens / tokens.sum() if tokens.sum() > 0 else tokens
        result.append({name: float(share) for name, share in zip(names, shares, strict=True) if share > 0})
    return result[0], result[1]


def _capacity_plan(alert: Alert, facts: CheckFacts) -> Iterator[Result]:
    """Yields the draft plan of each service that depends on the entity of the alert."""
    affected = {alert.entity, *facts.topology.affected_by(alert.entity)}
    for item in facts.plan.recommendations:
        if isinstance(item, Recommendation) and item.service in affected:
            counts = (item.current_replicas, item.target_replicas, item.gpus)
            running, needed, gpus = map(str, counts)
            yield "", {"entity": str(item.service), "running": running, "needed": needed, "gpus": gpus}


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


_CHECKS: Mapping[str, Callable[[Alert, CheckFacts], Iterator[Result]]] = {
    RuleCheck.TIME_TO_EXHAUSTION.value: _time_to_exhaustion,
    RuleCheck.LONG_PROMPTS.value: _long_prompts,
    RuleCheck.CAPACITY_PLAN.value: _capacity_plan,
}
