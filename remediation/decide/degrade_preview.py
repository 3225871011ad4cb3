"""The next level of a degrade ladder with its thresholds and guards, as a person reads it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outrider.model import EntityRef, GuardAnswer, Incident, RemediationSession
from remediation.decide import comparisons, degrade, sessions
from remediation.decide.context import DecisionContext
from remediation.decide.degrade import EntryObstacle, EntryThreshold, Standing
from remediation.decide.guards import Proposal, answers
from remediation.decide.history import LADDER
from remediation.procedures.degrade_ladder import Ladder, Level


@dataclass(frozen=True, slots=True)
class PreviewedLevel:
    """The present level of a service and the next one. ``proposal`` and ``level`` are None at the deepest level.

    ``obstacles`` are the reasons for which it does not begin now.
    """

    service: EntityRef
    current: Standing
    ladder: Ladder
    level: Level | None = None
    proposal: Proposal | None = None
    answers: tuple[GuardAnswer, ...] = ()
    thresholds: tuple[EntryThreshold, ...] = ()
    obstacles: tuple[EntryObstacle, ...] = ()


def preview(context: DecisionContext, incident: Incident) -> list[PreviewedLevel]:
    """The ladder of each service that the load of an incident reaches."""
    result = []
    for _, cause, service in degrade.overloaded(context, [incident]):
        ladder, current = context.procedures.ladders.of(service.name), degrade.standing(context.history, service)
        if ladder is None:
            continue
        level = degrade.next_level(context, service, ladder)
        if level is None:
            result.append(PreviewedLevel(service, current, ladder))
            continue
        session = _session(context, incident, service)
        measured = degrade.measurements(context, service, level)
        proposal = degrade.proposal_of(context, incident, cause, session, service, level, measured)
        given = answers(proposal, context.policy, context.facts, context.history, context.budget, context.now)
        given = comparisons.explained(context, proposal, given)
        thresholds = degrade.thresholds(context, service, ladder, level)
        obstacles = tuple(degrade.obstacles(context, service, ladder, level, session))
        result.append(PreviewedLevel(service, current, ladder, level, proposal, given, thresholds, obstacles))
    return result


def _session(context: DecisionContext, incident: Incident, service: EntityRef) -> RemediationSession:
    """The session that changed the level for the incident, else a new one."""
    own = [
        action
        for action in context.history.actions
        if action.because == incident.id and action.kind in LADDER and action.target == service
    ]
    new = sessions.open_session(incident, context.now)
    return replace(new, id=own[-1].session) if own else new
