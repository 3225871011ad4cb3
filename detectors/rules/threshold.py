"""Rules with an expression as detectors: one compiled detector per rule, named ``rule:<rule>``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from detectors.base.condition_durations import unusable_reason
from detectors.base.findings import evidence, fingerprint
from detectors.base.state_arrays import empty
from detectors.rules.evaluation import Unknown
from detectors.rules.expressions import Condition, compile_expression
from outrider.model import (
    DetectorState,
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
from outrider.vocabulary.rules import Rule

PREFIX = "rule:"
SHORTEST_WINDOW = timedelta(minutes=5)  # enough slots to decide whether the newest value is fresh


def compile_rules(rules: Sequence[Rule]) -> tuple[Detector, ...]:
    """A detector for every rule with an expression, in the order of the rules.

    Raises UsageError with the rule, the position and what was expected.
    """
    return tuple(RuleDetector(rule) for rule in rules if rule.expr is not None)


class RuleDetector:
    """Finds the entities for which a rule's expression holds. Stateless."""

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
        return empty(self.state_version, {})

    def detect(
        self, state: DetectorState, window: Window, _topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """A finding if the expression holds, NoVerdict if values are missing or untrusted."""
        reason = unusable_reason(window, now.timestamp())
        if reason is not None:
            return state, (NoVerdict(self.name, None, reason),)
        if not window.entities:
            return state, ()
        truths = self._compiled.holds(window)
        left, right, condition = self._sides(window)
        result = [self._finding(window, int(row), left, right, condition, now) for row in np.flatnonzero(truths.holds)]
        return state, (*result, *self._silent(window, truths.unknown))

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


def _expected(symbol: str, limit: float) -> Interval | None:
    """The interval on the normal side of the threshold."""
    if np.isnan(limit):
        return None
    if symbol in {">", ">="}:
        return Interval(None, limit)
    if symbol in {"<", "<="}:
        return Interval(limit, None)
    return Interval(limit, limit) if symbol == "!=" else None
