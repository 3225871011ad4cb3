"""The whole answer about one incident, as values: why this cause, what speaks against it, what else, who mends it.

Pure. Reads what the incident already says and what is known of its faults; ``explanation_words`` puts it into words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from detectors.rca.fault_catalogue import FaultKnowledge, Knowledge, Sign
from detectors.rca.ranking import AGAINST
from outrider.model import ActionKind, EntityRef, Evidence, Hypothesis, Incident, Layer


class Team(StrEnum):
    """Who owns what is broken."""

    MODEL = "model"
    PLATFORM = "platform"
    HARDWARE = "hardware"


TEAM_OF: Mapping[Layer, Team] = {
    Layer.HARDWARE: Team.HARDWARE,
    Layer.PLATFORM: Team.PLATFORM,
    Layer.MONITORING: Team.PLATFORM,
    Layer.TRAFFIC: Team.PLATFORM,  # routing, entry and capacity are the platform's; what is asked is nobody's
    Layer.ENGINE: Team.MODEL,
    Layer.BUSINESS: Team.MODEL,
}
MOST_TELLING = 3  # signs that tell an alternative from the cause


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another answer. ``confidence`` None: it was ruled out for the reason ``why``, the key of a text.

    ``telling`` are signs that it would show and the cause would not, ``checks`` signals to look at for it.
    """

    entity: EntityRef
    fault: str
    confidence: float | None
    why: str
    telling: tuple[Sign, ...]
    checks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything to be said of an incident.

    ``unknown`` is the share (0-1) that is left for a cause that nobody named; ``known`` False means that this is
    the best answer: "we do not know". ``quiet`` are signs of the cause that nothing has shown so far.
    """

    incident: Incident
    cause: Hypothesis | None
    unknown: float
    known: bool
    team: Team
    speaks_for: tuple[Evidence, ...]
    speaks_against: tuple[Evidence, ...]
    quiet: tuple[Sign, ...]
    alternatives: tuple[Alternative, ...]
    checks: tuple[str, ...]
    remedy: tuple[ActionKind, ...]
    runbook: str


def explain(incident: Incident, knowledge: Knowledge) -> Explanation:
    """The explanation of an incident as it stands. A fault that nobody knows any more has no checks and no remedy."""
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
        speaks_for=tuple(item for item in evidence if item.text not in AGAINST),
        speaks_against=tuple(item for item in evidence if item.text in AGAINST),
        quiet=tuple(sign for sign in about.signs if sign.signal not in seen) if about is not None else (),
        alternatives=_alternatives(incident, about, knowledge),
        checks=about.checks if about is not None else (),
        remedy=about.remedy if about is not None else (),
        runbook=about.runbook if about is not None else "",
    )


def _alternatives(incident: Incident, about: FaultKnowledge | None, knowledge: Knowledge) -> tuple[Alternative, ...]:
    """What is still possible, best first, then what was ruled out; of one fault on many components the first."""
    found: dict[str, Alternative] = {}
    cause = incident.suspected_cause
    for other in incident.hypotheses[1:]:
        if cause is not None and other.fault == cause.fault:
            continue
        found.setdefault(other.fault, _alternative(other.entity, other.fault, other.confidence, "", about, knowledge))
    for one in incident.rejected:
        found.setdefault(one.fault, _alternative(one.entity, one.fault, None, one.why, about, knowledge))
    return tuple(found.values())


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
    return Alternative(entity, fault, confidence, why, telling[:MOST_TELLING], known.checks)
