"""Alert occurrences that operators judge, and the values stored with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from detectors.rules import tuning
from detectors.rules.rule_backtest import window_of
from detectors.rules.tunable_threshold import tunable_threshold_of
from outrider import log
from outrider.clock import rfc3339
from outrider.errors import StoreError, UsageError
from outrider.model import Alert, AlertReason, AlertState, EntityRef, Incident, SignalKey, Window
from outrider.ports import MetricStore, StateReader
from outrider.records.feedback import Feedback, Usefulness, judged
from outrider.vocabulary.rules import Rule

MAX_DURATION = timedelta(hours=6)  # of the values of one occurrence
_MAX_STORED = 100  # verdicts with values per request
_log = log.get("api")


def has_fired(alert: Alert) -> bool:
    """True if the occurrence fires or fired. False if it is pending, or ended within its waiting time."""
    return alert.state is AlertState.FIRING or (
        alert.state is AlertState.RESOLVED and alert.reason is not AlertReason.NEVER_FIRED
    )


def occurrence_of(state: StateReader, fingerprint: str, starts_at: datetime | None = None) -> Alert | None:
    """Returns the occurrence that started at a time (to the millisecond, as printed), else the newest that fired.

    None if there is no such alert or occurrence. Raises UsageError for an occurrence that has not fired.
    """
    occurrences = state.spells(fingerprint)
    if starts_at is None:
        alert = next((alert for alert in occurrences if has_fired(alert)), occurrences[0] if occurrences else None)
    else:
        alert = next((alert for alert in occurrences if rfc3339(alert.starts_at) == rfc3339(starts_at)), None)
    if alert is not None and not has_fired(alert):
        raise _not_fired(alert)
    return alert


def _not_fired(alert: Alert) -> UsageError:
    return UsageError(
        f"alert {alert.fingerprint!r} has not fired, so there is nothing to judge",
        hint="outrider alerts list --state firing lists alerts that have fired",
    )


def occurrences_in(state: StateReader, incident: Incident) -> tuple[Alert, ...]:
    """Returns the fired occurrences of an incident's alerts, in the order they joined it."""
    alerts = (_occurrence_in(state, fingerprint, incident) for fingerprint in incident.alerts)
    return tuple(alert for alert in alerts if alert is not None)


def _occurrence_in(state: StateReader, fingerprint: str, incident: Incident) -> Alert | None:
    occurrences = [alert for alert in state.spells(fingerprint) if has_fired(alert)]
    own = [alert for alert in occurrences if alert.incident == incident.id]
    concurrent = [
        alert
        for alert in occurrences
        if alert.incident is None
        and (incident.resolved_at is None or alert.starts_at <= incident.resolved_at)
        and (alert.ends_at is None or alert.ends_at >= incident.opened_at)
    ]
    return next(iter(own or concurrent), None)


def verdicts(
    alerts: tuple[Alert, ...],
    verdict: Usefulness,
    *,
    by: str,
    at: datetime,
    incident: str | None = None,
    cause: str | None = None,
    comment: str = "",
) -> list[Feedback]:
    """Returns the same verdict on each of the alerts."""
    return [judged(alert, verdict, by=by, at=at, incident=incident, cause=cause, comment=comment) for alert in alerts]


def evaluated_values(
    feedback: Sequence[Feedback],
    rules: Sequence[Rule],
    state: StateReader,
    metrics: MetricStore,
    interval: timedelta,
) -> dict[str, Window]:
    """Returns the values that each judged rule's expression evaluated around the occurrence, by verdict id.

    They are stored with the verdict, since raw values are deleted after days, so that the occurrence can be replayed
    later. A long occurrence is limited to ``MAX_DURATION``. A verdict whose values cannot be read is stored without.
    """
    known = {rule.name: rule for rule in rules if rule.expr is not None}
    windows: dict[str, Window] = {}
    for verdict in feedback[:_MAX_STORED]:
        rule = known.get(verdict.rule)
        alert = occurrence_of(state, verdict.fingerprint, verdict.starts_at) if rule else None
        if rule is None or alert is None:
            continue
        try:
            read = reader_of(rule, metrics, interval, (verdict.entity,))
            end = min(alert.ends_at or verdict.at, alert.starts_at + MAX_DURATION)
            window = read(alert.starts_at - window_of(tunable_threshold_of(rule.name, rule.expr or "")), end + interval)
        except StoreError as error:
            _log.warning("values_not_kept", alert=verdict.fingerprint, error=error.message)
            continue
        if not np.isnan(window.values).all():
            windows[verdict.id] = window
    return windows


def reader_of(rule: Rule, metrics: MetricStore, interval: timedelta, entities: Sequence[EntityRef]) -> tuning.Read:
    """Returns a reader of the rule's signals for these entities, one slot per cycle."""
    keys = keys_of(rule)
    return lambda start, end: metrics.read_windows(rule.kind, keys, start, end, interval, entities)


def keys_of(rule: Rule) -> tuple[SignalKey, ...]:
    """Returns the signals that the rule's expression reads."""
    return tunable_threshold_of(rule.name, rule.expr or "").whole.keys
