"""Which spells of alerts a verdict is about, and the values to keep with it."""

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

LONGEST = timedelta(hours=6)
_MOST_KEPT = 100  # of one storm
_log = log.get("api")


def fired(alert: Alert) -> bool:
    """True when the spell was or is told: not one that is pending, or went before its waiting time was over."""
    return alert.state is AlertState.FIRING or (
        alert.state is AlertState.RESOLVED and alert.reason is not AlertReason.NEVER_FIRED
    )


def spell_of(state: StateReader, fingerprint: str, starts_at: datetime | None = None) -> Alert | None:
    """The spell that began at an instant (to the millisecond, as it is printed), else the newest one that fired.

    None when there is no such alert or spell. Raises UsageError for a spell that has not fired.
    """
    found = state.spells(fingerprint)
    if starts_at is None:
        named = next((one for one in found if fired(one)), found[0] if found else None)
    else:
        named = next((one for one in found if rfc3339(one.starts_at) == rfc3339(starts_at)), None)
    if named is not None and not fired(named):
        raise _unfired(named)
    return named


def _unfired(alert: Alert) -> UsageError:
    return UsageError(
        f"alert {alert.fingerprint!r} has not fired, so nobody was told and there is nothing to judge",
        hint="outrider alerts list --state firing shows those that have",
    )


def spells_of(state: StateReader, incident: Incident) -> tuple[Alert, ...]:
    """The spells that fired and are folded into an incident, in the order they joined it."""
    found = (_spell_in(state, fingerprint, incident) for fingerprint in incident.alerts)
    return tuple(one for one in found if one is not None)


def _spell_in(state: StateReader, fingerprint: str, incident: Incident) -> Alert | None:
    spells = [one for one in state.spells(fingerprint) if fired(one)]
    own = [one for one in spells if one.incident == incident.id]
    beside = [
        one
        for one in spells
        if one.incident is None
        and (incident.resolved_at is None or one.starts_at <= incident.resolved_at)
        and (one.ends_at is None or one.ends_at >= incident.opened_at)
    ]
    return next(iter(own or beside), None)


def verdicts(
    alerts: tuple[Alert, ...],
    word: Usefulness,
    *,
    by: str,
    at: datetime,
    incident: str | None = None,
    cause: str | None = None,
    comment: str = "",
) -> list[Feedback]:
    """The same verdict on each of the alerts."""
    return [judged(one, word, by=by, at=at, incident=incident, cause=cause, comment=comment) for one in alerts]


def values_of(
    said: Sequence[Feedback],
    rules: Sequence[Rule],
    state: StateReader,
    metrics: MetricStore,
    interval: timedelta,
) -> dict[str, Window]:
    """What rules with an expression looked at around each judged spell, by id of the verdict.

    Kept with the verdict, because raw values are gone in days: with them the spell can be replayed as long as
    the verdict is kept. Of a spell that lasts long the first hours are enough. A verdict whose values cannot be
    read is kept without.
    """
    known = {rule.name: rule for rule in rules if rule.expr is not None}
    found: dict[str, Window] = {}
    for one in said[:_MOST_KEPT]:
        rule = known.get(one.rule)
        spell = spell_of(state, one.fingerprint, one.starts_at) if rule else None
        if rule is None or spell is None:
            continue
        try:
            read = reader_of(rule, metrics, interval, (one.entity,))
            end = min(spell.ends_at or one.at, spell.starts_at + LONGEST)
            window = read(spell.starts_at - window_of(tunable_threshold_of(rule.name, rule.expr or "")), end + interval)
        except StoreError as error:
            _log.warning("values_not_kept", alert=one.fingerprint, error=error.message)
            continue
        if not np.isnan(window.values).all():
            found[one.id] = window
    return found


def reader_of(rule: Rule, metrics: MetricStore, interval: timedelta, entities: Sequence[EntityRef]) -> tuning.Read:
    """Reads what the rule's expression looks at, of these entities, on the grid of cycles."""
    keys = keys_of(rule)
    return lambda start, end: metrics.read_windows(rule.kind, keys, start, end, interval, entities)


def keys_of(rule: Rule) -> tuple[SignalKey, ...]:
    """The columns that the rule's expression looks at."""
    return tunable_threshold_of(rule.name, rule.expr or "").whole.keys
