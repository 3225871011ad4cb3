"""Reasons for not acting: each decision to do nothing, with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from outrider.model import Action, EntityRef, GuardAnswer, HoldReason, Incident, Recommendation, StepState, StepStatus
from remediation.decide.context import DecisionContext, cause_of
from remediation.decide.limits import Hold


def holds(
    context: DecisionContext,
    incidents: Sequence[Incident],
    actions: Iterable[Action],
    steps: Iterable[StepStatus],
    troubled: frozenset[EntityRef],
) -> tuple[Hold, ...]:
    """One hold per open incident without a new decision, node that waits, and service whose plan is not followed."""
    decided = list(actions)
    acted = {action.because for action in decided}
    scaled = {action.target for action in decided}
    states = list(steps)
    idle = (incident for incident in incidents if incident.resolved_at is None and incident.id not in acted)
    return (
        *_of_incidents(context, idle, states),
        *(Hold(f"return {step.target}", _OF_RETURNS[step.state]) for step in states if step.state in _OF_RETURNS),
        *_of_plan(context, scaled, troubled),
    )


# The most telling state of several steps comes first.
_OF_STEPS = {
    StepState.FAILED: HoldReason.STEP_FAILED,
    StepState.HELD_BY_GUARD: HoldReason.HELD_BY_GUARD,
    StepState.VERIFYING: HoldReason.VERIFYING,
    StepState.PRECONDITION_NOT_MET: HoldReason.PRECONDITION_NOT_MET,
}
_OF_RETURNS = {
    StepState.DIAGNOSTIC_RUNNING: HoldReason.DIAGNOSTIC_RUNNING,
    StepState.DIAGNOSTIC_FAILED: HoldReason.DIAGNOSTIC_FAILED,
    StepState.NODE_NOT_REPORTED: HoldReason.NODE_NOT_REPORTED,
    StepState.LEVEL_UNMEASURED: HoldReason.LEVEL_UNMEASURED,
}


def _of_incidents(
    context: DecisionContext, incidents: Iterable[Incident], steps: Sequence[StepStatus]
) -> Iterator[Hold]:
    for incident in incidents:
        own = {step.state: step.objection for step in steps if step.incident == incident.id}
        objection: GuardAnswer | None = None
        cause = cause_of(incident)
        if cause is None:
            reason = HoldReason.CAUSE_UNKNOWN
        elif cause.fault not in context.playbooks:
            reason = HoldReason.NO_PLAYBOOK
        elif context.recovered(incident):
            reason = HoldReason.RECOVERED
        elif not context.playbooks[cause.fault].steps:
            reason = HoldReason.NO_REMEDY
        else:
            state = next((state for state in _OF_STEPS if state in own), None)
            reason = HoldReason.NO_STEP_DUE if state is None else _OF_STEPS[state]
            objection = None if state is None else own[state]
        yield Hold(incident.id, reason, objection)


def _of_plan(context: DecisionContext, scaled: set[EntityRef], troubled: frozenset[EntityRef]) -> Iterator[Hold]:
    for entry in context.plan.recommendations:
        if not isinstance(entry, Recommendation) or entry.service in scaled:
            continue
        if entry.target_replicas == entry.current_replicas:
            continue
        grows = entry.target_replicas > entry.current_replicas
        if grows and entry.needed_by is not None and entry.needed_by > context.now:
            reason = HoldReason.NOT_DUE_YET
        elif not grows and entry.service in troubled:
            reason = HoldReason.SERVICE_IN_TROUBLE
        else:
            reason = HoldReason.STANDS
        yield Hold(f"scale {entry.service}", reason)
