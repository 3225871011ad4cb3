"""All evidence of one cycle, indexed once, so that judging many incidents stays cheap."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from detectors.rca import change_evidence
from detectors.rca.change_evidence import CHANGE_STRENGTH, Hint
from detectors.rca.fault_catalogue import Condition, FaultKnowledge, Knowledge, Sign, Within
from detectors.rca.hypotheses import LATER, WINDOW, FaultHypothesis, Reach
from outrider.model import Alert, AlertState, EntityKind, EntityRef, Event, Finding, Priority
from outrider.topology import Topology

CHANGE_FAULTS = ("bad-rollout", "kernel-regression")
ALERT_STRENGTH = 0.8  # strength of an alert without a current finding
PENDING_STRENGTH = 0.7
FINDING_FLOOR = 0.5  # findings with a lower score are not hypotheses


@dataclass(slots=True)
class EvidenceIndex:
    """Hypotheses, findings and events of one cycle. ``standing`` are all hypotheses with a fault, by fault.

    ``suggested`` are those suggested by changes and log lines; ``late`` is as in ``hypotheses.begins_later``. ``ended``
    are the faults whose alerts resolved in this cycle, with the time at which their condition was last true.
    """

    reach: Reach
    knowledge: Knowledge
    findings_at: dict[EntityRef, list[Finding]] = field(default_factory=dict)
    events_at: dict[EntityRef, list[Event]] = field(default_factory=dict)
    hints: dict[EntityRef, list[Hint]] = field(default_factory=dict)
    suggested: list[FaultHypothesis] = field(default_factory=list)
    standing: dict[str, list[FaultHypothesis]] = field(default_factory=dict)
    late: timedelta = LATER
    ended: dict[tuple[EntityRef, str], datetime] = field(default_factory=dict)

    def hypothesis(self, entity: EntityRef, fault: str) -> FaultHypothesis | None:
        """The current hypothesis of an entity and fault, an alert before a finding."""
        return next((hypothesis for hypothesis in self.standing.get(fault, ()) if hypothesis.entity == entity), None)

    def strength(self, hypothesis: FaultHypothesis) -> float:
        """The best score of a matching finding, else the hypothesis' own strength."""
        scores = [finding.score for finding in self.matching_findings(hypothesis)]
        return max(scores, default=hypothesis.strength)

    def matching_findings(self, hypothesis: FaultHypothesis) -> list[Finding]:
        """Findings of this fault on this entity."""
        return [finding for finding in self.findings_at.get(hypothesis.entity, ()) if finding.fault == hypothesis.fault]

    def since(self, alert: Alert) -> datetime:
        """Start of an alert's condition: a detector that waits for confirmation knows an earlier time."""
        findings = self.findings_at.get(alert.entity, ()) if alert.fault is not None else ()
        begun = (finding.window.start for finding in findings if finding.fault == alert.fault)
        return min((alert.starts_at, *begun))

    def supporting(self, hypothesis: FaultHypothesis, known: FaultKnowledge) -> list[tuple[Finding, Sign]]:
        """Findings without a fault whose signal moves in the direction of the fault's signs."""
        signs = {sign.signal: sign for sign in known.signs}
        return [
            (finding, signs[name])
            for finding in self.findings_at.get(hypothesis.entity, ())
            if finding.fault is None
            for name in finding.signals[:1]
            if name in signs and _moves(finding, signs[name])
        ]

    def hints_for(self, hypothesis: FaultHypothesis) -> list[Hint]:
        """Relevant changes and log lines on the component or its nodes and services; newest first.

        Omits lines that a finding already reports, and changes to single nodes of a large service.
        """
        nodes = self.reach.nodes(hypothesis.entity)
        if hypothesis.entity.kind is EntityKind.SERVICE and not any(
            self._is_like(hypothesis, item) for item in self.suggested
        ):
            nodes = frozenset()
        near = (hypothesis.entity, *nodes, *self.reach.services(hypothesis.entity))
        result = [hint for place in dict.fromkeys(near) for hint in self.hints.get(place, ())]
        relevant = {hint.event.id: hint for hint in result if hint.supports(hypothesis.fault or "")}
        if self.matching_findings(hypothesis):
            relevant = {name: hint for name, hint in relevant.items() if hint.sort is not None}
        return sorted(relevant.values(), key=lambda hint: (hint.event.at, hint.event.id), reverse=True)

    @staticmethod
    def _is_like(first: FaultHypothesis, second: FaultHypothesis) -> bool:
        return (first.entity, first.fault) == (second.entity, second.fault)

    def suggestions(self, symptoms: Collection[EntityRef]) -> list[FaultHypothesis]:
        """Hypotheses from changes and log lines on components that one of these rests on."""
        return [
            hypothesis for hypothesis in self.suggested if not self.reach.up(hypothesis.entity).isdisjoint(symptoms)
        ]

    def is_standing(self, fault: str, near: EntityRef, within: Within) -> bool:
        """True if the fault is a current hypothesis within reach of an entity."""
        return any(self._is_near(hypothesis.entity, near, within) for hypothesis in self.standing.get(fault, ()))

    def _is_near(self, first: EntityRef, second: EntityRef, within: Within) -> bool:
        if first == second:
            return True
        if within == "cluster":
            return first.cluster == second.cluster
        if within == "node":
            return not self.reach.nodes(first).isdisjoint(self.reach.nodes(second))
        if within == "service":
            return not set(self.reach.services(first)).isdisjoint(self.reach.services(second))
        return False

    def is_decidable(self, condition: Condition, entity: EntityRef) -> bool:
        """False if the topology lacks the subject of the condition, such as the node of a replica."""
        if condition.single is not None:
            return bool(self.reach.topology.below(entity, EntityKind(condition.single)))
        if condition.within == "node":
            return bool(self.reach.nodes(entity))
        return condition.within != "service" or bool(self.reach.services(entity))

    def holds(self, condition: Condition, entity: EntityRef) -> bool:
        """True if a look-alike's condition is met at an entity. Missing evidence meets nothing."""
        if condition.single is not None:
            return len(self.reach.topology.below(entity, EntityKind(condition.single))) == 1
        if condition.absent is not None:
            return not self.is_standing(condition.absent, entity, condition.within)
        values = [
            item.observed
            for finding in self.findings_at.get(entity, ())
            for item in finding.evidence
            if item.signal == condition.signal and item.observed is not None
        ]
        return any(
            (condition.above is None or value > condition.above)
            and (condition.below is None or value < condition.below)
            for value in values
        )


def build_index(
    alerts: Sequence[Alert],
    findings: Sequence[Finding],
    events: Sequence[Event],
    topology: Topology,
    knowledge: Knowledge,
    now: datetime,
    interval: timedelta = timedelta(0),
) -> EvidenceIndex:
    """Builds the index; ``interval`` is the time between cycles."""
    index = EvidenceIndex(Reach(topology), knowledge, late=max(LATER, 2 * interval))
    for finding in findings:
        index.findings_at.setdefault(finding.entity, []).append(finding)
    for event in events:
        index.events_at.setdefault(event.entity, []).append(event)
    index.hints = change_evidence.gather(events, index.reach, now)
    standing = [*_of_alerts(alerts), *_of_findings(findings), *_of_changes(index)]
    for hypothesis in standing:
        if hypothesis.fault is not None and hypothesis.fault in knowledge:
            index.standing.setdefault(hypothesis.fault, []).append(hypothesis)
    for alert in alerts:
        if alert.state is AlertState.RESOLVED and alert.fault is not None:
            key = (alert.entity, alert.fault)
            index.ended[key] = max(index.ended.get(key, alert.seen_at), alert.seen_at)
    index.suggested = change_evidence.suggested(index.hints, index.findings_at, index.reach)
    return index


def opens_incident(alert: Alert) -> bool:
    """True for firing alerts of P0-P2, and of any priority with a fault."""
    return alert.state is AlertState.FIRING and (alert.priority is not Priority.P3 or alert.fault is not None)


def _of_alerts(alerts: Sequence[Alert]) -> list[FaultHypothesis]:
    """Hypotheses of alerts, the earliest first: it stands for a fault that several rules report."""
    hypotheses = []
    for alert in sorted(alerts, key=lambda alert: (alert.starts_at, alert.fingerprint)):
        if alert.fault is None or alert.state is AlertState.RESOLVED:
            continue
        firing = alert.state is AlertState.FIRING
        strength = ALERT_STRENGTH if firing else PENDING_STRENGTH
        hypotheses.append(
            FaultHypothesis(alert.entity, alert.fault, alert.starts_at, strength, firing, (alert.fingerprint,))
        )
    return hypotheses


def _of_findings(findings: Sequence[Finding]) -> list[FaultHypothesis]:
    return [
        FaultHypothesis(finding.entity, finding.fault, finding.window.start, finding.score, firing=False)
        for finding in findings
        if finding.fault is not None and finding.score >= FINDING_FLOOR
    ]


def _of_changes(index: EvidenceIndex) -> list[FaultHypothesis]:
    """Hypotheses of changes, for symptoms that begin within half an hour after them.

    ``since`` lies half of that time after the change, so that the window around it covers exactly that time.
    """
    hypotheses = []
    for service, held in index.hints.items():
        newest = next((hint.event for hint in reversed(held) if hint.sort in change_evidence.NEW_REVISION), None)
        if newest is None or service.kind is not EntityKind.SERVICE:
            continue
        since = newest.at + change_evidence.CHANGE_WINDOW - WINDOW
        hypotheses.append(FaultHypothesis(service, "bad-rollout", since, CHANGE_STRENGTH, firing=False))
        if any(change_evidence.SLOWER.intersection(finding.signals) for finding in index.findings_at.get(service, ())):
            hypotheses.append(
                FaultHypothesis(service, "kernel-regression", since, CHANGE_STRENGTH + 0.05, firing=False)
            )
    return hypotheses


def _moves(finding: Finding, sign: Sign) -> bool:
    expected, observed = finding.expected, finding.observed
    if expected is None or observed is None or sign.moves in ("still", "changes"):
        return sign.moves in ("still", "changes")
    if sign.moves == "up":
        return expected.high is not None and observed > expected.high
    return expected.low is not None and observed < expected.low
