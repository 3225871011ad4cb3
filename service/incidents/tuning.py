"""Proposes settings of a rule from feedback and stored values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from detectors.rules.rule_backtest import JudgedAlert
from detectors.rules.selection import selects
from detectors.rules.tunable_threshold import tunable_threshold_of
from detectors.rules.tuning import LEAST_USELESS, LEAST_VERDICTS, Proposal, ProposalReason, Setting, occasions, propose
from outrider.clock import rfc3339
from outrider.model import CellStatus, EntityKind, TimeRange
from outrider.ports import MetricStore, StateReader
from outrider.records.feedback import Feedback
from outrider.text.unknown_names import no_such
from outrider.vocabulary.rules import Rule
from service.config.settings import Settings
from service.engine import fleet_state
from service.incidents import alert_feedback

STATISTICAL = ("seasonal", "isolation")
_MOST_CELLS = 20_000_000  # of one read of the store
_DEFAULT_BUDGET = 0.25  # alarms per entity-day, of the isolation forest


@dataclass(frozen=True, slots=True)
class Budget:
    """A false-alarm budget of an entity kind, in alarms per entity-day: current and proposed.

    ``key`` is the setting; ``known`` False means that the kind has no budget setting. ``useful`` and ``useless`` count
    alerts, ``judged`` and ``judged_useless`` occasions (an incident is one). ``proposed`` equals ``now`` if there are
    too few verdicts.
    """

    key: str
    kind: EntityKind
    useful: int
    useless: int
    judged: int
    judged_useless: int
    entities: int
    days: float
    now: float
    proposed: float
    known: bool

    @property
    def enough(self) -> bool:
        """True if there are enough verdicts for a proposal."""
        return self.judged >= LEAST_VERDICTS and self.judged_useless >= LEAST_USELESS

    @property
    def useless_per_entity_day(self) -> float:
        """Rate of alerts judged useless; alerts without a verdict are not included."""
        return self.useless / (self.entities * self.days) if self.entities and self.days > 0 else 0.0


def rule_named(rules: Sequence[Rule], name: str) -> Rule:
    """Returns the rule of that name. Raises UsageError."""
    rule = next((rule for rule in rules if rule.name == name), None)
    if rule is None:
        raise no_such("rule", name, (rule.name for rule in rules))
    return rule


def proposal_of(
    rule: Rule,
    state: StateReader,
    metrics: MetricStore,
    settings: Settings,
    now: datetime,
    *,
    since: datetime | None = None,
    tried: Setting | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Proposal:
    """Replays the rule on all raw values, and on those stored with verdicts.

    ``since`` excludes verdicts on alerts that started earlier; ``tried`` replaces the default settings.
    """
    judged = _judged_since(rule, state, since, now)
    interval = settings.collect.interval
    span = TimeRange(now - settings.store.retention.raw, now)
    if rule.expr is None:
        return propose(rule, judged, None, (), span)
    topology, keys = state.topology(), alert_feedback.keys_of(rule)
    entities = [entity for entity in metrics.entities(rule.kind) if selects(rule.where, entity, topology)]
    return propose(
        rule,
        judged,
        alert_feedback.reader_of(rule, metrics, interval, entities),
        entities,
        replace(span, start=_begin(rule, metrics, span, interval)),
        kept=state.feedback_values([alert.id for alert in judged]),
        tried=None if tried is None else [tried],
        piece=interval * max(20, _MOST_CELLS // max(1, len(entities) * len(keys))),
        progress=progress,
    )


def _judged_since(rule: Rule, state: StateReader, since: datetime | None, now: datetime) -> list[JudgedAlert]:
    """Returns the judged alerts of the rule that started since then."""
    verdicts = state.feedback(rule=rule.name, limit=fleet_state.UNLIMITED)
    return judged_of([verdict for verdict in verdicts if since is None or verdict.starts_at >= since], state, now)


def judged_of(feedback: Sequence[Feedback], state: StateReader, now: datetime) -> list[JudgedAlert]:
    """Returns one entry per alert occurrence, oldest first; useful if any verdict found a fault."""
    occurrences: dict[tuple[str, datetime], list[Feedback]] = {}
    for verdict in feedback:
        occurrences.setdefault((verdict.fingerprint, verdict.starts_at), []).append(verdict)
    values = state.feedback_values([verdict.id for verdict in feedback])
    judged = []
    for (fingerprint, starts_at), verdicts in occurrences.items():
        first = next((verdict for verdict in verdicts if verdict.id in values), verdicts[0])
        alert = alert_feedback.occurrence_of(state, fingerprint, starts_at)
        ends_at = (alert.ends_at or now) if alert else starts_at + alert_feedback.MAX_DURATION
        judged.append(
            JudgedAlert(
                fingerprint=fingerprint,
                entity=first.entity,
                priority=min((verdict.priority for verdict in verdicts), key=lambda priority: priority.rank),
                starts_at=starts_at,
                ends_at=ends_at,
                useful=any(verdict.was_justified for verdict in verdicts),
                occasion=first.incident or f"{fingerprint} {rfc3339(starts_at)}",
                id=first.id,
            )
        )
    return sorted(judged, key=lambda alert: (alert.starts_at, alert.fingerprint))


def budgets_of(
    rule: Rule,
    state: StateReader,
    metrics: MetricStore,
    settings: Settings,
    now: datetime,
    *,
    since: datetime | None = None,
) -> tuple[Budget, ...]:
    """Returns the budgets of a rule of statistical detectors, one per entity kind.

    The proposed budget allows as many false alarms as useful ones, at least a tenth of the current one. ``since`` as
    for ``proposal_of``.
    """
    if not is_statistical(rule):
        return ()
    judged = _judged_since(rule, state, since, now)
    kinds = sorted({alert.entity.kind for alert in judged})
    return tuple(
        _budget_of(kind, [alert for alert in judged if alert.entity.kind is kind], metrics, settings, now)
        for kind in kinds
    )


def _budget_of(
    kind: EntityKind, judged: Sequence[JudgedAlert], metrics: MetricStore, settings: Settings, now: datetime
) -> Budget:
    """Returns the budget of one entity kind from the verdicts on its alerts."""
    useful, useless = sum(alert.useful for alert in judged), sum(not alert.useful for alert in judged)
    key, configured = _budget(settings, kind)
    current = configured or _DEFAULT_BUDGET
    budget = Budget(
        key=key,
        kind=kind,
        useful=useful,
        useless=useless,
        judged=occasions(judged),
        judged_useless=occasions(judged) - occasions([alert for alert in judged if alert.useful]),
        entities=len(metrics.entities(kind)),
        days=(now - min(alert.starts_at for alert in judged)) / timedelta(days=1),
        now=current,
        proposed=current,
        known=configured is not None,
    )
    share = min(1.0, max(0.1, useful / useless)) if useless else 1.0
    return replace(budget, proposed=float(f"{current * share:.2g}")) if budget.enough else budget


def is_statistical(rule: Rule) -> bool:
    """True for a rule of detectors that have a false-alarm budget instead of values to replay."""
    return bool(set(rule.detectors) & set(STATISTICAL))


def by_budgets(proposal: Proposal, budgets: Sequence[Budget]) -> Proposal:
    """Returns the proposal of a rule of statistical detectors with the reason for a budget, or for none."""
    if any(budget.proposed < budget.now for budget in budgets):
        return replace(proposal, reason=ProposalReason.BUDGET)
    enough = any(budget.enough for budget in budgets)
    return replace(proposal, reason=ProposalReason.BUDGET_STAYS if enough else ProposalReason.TOO_FEW_FOR_BUDGET)


def _budget(settings: Settings, kind: EntityKind) -> tuple[str, float | None]:
    """Returns the key of the setting and its value; None for an entity kind without a budget."""
    return f"detect.alarms_per_entity_day.{kind.value}", settings.detect.budgets.get(kind)


def _begin(rule: Rule, metrics: MetricStore, span: TimeRange, interval: timedelta) -> datetime:
    """Returns the start of the values within the span, so that a new store is not measured over days without values."""
    keys = alert_feedback.keys_of(rule)
    seen = metrics.read_windows(rule.kind, keys, span.start, span.end, timedelta(hours=1)) if keys else None
    if seen is None or not seen.entities:
        return span.start
    known = np.array([seen.column_status(key) < CellStatus.ABSENT for key in keys])
    columns = np.flatnonzero(known.any(axis=(0, 1)))
    if columns.size == 0:
        return span.start
    return max(span.start, datetime.fromtimestamp(float(seen.times[columns[0]]), tz=span.start.tzinfo) - interval)


def threshold_of(rule: Rule) -> float | None:
    """Returns the tunable threshold of a rule's expression, None if it has none."""
    return tunable_threshold_of(rule.name, rule.expr).threshold if rule.expr else None
