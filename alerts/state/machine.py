"""Alert state machine: pending -> firing -> resolved. Pure; all times are arguments.

An alert is one (rule, entity). Missing values do not resolve it, unless its rule gives a time. Its priority never falls
while it fires. An alert that returns after it resolved is a new episode with its own ``starts_at``. An alert on an
entity that the cluster reports as deleted resolves at once: its last values say nothing about the fleet any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite

from alerts.rules.context import SERVICE_LEVEL, ServiceContext, service_context
from alerts.rules.matching import Matcher, MissingVerdicts, plan_findings, priority_of
from alerts.rules.parser import PLAN
from alerts.state.silence import mute
from outrider.clock import parse_rfc3339, rfc3339
from outrider.model import (
    SCORE,
    Alert,
    AlertReason,
    AlertState,
    EntityRef,
    Evidence,
    Finding,
    NoVerdict,
    Plan,
    Priority,
)
from outrider.vocabulary.faults import faults
from outrider.vocabulary.rules import AbsentPolicy, Rule

__all__ = ["ServiceContext", "advance", "evidence_of", "fingerprint", "mute", "service_context"]

_MOST_EVIDENCE = 8
_FIRED_AT = "fired_at"
_GONE_SINCE = "gone_since"
_ABSENT_SINCE = "absent_since"
_DETECTORS = "detectors"
_PAIR = "priority_of_fault"  # label of alerts whose priority is the pair of their fault


@dataclass(frozen=True, slots=True)
class _Observation:
    """All findings of one (rule, entity) in this cycle, merged to the worst."""

    rule: Rule
    entity: EntityRef
    priority: Priority
    worst: Finding
    detectors: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    score: float


def fingerprint(rule: str, entity: EntityRef) -> str:
    """The stable id of the alert of a rule on an entity: 16 hex digits."""
    return hashlib.sha256(f"{rule}\n{entity.key}".encode()).hexdigest()[:16]


def advance(
    active: Sequence[Alert],
    findings: Sequence[Finding | NoVerdict],
    plan: Plan | None,
    rules: Sequence[Rule],
    context: ServiceContext,
    now: datetime,
    deleted: Collection[EntityRef] = (),
) -> tuple[Alert, ...]:
    """Advances every alert by one cycle.

    ``active`` are the pending and firing ones. ``plan`` None means that the planner did not run, which leaves its
    alerts unchanged. ``deleted`` are entities that no longer exist and have no alert. Returns all alerts that are
    pending or firing now and those that resolved in this cycle, by fingerprint.
    """
    known = {rule.name: rule for rule in rules}
    observed = (*findings, *(plan_findings(plan, rules, now) if plan is not None else ()))
    current = _merge(observed, Matcher.of(rules), context)
    missing_verdicts = MissingVerdicts.of(observed)
    alive = {alert.fingerprint: alert for alert in active if alert.state is not AlertState.RESOLVED}
    after: dict[str, Alert] = {}
    for print_, observation in current.items():
        if observation.entity in deleted:
            continue
        after[print_] = _holds(alive.get(print_), observation, print_, context, now)
    for print_, alert in alive.items():
        if alert.entity in deleted:
            after[print_] = replace(alert, state=AlertState.RESOLVED, reason=AlertReason.ENTITY_DELETED, ends_at=now)
            continue
        if print_ in current:
            continue
        detectors = _detectors(alert)
        if plan is None and all(name.startswith(PLAN) for name in detectors):
            after[print_] = alert
        elif missing_verdicts.about(detectors, alert.entity) and alert.rule in known:
            after[print_] = _kept(alert, known[alert.rule], context, now)
        else:
            after[print_] = _gone(alert, known.get(alert.rule), context, now)
    return tuple(after[print_] for print_ in sorted(after))


def evidence_of(alert: Alert) -> tuple[Evidence, ...]:
    """The evidence stored in an alert's annotations; texts are i18n keys with their arguments."""
    entries = json.loads(alert.annotations.get("evidence", "[]"))
    return tuple(
        Evidence(entry["signal"], entry["observed"], None, entry["text"], entry["arguments"]) for entry in entries
    )


def _merge(
    verdicts: Iterable[Finding | NoVerdict], matcher: Matcher, context: ServiceContext
) -> dict[str, _Observation]:
    groups: dict[str, list[tuple[Rule, Priority, Finding]]] = {}
    for finding in verdicts:
        if isinstance(finding, NoVerdict):
            continue
        for rule in matcher.rules_for(finding):
            entry = (rule, priority_of(rule, finding, context), finding)
            groups.setdefault(fingerprint(rule.name, finding.entity), []).append(entry)
    return {print_: _worst(entries) for print_, entries in groups.items()}


def _worst(entries: list[tuple[Rule, Priority, Finding]]) -> _Observation:
    ordered = sorted(entries, key=lambda entry: (entry[1].rank, -entry[2].score, entry[2].fingerprint))
    rule, priority, finding = ordered[0]
    evidence = [item for _, _, other in ordered for item in other.evidence]
    detectors = tuple(sorted({other.detector for _, _, other in ordered}))
    score = max(other.score for _, _, other in ordered)
    return _Observation(rule, finding.entity, priority, finding, detectors, tuple(evidence[:_MOST_EVIDENCE]), score)


def _holds(
    alert: Alert | None, observation: _Observation, print_: str, context: ServiceContext, now: datetime
) -> Alert:
    """The condition is true: start, wait, or keep firing."""
    rule = observation.rule
    if alert is None or _waiting_time_void(alert, rule, now):
        alert = Alert(
            fingerprint=print_,
            rule=rule.name,
            priority=observation.priority,
            entity=observation.entity,
            state=AlertState.PENDING,
            reason=AlertReason.CONDITION_SEEN,
            starts_at=now,
            seen_at=now,
        )
    firing = alert.state is AlertState.FIRING
    fires = firing or now - alert.starts_at >= rule.wait
    annotations = _annotations(observation)
    if fires:
        annotations[_FIRED_AT] = alert.annotations.get(_FIRED_AT, rfc3339(now))
    waiting = AlertReason.STILL_TRUE if alert.seen_at < now else AlertReason.CONDITION_SEEN
    return replace(
        alert,
        priority=_never_lower(alert.priority, observation.priority) if firing else observation.priority,
        state=AlertState.FIRING if fires else AlertState.PENDING,
        reason=waiting if firing or not fires else AlertReason.WAITING_TIME_OVER,
        seen_at=now,
        value=_finite(observation.worst.observed),
        fault=rule.fault or observation.worst.fault,
        labels=_labels(observation, context),
        annotations=annotations,
    )


def _waiting_time_void(alert: Alert, rule: Rule, now: datetime) -> bool:
    """True if a pending alert was unobserved for so long that its waiting time is void."""
    without_values = alert.reason is AlertReason.KEPT_WITHOUT_VALUES
    return alert.state is AlertState.PENDING and without_values and now - alert.seen_at > rule.wait


def _kept(alert: Alert, rule: Rule, context: ServiceContext, now: datetime) -> Alert:
    """No verdict: the alert stays, and the clear time restarts with the next values; a rule may end it after a time."""
    annotations = {key: text for key, text in alert.annotations.items() if key != _GONE_SINCE}
    if rule.absent is AbsentPolicy.RESOLVE:
        since = annotations.setdefault(_ABSENT_SINCE, rfc3339(now))
        if now - parse_rfc3339(since) >= rule.resolve_after:
            firing = alert.state is AlertState.FIRING
            reason = AlertReason.ABSENT_TOO_LONG if firing else AlertReason.NEVER_FIRED
            return replace(alert, state=AlertState.RESOLVED, reason=reason, ends_at=now)
    kept = replace(alert, reason=AlertReason.KEPT_WITHOUT_VALUES, annotations=annotations)
    return kept if alert.state is AlertState.PENDING else _raised(kept, context)


def _gone(alert: Alert, rule: Rule | None, context: ServiceContext, now: datetime) -> Alert:
    """The condition is false: drop a pending alert, resolve a firing one after its clear time."""
    if alert.state is AlertState.PENDING:
        return replace(alert, state=AlertState.RESOLVED, reason=AlertReason.NEVER_FIRED, ends_at=now)
    since = alert.annotations.get(_GONE_SINCE, rfc3339(now))
    if rule is None or now - parse_rfc3339(since) >= rule.clear:
        return replace(alert, state=AlertState.RESOLVED, reason=AlertReason.CONDITION_GONE, ends_at=now)
    annotations = {key: text for key, text in alert.annotations.items() if key != _ABSENT_SINCE} | {_GONE_SINCE: since}
    return _raised(replace(alert, reason=AlertReason.CONDITION_GONE, annotations=annotations), context)


def _raised(alert: Alert, context: ServiceContext) -> Alert:
    """An alert without new findings still escalates if its service starts to burn."""
    known = faults().get(alert.fault or "")
    if known is None or alert.labels.get(_PAIR) != "true" or not context.urgent(alert.entity):
        return alert
    return replace(alert, priority=_never_lower(alert.priority, known.burning))


def _never_lower(current: Priority, priority: Priority) -> Priority:
    return priority if priority.rank < current.rank else current


def _annotations(observation: _Observation) -> dict[str, str]:
    written: dict[str, str] = {
        "evidence": json.dumps(
            [
                {
                    "signal": item.signal,
                    "observed": _finite(item.observed),
                    "text": item.text,
                    "arguments": dict(item.arguments),
                }
                for item in observation.evidence
            ],
            ensure_ascii=False,
        ),
        "then": ",".join(observation.rule.then),
        "default_action_text": observation.rule.default_action_text,
        "runbook": observation.rule.runbook,
    }
    written[SCORE] = f"{observation.score:.2f}"
    value = _finite(observation.worst.observed)
    if value is not None:
        written["value"] = f"{value:.6g}"
    return {key: text for key, text in written.items() if text}


def _labels(observation: _Observation, context: ServiceContext) -> Mapping[str, str]:
    rule = observation.rule
    labels = dict(rule.labels) | {_DETECTORS: ",".join(observation.detectors)}
    services = ",".join(sorted(str(service) for service in context.services(observation.entity)))
    optional = {
        "services": services,
        "routes": ",".join(rule.routes),
        SERVICE_LEVEL: "true" if rule.service_level else "",
        _PAIR: "true" if rule.priority is None else "",
    }
    return labels | {key: text for key, text in optional.items() if text}


def _detectors(alert: Alert) -> tuple[str, ...]:
    return tuple(filter(None, alert.labels.get(_DETECTORS, "").split(",")))


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and isfinite(value) else None
