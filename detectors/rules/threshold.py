"""Rules with an expression as detectors: one compiled detector per rule, named ``rule:<rule>``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from detectors.base.condition_durations import late_seconds, unusable_reason
from detectors.base.findings import evidence, fingerprint
from detectors.base.state_arrays import align, empty
from detectors.rules.evaluation import Truths, Unknown
from detectors.rules.expressions import Condition, compile_expression
from detectors.rules.selection import selected, selects
from outrider.model import (
    DetectorState,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    Priority,
    TimeRange,
    Window,
)
from outrider.ports import Detector
from outrider.topology import Topology
from outrider.vocabulary.faults import faults
from outrider.vocabulary.rules import AbsentPolicy, Rule

PREFIX = "rule:"
REMEMBERED = timedelta(days=1)  # an entity without values for longer has left the fleet
_JUDGED_AT = "judged_at"  # unix seconds
SHORTEST_WINDOW = timedelta(minutes=5)  # enough slots to decide whether the newest value is fresh


def compile_rules(rules: Sequence[Rule]) -> tuple[Detector, ...]:
    """A detector for every rule with an expression, in the order of the rules.

    Raises UsageError with the rule, the position and what was expected.
    """
    return tuple(RuleDetector(rule) for rule in rules if rule.expr is not None)


class RuleDetector:
    """Finds the entities for which a rule's expression holds.

    Stateless, unless missing values count as true: then the state is the time of each entity's last verdict. An entity
    that never had values is not found.
    """

    state_version = 1

    def __init__(self, rule: Rule) -> None:
        """``rule.expr`` must be set."""
        self._rule = rule
        self._compiled = compile_expression(rule.name, rule.expr or "")
        self.name = PREFIX + rule.name
        self.kind = rule.kind
        self.keys = self._compiled.keys
        self.window = max(self._compiled.span, SHORTEST_WINDOW)
        known = faults().get(rule.fault or "")
        self._severity = rule.priority or (known.otherwise if known else Priority.P2)

    def initial(self) -> DetectorState:
        """Empty state."""
        return empty(self.state_version, {_JUDGED_AT: np.nan})

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """A finding if the expression holds, NoVerdict if values are missing or untrusted."""
        reason = unusable_reason(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        window = selected(window, self._rule.where, topology)
        if self._rule.absent is AbsentPolicy.FIRE:
            return self._with_absent(state, window, topology, now)
        if not window.entities:
            return state, ()
        return state, self._verdicts(window, self._compiled.holds(window), now)

    def _verdicts(self, window: Window, truths: Truths, now: datetime) -> tuple[Finding | NoVerdict, ...]:
        left, right, condition = self._sides(window)
        result = [self._finding(window, int(row), left, right, condition, now) for row in np.flatnonzero(truths.holds)]
        return (*result, *self._silent(window, truths.unknown))

    def _with_absent(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """As usual, and a finding for each entity whose last verdict is too old for the present."""
        at = float(window.times[-1])
        entities, judged_at = _followed(state, window, at)
        count = len(window.entities)
        verdicts: tuple[Finding | NoVerdict, ...] = ()
        if count:
            truths = self._compiled.holds(window)
            judged_at[:count] = np.where(truths.unknown < Unknown.MISSING, at, judged_at[:count])
            verdicts = self._verdicts(window, truths, now)
        absent = [
            row
            for row in np.flatnonzero(at - judged_at > late_seconds(window))
            if selects(self._rule.where, entities[row], topology)
        ]
        found = [self._absence(entities[row], at - float(judged_at[row]), now) for row in absent]
        after = DetectorState(self.state_version, entities, {_JUDGED_AT: judged_at})
        return after, (*found, *verdicts)

    def _absence(self, entity: EntityRef, seconds: float, now: datetime) -> Finding:
        signals = self._compiled.signals
        item = evidence(
            signals[0] if signals else "",
            None,
            "rule_absent",
            None,
            rule=self._rule.name,
            seconds=f"{seconds:.0f}",
            expression=" ".join((self._rule.expr or "").split()),
        )
        return Finding(
            detector=self.name,
            entity=entity,
            signals=signals,
            severity=self._severity,
            score=1.0,
            observed=None,
            expected=None,
            window=TimeRange(now - timedelta(seconds=seconds), now),
            evidence=(item,),
            fingerprint=fingerprint(self.name, entity, "absent"),
            fault=self._rule.fault,
        )

    def _sides(self, window: Window) -> tuple[Floats, Floats, Condition | None]:
        condition = self._compiled.condition
        nothing = np.full(len(window.entities), np.nan)
        if condition is None:
            return nothing, nothing, None
        return condition.observed(window).values, condition.right(window).values, condition

    def _finding(
        self, window: Window, row: int, left: Floats, right: Floats, condition: Condition | None, now: datetime
    ) -> Finding:
        entity = window.entities[row]
        signals = condition.signals if condition and condition.signals else self._compiled.signals
        observed = None if np.isnan(left[row]) else float(left[row])
        expected = _expected(condition.symbol if condition else "", float(right[row]))
        item = evidence(
            signals[0] if signals else "",
            observed,
            "rule_holds",
            expected,
            rule=self._rule.name,
            expression=" ".join((self._rule.expr or "").split()),
        )
        start = datetime.fromtimestamp(window.times[-1] - self._compiled.span.total_seconds(), tz=UTC)
        return Finding(
            detector=self.name,
            entity=entity,
            signals=signals,
            severity=self._severity,
            score=1.0,
            observed=observed,
            expected=expected,
            window=TimeRange(min(start, now), now),
            evidence=(item,),
            fingerprint=fingerprint(self.name, entity, self._rule.fault or "holds"),
            fault=self._rule.fault,
        )

    def _silent(self, window: Window, unknown: np.ndarray) -> list[NoVerdict]:
        rows = np.flatnonzero(unknown >= Unknown.MISSING)
        reasons = {
            int(Unknown.MISSING): NoVerdictReason.NO_VALUES,
            int(Unknown.UNTRUSTED): NoVerdictReason.UNTRUSTED_VALUES,
        }
        if rows.size == len(window.entities) and len(set(unknown.tolist())) == 1:
            return [NoVerdict(self.name, None, reasons[int(unknown[0])])]
        return [NoVerdict(self.name, window.entities[row], reasons[int(unknown[row])]) for row in rows]


def _followed(state: DetectorState, window: Window, at: float) -> tuple[tuple[EntityRef, ...], Floats]:
    """The window's entities, then those remembered, each with the time of its last verdict; NaN without one."""
    before = align(state, state.entities, {_JUDGED_AT: np.nan})[_JUDGED_AT]
    there = set(window.entities)
    recent = np.flatnonzero(before >= at - REMEMBERED.total_seconds())
    away = tuple(state.entities[row] for row in recent if state.entities[row] not in there)
    entities = (*window.entities, *away)
    return entities, align(state, entities, {_JUDGED_AT: np.nan})[_JUDGED_AT]


def _expected(symbol: str, limit: float) -> Interval | None:
    """The interval on the normal side of the threshold."""
    if np.isnan(limit):
        return None
    if symbol in {">", ">="}:
        return Interval(None, limit)
    if symbol in {"<", "<="}:
        return Interval(limit, None)
    return Interval(limit, limit) if symbol == "!=" else None
