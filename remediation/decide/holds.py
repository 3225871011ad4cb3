"""Reasons for not acting: each decision to do nothing, with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from outrider.model import Action, EntityRef, HoldReason, Incident, Recommendation
from remediation.decide.context import DecisionContext, cause_of
from remediation.decide.limits import Hold


def holds(
    context: DecisionContext, incidents: Sequence[Incident], actions: Iterable[Action], troubled: frozenset[EntityRef]
) -> tuple[Hold, ...]:
    """One hold per open incident without a new decision, and per service whose plan is not followed now."""
    decided = list(actions)
    acted = {action.because for action in decided}
    scaled = {action.target for action in decided}
    return (
        *_of_incidents(
            context, (incident for incident in incidents if incident.resolved_at is None and incident.id not in acted)
        ),
        *_of_plan(context, scaled, troubled),
    )


def _of_incidents(context: DecisionContext, incidents: Iterable[Incident]) -> Iterator[Hold]:
    for incident in incidents:
        cause = cause_of(incident)
        if cause is None:
            reason = HoldReason.CAUSE_UNKNOWN
        elif cause.fault not in context.playbooks:
            reason = HoldReason.NO_PLAYBOOK
        elif context.recovered(incident):
            reason = HoldReason.RECOVERED
        else:
            reason = HoldReason.NO_STEP_DUE
        yield Hold(incident.id, reason)


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
