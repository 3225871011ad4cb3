"""Explanation of an incident as values: evidence for and against the cause, alternatives, remedies, owner.

Pure. Reads the incident and the knowledge of its faults; ``explanation_text`` renders it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from detectors.rca.fault_catalogue import FaultKnowledge, Knowledge, Sign
from detectors.rca.ranking import AGAINST
from outrider.model import ActionKind, EntityRef, Evidence, Hypothesis, Incident, Layer


class OwnerTeam(StrEnum):
    """The team that owns the affected component."""

    MODEL = "model"
    PLATFORM = "platform"
    HARDWARE = "hardware"


TEAM_OF: Mapping[Layer, OwnerTeam] = {
    Layer.HARDWARE: OwnerTeam.HARDWARE,
    Layer.PLATFORM: OwnerTeam.PLATFORM,
    Layer.MONITORING: OwnerTeam.PLATFORM,
    Layer.TRAFFIC: OwnerTeam.PLATFORM,  # routing, ingress and capacity belong to the platform
    Layer.ENGINE: OwnerTeam.MODEL,
    Layer.BUSINESS: OwnerTeam.MODEL,
}
MOST_DISTINGUISHING = 3  # signs that separate an alternative from the cause


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another hypothesis. ``confidence`` None: ruled out for the reason ``why``, the key of a text.

    ``telling`` are signs that it would show and the cause would not; ``checks`` are signals to check for it.
    """

    entity: EntityRef
    fault: str
    confidence: float | None
    why: str
    telling: tuple[Sign, ...]
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of an incident.

    ``unknown`` is the confidence (0-1) left for an unknown cause; ``known`` False means that the unknown cause is the
    most likely. ``quiet`` are signs of the cause without evidence so far.
    """

    incident: Incident
    cause: Hypothesis | None
    unknown: float
    known: bool
    team: OwnerTeam
    supporting: tuple[Evidence, ...]
    contradicting: tuple[Evidence, ...]
    quiet: tuple[Sign, ...]
    alternatives: tuple[Alternative, ...]
    checks: tuple[str, ...]
    remedy: tuple[ActionKind, ...]
    runbook: str


def explain(incident: Incident, knowledge: Knowledge) -> Explanation:
    """Explains an incident as it is now. A fault without knowledge has no checks and no remedy."""
    cause = incident.suspected_cause
    about = knowledge.get(cause.fault) if cause is not None else None
    evidence = cause.evidence if cause is not None else ()
    seen = {item.signal for item in evidence}
    unknown = incident.unknown_confidence
    return Explanation(
        incident=incident,
        cause=cause,
        unknown=unknown,
        known=cause is not None and cause.confidence >= unknown,
        team=TEAM_OF[incident.layer],
        supporting=tuple(item for item in evidence if item.text not in AGAINST),
        contradicting=tuple(item for item in evidence if item.text in AGAINST),
        quiet=tuple(sign for sign in about.signs if sign.signal not in seen) if about is not None else (),
        alternatives=_alternatives(incident, about, knowledge),
        checks=about.checks if about is not None else (),
        remedy=about.remedy if about is not None else (),
        runbook=about.runbook if about is not None else "",
    )


def _alternatives(incident: Incident, about: FaultKnowledge | None, knowledge: Knowledge) -> tuple[Alternative, ...]:
    """Possible alternatives best first, then those ruled out; one per fault."""
    result: dict[str, Alternative] = {}
    cause = incident.suspected_cause
    for other in incident.hypotheses[1:]:
        if cause is not None and other.fault == cause.fault:
            continue
        result.setdefault(other.fault, _alternative(other.entity, other.fault, other.confidence, "", about, knowledge))
    for item in incident.rejected:
        result.setdefault(item.fault, _alternative(item.entity, item.fault, None, item.why, about, knowledge))
    return tuple(result.values())


def _alternative(
    entity: EntityRef,
    fault: str,
    confidence: float | None,
    why: str,
    about: FaultKnowledge | None,
    knowledge: Knowledge,
) -> Alternative:
    known = knowledge.get(fault)
    if known is None:
        return Alternative(entity, fault, confidence, why, (), ())
    shared = {(sign.signal, sign.moves) for sign in about.signs} if about is not None else set()
    telling = tuple(sign for sign in known.signs if (sign.signal, sign.moves) not in shared)
    return Alternative(entity, fault, confidence, why, telling[:MOST_DISTINGUISHING], known.checks)
