"""Ranks the hypotheses of an incident, and gives the alternatives ruled out with their reasons.

A hypothesis scores by its own evidence, the share of symptoms it explains, and the order in time. One that another
hypothesis explains loses most of its score: on call graphs, subtracting 0.9 of the best explainer's score raised top-1
from 0.44 to 0.63 (PetShop). A softmax turns scores into confidences. An unknown cause takes part in it, so that a
single weak hypothesis stays weak. Its temperature was fitted to drills (``confidence``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from detectors.hardware.xid import named
from detectors.rca import confidence, evidence_index
from detectors.rca.evidence_index import EvidenceIndex
from detectors.rca.fault_catalogue import Knowledge, LookAlike
from detectors.rca.hypotheses import FaultHypothesis, Pair, comes_first, gathered, pairs
from outrider.model import (
    Alert,
    AlertState,
    EntityRef,
    Event,
    EventKind,
    Evidence,
    Finding,
    Hypothesis,
    RejectedHypothesis,
)
from outrider.topology import Topology
from outrider.vocabulary.faults import faults

KEPT = 5  # hypotheses that are reported
EXPLAINED_LOSS = 0.9
EXPLAINS_FROM = 0.7  # weaker hypotheses take nothing from those they explain
SUPPORT_BONUS = 0.03  # per signal that moves like the fault's signs
COMMON_CAUSE_BONUS = 0.25  # for a change after which two components fail
NOT_EXCLUDED_STRENGTH = 0.3  # score of a look-alike without evidence for or against it
LATE = timedelta(minutes=3)
EVIDENCE_KEPT = 6
HINTS_KEPT = 2
# texts of contradicting evidence
AGAINST = frozenset({"incidents.evidence.explained_by", "incidents.evidence.not_told_apart"})


def rank(
    candidates: Sequence[FaultHypothesis],
    alerts: Sequence[Alert],
    findings: Sequence[Finding],
    events: Sequence[Event],
    topology: Topology,
    knowledge: Knowledge,
    now: datetime,
) -> tuple[tuple[Hypothesis, ...], tuple[RejectedHypothesis, ...]]:
    """Hypotheses best first, and the alternatives ruled out.

    ``alerts`` are those of one incident; the firing ones are to be explained. Candidates without a fault count as
    symptoms.
    """
    index = evidence_index.build_index(alerts, findings, events, topology, knowledge, now)
    symptoms = [
        FaultHypothesis(alert.entity, alert.fault, alert.starts_at, alerts=(alert.fingerprint,))
        for alert in alerts
        if alert.state is AlertState.FIRING
    ]
    return ranked((*candidates, *symptoms), index)


def ranked(
    candidates: Sequence[FaultHypothesis], index: EvidenceIndex
) -> tuple[tuple[Hypothesis, ...], tuple[RejectedHypothesis, ...]]:
    """As ``rank``, on an existing index. Hypotheses of one entity and fault are merged."""
    unique = _unique(candidates, index)
    result = list(pairs(unique, index.reach, index.knowledge))
    by_symptom, by_cause = gathered(result, len(unique))
    numbers = range(len(unique))
    strengths = [_strength(number, unique, by_cause[number], index) for number in numbers]
    raw = [_raw_score(number, unique, by_cause[number], strengths[number]) for number in numbers]
    explainers = [
        _best_explainer(number, unique, (by_symptom[number], by_cause[number]), strengths, raw) for number in numbers
    ]
    scores = {
        number: raw[number] * (1.0 - EXPLAINED_LOSS * explainers[number][0])
        for number, candidate in enumerate(unique)
        if candidate.fault in index.knowledge
    }
    if not scores:
        return (), ()
    best = sorted(scores, key=lambda number: (-scores[number], unique[number].order))
    open_alternatives, rejected = look_alikes(unique[best[0]], index)
    parts = _parts(unique[best[0]], index)
    scale = confidence.packaged()
    weights: list[tuple[float, Hypothesis]] = []
    for number in best[:KEPT]:
        evidence_items = _evidence(number, unique, by_cause[number], explainers[number][1], index)
        hypothesis = Hypothesis(unique[number].entity, unique[number].fault or "", 0.0, evidence_items)
        weights.append((scale.weight(scores[number]), hypothesis))
    named = {(hypothesis.entity, hypothesis.fault) for _, hypothesis in weights}
    doubt = scale.weight(NOT_EXCLUDED_STRENGTH)
    weights += [(doubt / len(parts), part) for part in parts if (part.entity, part.fault) not in named]
    weights += [
        (doubt, hypothesis) for hypothesis in open_alternatives if (hypothesis.entity, hypothesis.fault) not in named
    ]
    shares = scale.shares([weight for weight, _ in weights])
    hypotheses = [
        replace(hypothesis, confidence=round(share, 3)) for share, (_, hypothesis) in zip(shares, weights, strict=True)
    ]
    return tuple(hypotheses[:KEPT]), rejected


def _unique(candidates: Sequence[FaultHypothesis], index: EvidenceIndex) -> list[FaultHypothesis]:
    """One hypothesis per entity and fault: earliest start, all alerts, strength of the findings.

    It is over only if all of them are.
    """
    held: dict[tuple[EntityRef, str | None], FaultHypothesis] = {}
    for candidate in candidates:
        key = (candidate.entity, candidate.fault)
        known = held.get(key)
        if known is None:
            held[key] = candidate
            continue
        held[key] = replace(
            known,
            since=min(known.since, candidate.since),
            strength=max(known.strength, candidate.strength),
            firing=known.firing or candidate.firing,
            alerts=tuple(dict.fromkeys((*known.alerts, *candidate.alerts))),
            over=None if known.over is None or candidate.over is None else max(known.over, candidate.over),
        )
    return [replace(candidate, strength=index.strength(candidate)) for candidate in held.values()]


def _strength(
    number: int, candidates: Sequence[FaultHypothesis], explains: Sequence[Pair], index: EvidenceIndex
) -> float:
    """Own evidence, 0-1: detector scores, matching signs, a change that precedes two failing components."""
    candidate = candidates[number]
    known = index.knowledge.get(candidate.fault or "")
    if known is None:
        return 0.0
    strength = candidate.strength + SUPPORT_BONUS * min(2, len(index.supporting(candidate, known)))
    if candidate.fault in evidence_index.CHANGE_FAULTS and not candidate.alerts:
        failing = {candidates[pair.symptom].entity for pair in explains if candidates[pair.symptom].fault}
        strength += COMMON_CAUSE_BONUS if len(_apart(failing, index)) >= 2 else 0.0
    return min(1.0, strength)


def _apart(failing: set[EntityRef], index: EvidenceIndex) -> set[EntityRef]:
    """Entities that rest on no other of them: a pod and its replica are one failing component."""
    return {item for item in failing if not any(item in index.reach.up(other) for other in failing if other != item)}


def _raw_score(number: int, candidates: Sequence[FaultHypothesis], explains: Sequence[Pair], strength: float) -> float:
    """Strength times the share of alerts explained times the order in time."""
    candidate = candidates[number]
    explained = {pair.symptom for pair in explains if candidates[pair.symptom].alerts} | {number}
    seen = sum(bool(other.alerts) for other in candidates) + (0 if candidate.alerts else 1)
    share = len(explained) / max(1, seen)
    late = candidate.since - min(candidates[other].since for other in explained)
    order = 1.0 if late <= LATE else max(0.8, 1.0 - 0.02 * (late / timedelta(minutes=1)))
    return strength * (0.6 + 0.4 * share) * order


def _best_explainer(
    number: int,
    candidates: Sequence[FaultHypothesis],
    links: tuple[Sequence[Pair], Sequence[Pair]],
    strengths: Sequence[float],
    raw: Sequence[float],
) -> tuple[float, FaultHypothesis | None]:
    """Score and hypothesis of the best explanation of this one; (0, None) if there is none.

    ``links`` are the pairs in which it is the symptom, and those in which it is the cause. Of two that explain each
    other, one is the cause (``comes_first``).
    """
    score, best = 0.0, None
    explained_by, explains = links
    returned = {pair.symptom for pair in explains}
    for pair in explained_by:
        other = candidates[pair.cause]
        if strengths[pair.cause] < EXPLAINS_FROM or raw[pair.cause] <= score:
            continue
        if pair.cause in returned and not comes_first(other, candidates[number]):
            continue
        score, best = raw[pair.cause], other
    return score, best


def _evidence(
    number: int,
    candidates: Sequence[FaultHypothesis],
    explains: Sequence[Pair],
    explainer: FaultHypothesis | None,
    index: EvidenceIndex,
) -> tuple[Evidence, ...]:
    """Supporting evidence, then contradicting evidence."""
    candidate = candidates[number]
    evidence = [item for finding in index.matching_findings(candidate) for item in finding.evidence][:EVIDENCE_KEPT]
    evidence += [_xid(event) for event in index.events_at.get(candidate.entity, ()) if event.kind is EventKind.XID][:2]
    known = index.knowledge.get(candidate.fault or "")
    if known is not None:
        for finding, sign in index.supporting(candidate, known)[:2]:
            arguments = {"signal": sign.signal}
            evidence.append(
                Evidence(sign.signal, finding.observed, finding.expected, "incidents.evidence.supports", arguments)
            )
    evidence += [hint.evidence for hint in index.hints_for(candidate)[:HINTS_KEPT]]
    total = sum(bool(other.alerts) for other in candidates if other is not candidate)
    count = len({pair.symptom for pair in explains if candidates[pair.symptom].alerts})
    if count:
        evidence.append(_evidence_of("explains", count=str(count), total=str(total)))
    if explainer is not None:
        evidence.append(_evidence_of("explained_by", fault=explainer.fault or "", entity=str(explainer.entity)))
    return tuple(evidence)


def _xid(event: Event) -> Evidence:
    observed = float(event.code) if event.code.isdigit() else None
    return Evidence("hw_accel_fault_code", observed, None, "incidents.evidence.xid", {"code": named(event.code)})


def _evidence_of(text: str, **arguments: str) -> Evidence:
    return Evidence("", None, None, f"incidents.evidence.{text}", arguments)


def look_alikes(
    cause: FaultHypothesis, index: EvidenceIndex
) -> tuple[tuple[Hypothesis, ...], tuple[RejectedHypothesis, ...]]:
    """Alternatives of the cause: (not ruled out, ruled out).

    A look-alike is omitted if the topology lacks the node or service in question.
    """
    known = index.knowledge.get(cause.fault or "")
    if known is None:
        return (), ()
    open_alternatives, rejected = [], []
    for other in known.look_alikes:
        if not all(index.is_decidable(condition, cause.entity) for condition in other.when):
            continue
        entity = _stands_for(cause.entity, other, index)
        if all(index.holds(condition, cause.entity) for condition in other.when):
            rejected.append(RejectedHypothesis(entity, other.name, f"incidents.why.{other.why}"))
        elif other.name in faults():
            open_alternatives.append(Hypothesis(entity, other.name, 0.0, (_evidence_of("not_told_apart"),)))
    return tuple(open_alternatives), tuple(rejected)


def _parts(cause: FaultHypothesis, index: EvidenceIndex) -> tuple[Hypothesis, ...]:
    """Components that may have a fault reported for a whole, if single components have that fault.

    For example the GPUs of a group that runs at the speed of its slowest; those with anomalies first.
    """
    fault = faults().get(cause.fault or "")
    if fault is None or fault.entity is cause.entity.kind:
        return ()
    parts = index.reach.topology.below(cause.entity, fault.entity)
    scores = {part: max((finding.score for finding in index.findings_at.get(part, ())), default=0.0) for part in parts}
    ordered = sorted(parts, key=lambda part: (-scores[part], part.key))
    return tuple(Hypothesis(part, fault.id, 0.0, (_evidence_of("one_of", count=str(len(parts))),)) for part in ordered)


def _stands_for(entity: EntityRef, other: LookAlike, index: EvidenceIndex) -> EntityRef:
    """The entity of a look-alike: the nearest one of its kind, else the same entity."""
    fault = faults().get(other.name)
    if fault is None or fault.entity is entity.kind:
        return entity
    for candidate in index.standing.get(other.name, ()):
        if index.reach.topology.on_path(candidate.entity, entity):
            return candidate.entity
    topology = index.reach.topology
    near = (*topology.below(entity, fault.entity), *topology.above(entity, fault.entity))
    return near[0] if near else entity
