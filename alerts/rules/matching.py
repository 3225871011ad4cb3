"""Matches findings to rules, and determines the priority."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite

from alerts.rules.context import ServiceContext
from alerts.rules.parser import PLAN
from outrider.model import (
    EntityRef,
    Evidence,
    Finding,
    Interval,
    NoRecommendation,
    NoVerdict,
    NoVerdictReason,
    Plan,
    Priority,
    Recommendation,
    TimeRange,
)
from outrider.vocabulary.faults import faults
from outrider.vocabulary.rules import Rule

COMPILED = "rule:"


@dataclass(frozen=True, slots=True)
class Matcher:
    """Rules by their matching criteria.

    A compiled expression matches its own rule only. A detector that a rule names matches that rule only, even if its
    finding names a fault: a statistical score never takes the route of a hard rule.
    """

    compiled: dict[str, Rule]
    by_detector: dict[str, tuple[Rule, ...]]
    by_fault: dict[str, tuple[Rule, ...]]

    @staticmethod
    def of(rules: Iterable[Rule]) -> Matcher:
        """Builds the index of rules."""
        compiled: dict[str, Rule] = {}
        by_detector: dict[str, tuple[Rule, ...]] = {}
        by_fault: dict[str, tuple[Rule, ...]] = {}
        for rule in rules:
            if rule.expr:
                compiled[COMPILED + rule.name] = rule
            for detector in rule.detectors:
                by_detector[detector] = (*by_detector.get(detector, ()), rule)
            if not rule.detectors:
                for fault in rule.faults:
                    by_fault[fault] = (*by_fault.get(fault, ()), rule)
        return Matcher(compiled, by_detector, by_fault)

    def rules_for(self, finding: Finding) -> tuple[Rule, ...]:
        """The rules that a finding matches; a rule with detectors and faults needs both."""
        if finding.detector.startswith(COMPILED):
            rule = self.compiled.get(finding.detector)
            return (rule,) if rule else ()
        family = finding.detector.rpartition("-")[0]  # a detector may be registered once per kind: seasonal-gpu
        named = self.by_detector.get(finding.detector) or self.by_detector.get(family)
        if named:
            return tuple(rule for rule in named if not rule.faults or finding.fault in rule.faults)
        return self.by_fault.get(finding.fault, ()) if finding.fault else ()


def priority_of(rule: Rule, finding: Finding, context: ServiceContext) -> Priority:
    """The rule's own priority, else the pair of the fault, else the detector's severity."""
    if rule.priority is not None:
        return rule.priority
    known = faults().get(rule.fault or finding.fault or "")
    if known is None:
        return finding.severity
    return known.burning if context.urgent(finding.entity) else known.otherwise


def plan_findings(plan: Plan, rules: Sequence[Rule], now: datetime) -> tuple[Finding | NoVerdict, ...]:
    """Findings of the capacity plan for rules over ``plan:<measure>``: services at or above the threshold."""
    verdicts: list[Finding | NoVerdict] = []
    for rule in rules:
        for detector in rule.detectors:
            if detector.startswith(PLAN) and rule.threshold is not None:
                verdicts += [_of_service(entry, detector, rule.threshold, now) for entry in plan.recommendations]
    return tuple(entry for entry in verdicts if isinstance(entry, NoVerdict) or entry.score > 0)


def _of_service(
    entry: Recommendation | NoRecommendation, detector: str, threshold: float, now: datetime
) -> Finding | NoVerdict:
    measure = detector.removeprefix(PLAN)
    value = entry.derivation.get(measure) if isinstance(entry, Recommendation) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return NoVerdict(detector, entry.service, NoVerdictReason.NO_VALUES)
    return Finding(
        detector=detector,
        entity=entry.service,
        signals=("svc_requests_per_second",),
        severity=Priority.P3,
        score=1.0 if value >= threshold else 0.0,
        observed=float(value),
        expected=Interval(None, threshold),
        window=TimeRange(now, now),
        evidence=(_evidence(measure, float(value), threshold),),
        fingerprint=f"{detector}|{entry.service.key}",
    )


def _evidence(measure: str, value: float, threshold: float) -> Evidence:
    return Evidence(
        signal="svc_requests_per_second",
        observed=value,
        expected=Interval(None, threshold),
        text=f"alerts.evidence.{measure}",
        arguments={"value": f"{value * 100:+.0f} %", "limit": f"{threshold * 100:+.0f} %"},
    )


@dataclass(frozen=True, slots=True)
class MissingVerdicts:
    """Detectors without a verdict in one cycle, and the entities concerned; ``everyone`` lists those without any."""

    entities: frozenset[tuple[str, EntityRef]]
    everyone: frozenset[str]

    @staticmethod
    def of(findings: Iterable[Finding | NoVerdict]) -> MissingVerdicts:
        """Collects the NoVerdicts of one cycle."""
        silent = [entry for entry in findings if isinstance(entry, NoVerdict)]
        return MissingVerdicts(
            frozenset((entry.detector, entry.entity) for entry in silent if entry.entity is not None),
            frozenset(entry.detector for entry in silent if entry.entity is None),
        )

    def about(self, detectors: Iterable[str], entity: EntityRef) -> bool:
        """True if a detector that raised an alert no longer has a verdict."""
        return any(detector in self.everyone or (detector, entity) in self.entities for detector in detectors)
