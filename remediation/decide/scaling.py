"""Scale actions of the capacity plan."""

from __future__ import annotations

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, EntityKind, EntityRef, Recommendation
from remediation.decide import approval, sessions
from remediation.decide.context import DecisionContext
from remediation.decide.guards import Proposal, judge
from remediation.decide.history import IN_FLIGHT, WAITING
from remediation.decide.record import record

_BECAUSE = "plan"


def from_plan(context: DecisionContext, troubled: frozenset[EntityRef]) -> list[Action]:
    """One decision per service whose plan needs another number of replicas now.

    A scale-out is due from ``needed_by`` on. ``troubled`` services, which have an open incident, are not scaled in. In
    shadow mode plans are reported without actions.
    """
    if not context.policy.plan_acts:
        return []
    actions: list[Action] = []
    for entry in context.plan.recommendations:
        if isinstance(entry, Recommendation) and entry.service not in context.budget.scaled:
            actions += _service(context, entry, entry.service in troubled)
    return actions


def _service(context: DecisionContext, entry: Recommendation, troubled: bool) -> list[Action]:
    newest = context.history.newest(sessions.PLAN_SESSION, ActionKind.SCALE, entry.service)
    grows = entry.target_replicas > entry.current_replicas
    due = not grows or entry.needed_by is None or entry.needed_by <= context.now
    if entry.target_replicas == entry.current_replicas or not due or (troubled and not grows):
        if newest is not None and newest.status in WAITING:
            return [approval.withdrawn(newest, context.now, DecisionReason.PLAN_CHANGED)]
        return []
    current, target = max(entry.current_replicas, _ordered_since(context, entry)), entry.target_replicas
    if grows and target <= current:
        return []
    replicas = target if grows else context.policy.scale_in_to(entry.current_replicas, target)
    if newest is not None and newest.params.get("replicas") == replicas and _stands(context, newest):
        return []
    proposal = Proposal(
        session=sessions.PLAN_SESSION,
        because=_BECAUSE,
        kind=ActionKind.SCALE,
        target=entry.service,
        params={
            **sessions.ownership(sessions.PLAN_SESSION),
            **context.objects(ActionKind.SCALE, entry.service),
            "replicas": replicas,
            "current": current if grows else entry.current_replicas,
        },
        scale_in=not grows,
        touches=() if grows else context.topology.below(entry.service, EntityKind.REPLICA),
    )
    judgement = judge(proposal, context.policy, context.facts, context.history, context.budget, context.now)
    # numbered by time: the plan's session never ends, and its early actions are no longer loaded
    return record(context, proposal, judgement, ordinal=int(context.now.timestamp()))


def _ordered_since(context: DecisionContext, entry: Recommendation) -> int:
    """Replicas that a playbook or an earlier action ordered after the plan was made; 0 if none did."""
    newest = context.history.last_scaled(entry.service)
    if newest is None or (newest.ended_at or newest.decided_at) < entry.made_at:
        return 0
    return int(newest.params["replicas"])


def _stands(context: DecisionContext, newest: Action) -> bool:
    """True while the same number is in flight, was only a dry run, or was set recently."""
    if newest.status in IN_FLIGHT or newest.status is ActionStatus.DRY_RUN:
        return True
    return newest.status is ActionStatus.DONE and context.now - newest.decided_at < context.policy.cooldown
