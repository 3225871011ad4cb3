"""Makes proposals for a rule from the verdicts and the values of a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from detectors.rules.rule_backtest import JudgedAlert
from detectors.rules.tunable_threshold import tunable_threshold_of
from detectors.rules.tuning import LEAST_USELESS, LEAST_VERDICTS, Proposal, ProposalReason, Setting, occasions, propose
from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.model import CellStatus, EntityKind, TimeRange
from outrider.ports import MetricStore, StateReader
from outrider.records.feedback import Feedback
from outrider.text.yaml_file import near
from outrider.vocabulary.rules import Rule
from service.config.settings import Settings
from service.engine import fleet_state
from service.incidents import alert_feedback

STATISTICAL = ("seasonal", "isolation")
_MOST_CELLS = 20_000_000  # of one look into the store
_DEFAULT_BUDGET = 0.25  # alarms per entity-day, of the isolation forest


@dataclass(frozen=True, slots=True)
class Budget:
    """A false-alarm budget of a class of entities, in alarms per entity-day: as it is, as verdicts want it.

    ``key`` is the setting; ``known`` False: the class has no budget, the proposal is for people. ``useful`` and
    ``useless`` are alerts, ``judged`` and ``judged_useless`` occasions (an incident is one). ``proposed`` is ``now``
    while there are too few of these.
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
        """True when verdicts are as many as any proposal takes."""
        return self.judged >= LEAST_VERDICTS and self.judged_useless >= LEAST_USELESS

    @property
    def useless_per_entity_day(self) -> float:
        """What was judged useless; what nobody judged comes on top."""
        return self.useless / (self.entities * self.days) if self.entities and self.days > 0 else 0.0


def rule_named(rules: Sequence[Rule], name: str) -> Rule:
    """The rule of that name. Raises UsageError."""
    found = next((rule for rule in rules if rule.name == name), None)
    if found is None:
        known = [rule.name for rule in rules]
        raise UsageError(f"no rule is named {name!r}{near(name, known)}", hint=f"rules: {', '.join(known)}")
    return found


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
    """Replay the rule over all raw values there are, and over those kept with verdicts.

    ``since`` leaves out verdicts on alerts that began before; ``tried`` is measured instead of our own settings.
    """
    judged = _judged_since(rule, state, since, now)
    interval = settings.collect.interval
    span = TimeRange(now - settings.store.retention.raw, now)
    if rule.expr is None:
        return propose(rule, judged, None, (), span)
    entities, keys = metrics.entities(rule.kind), alert_feedback.keys_of(rule)
    return propose(
        rule,
        judged,
        alert_feedback.reader_of(rule, metrics, interval, entities),
        entities,
        replace(span, start=_begin(rule, metrics, span, interval)),
        kept=state.feedback_values([one.id for one in judged]),
        tried=None if tried is None else [tried],
        piece=interval * max(20, _MOST_CELLS // max(1, len(entities) * len(keys))),
        progress=progress,
    )


def _judged_since(rule: Rule, state: StateReader, since: datetime | None, now: datetime) -> list[JudgedAlert]:
    """What was said of alerts of the rule that began since then."""
    said = state.feedback(rule=rule.name, limit=fleet_state.UNLIMITED)
    return judged_of([one for one in said if since is None or one.starts_at >= since], state, now)


def judged_of(said: Sequence[Feedback], state: StateReader, now: datetime) -> list[JudgedAlert]:
    """One entry a spell, oldest first: useful when anybody found a reason for it."""
    spells: dict[tuple[str, datetime], list[Feedback]] = {}
    for one in said:
        spells.setdefault((one.fingerprint, one.starts_at), []).append(one)
    kept = state.feedback_values([one.id for one in said])
    found = []
    for (fingerprint, starts_at), verdicts in spells.items():
        first = next((one for one in verdicts if one.id in kept), verdicts[0])
        alert = alert_feedback.spell_of(state, fingerprint, starts_at)
        ends_at = (alert.ends_at or now) if alert else starts_at + alert_feedback.LONGEST
        found.append(
            JudgedAlert(
                fingerprint=fingerprint,
                entity=first.entity,
                priority=min((one.priority for one in verdicts), key=lambda found: found.rank),
                starts_at=starts_at,
                ends_at=ends_at,
                useful=any(one.was_justified for one in verdicts),
                occasion=first.incident or f"{fingerprint} {rfc3339(starts_at)}",
                id=first.id,
            )
        )
    return sorted(found, key=lambda one: (one.starts_at, one.fingerprint))


def budgets_of(
    rule: Rule,
    state: StateReader,
    metrics: MetricStore,
    settings: Settings,
    now: datetime,
    *,
    since: datetime | None = None,
) -> tuple[Budget, ...]:
    """Budgets for a rule of statistical detectors, a class of entities each: as many false alarms as useful ones.

    A tenth of what it is at the least. ``since`` as for ``proposal_of``.
    """
    if not is_statistical(rule):
        return ()
    judged = _judged_since(rule, state, since, now)
    kinds = sorted({one.entity.kind for one in judged})
    return tuple(
        _budget_of(kind, [one for one in judged if one.entity.kind is kind], metrics, settings, now) for kind in kinds
    )


def _budget_of(
    kind: EntityKind, own: Sequence[JudgedAlert], metrics: MetricStore, settings: Settings, now: datetime
) -> Budget:
    """The budget of one class of entities by the verdicts on alerts of that class."""
    useful, useless = sum(one.useful for one in own), sum(not one.useful for one in own)
    key, budget = _budget(settings, kind)
    present = budget or _DEFAULT_BUDGET
    found = Budget(
        key=key,
        kind=kind,
        useful=useful,
        useless=useless,
        judged=occasions(own),
        judged_useless=occasions(own) - occasions([one for one in own if one.useful]),
        entities=len(metrics.entities(kind)),
        days=(now - min(one.starts_at for one in own)) / timedelta(days=1),
        now=present,
        proposed=present,
        known=budget is not None,
    )
    share = min(1.0, max(0.1, useful / useless)) if useless else 1.0
    return replace(found, proposed=float(f"{present * share:.2g}")) if found.enough else found


def is_statistical(rule: Rule) -> bool:
    """True for a rule of detectors that have a false-alarm budget instead of values to replay."""
    return bool(set(rule.detectors) & set(STATISTICAL))


def by_budgets(found: Proposal, budgets: Sequence[Budget]) -> Proposal:
    """What is to say of a rule of statistical detectors: whether a budget is proposed, and why not."""
    if any(one.proposed < one.now for one in budgets):
        return replace(found, reason=ProposalReason.BUDGET)
    enough = any(one.enough for one in budgets)
    return replace(found, reason=ProposalReason.BUDGET_STAYS if enough else ProposalReason.TOO_FEW_FOR_BUDGET)


def _budget(settings: Settings, kind: EntityKind) -> tuple[str, float | None]:
    """The key of the setting and its value; None for a class that has none."""
    return f"detect.alarms_per_entity_day.{kind.value}", settings.detect.budgets.get(kind)


def _begin(rule: Rule, metrics: MetricStore, span: TimeRange, interval: timedelta) -> datetime:
    """Where values begin inside the span: a young store is not measured over days that it has not seen."""
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
    """The number that a rule's expression compares with; None where it has none that could be another."""
    return tunable_threshold_of(rule.name, rule.expr).threshold if rule.expr else None
