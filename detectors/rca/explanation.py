"""Explanation of an incident as values: evidence for and against the cause, alternatives, remedies, owner.

Pure. Reads the incident, its actions and the knowledge of its faults; ``explanation_text`` renders it.

Only an observation contradicts a cause: another hypothesis explains it, or a look-alike is not ruled out. A missing one
does not. Detectors report what deviates, so a sign without evidence has not moved yet, or is not measured: it belongs
to the next checks. A sign is shown by evidence of the same quantity on the whole or on its parts: a service's queue is
that of its replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from detectors.rca.fault_catalogue import FaultKnowledge, Knowledge, Sign
from detectors.rca.ranking import AGAINST
from outrider.model import Action, ActionKind, ActionStatus, EntityRef, Evidence, Hypothesis, Incident, Layer
from outrider.vocabulary import catalog


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
# An action of these states was not performed, and its kind is still possible.
_UNDECIDED = frozenset({ActionStatus.PROPOSED, ActionStatus.REFUSED, ActionStatus.CANCELLED})


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
    most likely. ``unseen`` are signs of the cause without evidence so far; they contradict nothing. ``remedy`` are the
    kinds of actions that may end it, ``decided`` the newest action of each that was decided already.
    """

    incident: Incident
    cause: Hypothesis | None
    unknown: float
    known: bool
    team: OwnerTeam
    supporting: tuple[Evidence, ...]
    contradicting: tuple[Evidence, ...]
    unseen: tuple[Sign, ...]
    alternatives: tuple[Alternative, ...]
    checks: tuple[str, ...]
    remedy: tuple[ActionKind, ...]
    decided: tuple[Action, ...]
    runbook: str

    @property
    def possible(self) -> tuple[ActionKind, ...]:
        """The kinds of the remedy of which none is decided yet."""
        decided = {action.kind for action in self.decided}
        return tuple(kind for kind in self.remedy if kind not in decided)


def explain(incident: Incident, knowledge: Knowledge, actions: Iterable[Action] = ()) -> Explanation:
    """Explains an incident as it is now. A fault without knowledge has no checks and no remedy.

    ``actions`` are those of the incident.
    """
    cause = incident.suspected_cause
    about = knowledge.get(cause.fault) if cause is not None else None
    evidence = cause.evidence if cause is not None else ()
    unknown = incident.unknown_confidence
    remedy = about.remedy if about is not None else ()
    return Explanation(
        incident=incident,
        cause=cause,
        unknown=unknown,
        known=cause is not None and cause.confidence >= unknown,
        team=TEAM_OF[incident.layer],
        supporting=tuple(item for item in evidence if item.text not in AGAINST),
        contradicting=tuple(item for item in evidence if item.text in AGAINST),
        unseen=_unseen(about, evidence),
        alternatives=_alternatives(incident, about, knowledge),
        checks=about.checks if about is not None else (),
        remedy=remedy,
        decided=_decided(remedy, sorted(actions, key=lambda action: action.decided_at)),
        runbook=about.runbook if about is not None else "",
    )


def _decided(remedy: Sequence[ActionKind], actions: Sequence[Action]) -> tuple[Action, ...]:
    """The newest action of each kind of the remedy; ``actions`` are oldest first."""
    newest = {action.kind: action for action in actions if action.status not in _UNDECIDED}
    return tuple(newest[kind] for kind in remedy if kind in newest)


def _unseen(about: FaultKnowledge | None, evidence: Sequence[Evidence]) -> tuple[Sign, ...]:
    """Signs whose quantity no evidence shows, neither on the whole nor on its parts; one sign per quantity."""
    shown = {_quantity(item.signal) for item in evidence}
    unseen: dict[tuple[str, str], Sign] = {}
    for sign in about.signs if about is not None else ():
        if _quantity(sign.signal) not in shown:
            unseen.setdefault((_quantity(sign.signal), sign.moves), sign)
    return tuple(unseen.values())


def _quantity(signal: str) -> str:
    known = catalog.signals().get(signal)
    return known.quantity if known is not None else signal


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
    shared = {(_quantity(sign.signal), sign.moves) for sign in about.signs} if about is not None else set()
    telling = tuple(sign for sign in known.signs if (_quantity(sign.signal), sign.moves) not in shared)
    return Alternative(entity, fault, confidence, why, telling[:MOST_DISTINGUISHING], known.checks)
