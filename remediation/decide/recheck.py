"""The guards at the moment of acting, minutes or an approval after the decision. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, EntityKind, EntityRef, Verdict
from remediation.decide.autonomy import Autonomy
from remediation.decide.context import out_of_rotation, replicas_reached
from remediation.decide.disruption import blocking_budgets
from remediation.decide.guards import (
    CapacityBudget,
    Proposal,
    below_minimum,
    has_headroom,
    held_by,
    is_returning,
    missed_window,
    nodes_of,
    nodes_stopped,
    scope_of_action,
)
from remediation.decide.history import CORDONING, IN_FLIGHT, LADDER, STOPPING, History, gives_back
from remediation.decide.limits import FleetFacts, Policy
from remediation.decide.owners import objection
from remediation.decide.time_windows import frozen_by
from remediation.playbooks.model import Playbook

INTENT_EXPIRES = timedelta(minutes=15)  # one engine outage; the next cycle decides again
_TAKING = frozenset(
    {
        *(ActionKind.SHIFT_TRAFFIC, ActionKind.RESTART_POD, ActionKind.DELETE_STUCK_POD, ActionKind.DRAIN),
        *(ActionKind.SLEEP_ENGINE, ActionKind.DRAIN_ENGINE, ActionKind.RESET_GPU, ActionKind.REBOOT_NODE),
    }
)


def takes_capacity(action: Action) -> bool:
    """True if the replicas that are left must be counted."""
    return action.kind in _TAKING and not gives_back(action)


def needs_others(action: Action) -> bool:
    """True if ``recheck`` depends on the other actions: their capacity, or a person who has ended a level meanwhile."""
    return takes_capacity(action) or action.kind in LADDER | STOPPING


def recheck(
    action: Action,
    policy: Policy,
    facts: FleetFacts,
    now: datetime,
    *,
    others: Sequence[Action] = (),
    playbooks: Mapping[str, Playbook] | None = None,
) -> DecisionReason | None:
    """Checks an intended action again before it is performed, as the fleet may have changed; None means proceed.

    An approval does not override a guard, and an action without approval expires. Undo actions are only held by a
    pause, the kill switch and lost monitoring. An action that has begun may end after its maintenance window.
    A failed trial of a replica ends as it began: the diversion itself was allowed before. ``others`` are the actions
    of the last day and of open sessions, as stored.
    """
    held = held_by(facts, action.target, str(action.params.get("lost_cluster", "")))
    if held is DecisionReason.MONITOR_BLIND and action.reason is DecisionReason.RESTORED_BY_HAND:
        return None  # a person who ends a degrade level needs no values
    if action.kind in LADDER and _is_ended_by_hand(action, others):
        return DecisionReason.RESTORED_BY_HAND
    if held is not None or gives_back(action) or is_returning(action.kind, action.reason):
        return held
    if policy.unreached(action.kind, action.target):
        return DecisionReason.OTHER_CLUSTER
    owner = objection(action.kind, action.target, facts.owners, writes_replicas=policy.writes_replicas)
    if owner is not None and (owner.verdict is Verdict.REFUSED or action.approved_by is None):
        return owner.reason
    history = History(_begun_before(action, others, now))
    begun = action.started_at or now  # an action in several attempts may take longer than an intent may wait
    if action.approved_by is None and begun - action.decided_at > INTENT_EXPIRES:
        return DecisionReason.EXPIRED
    return (
        _recheck_limits(action, policy, facts, now)
        or _recheck_capacity(action, policy, facts, history)
        or _recheck_services(action, policy, facts, now, history, playbooks or {})
    )


def _is_ended_by_hand(action: Action, others: Iterable[Action]) -> bool:
    """True for a change of level that was decided while a person ended the levels of its incident."""
    return action.reason is not DecisionReason.RESTORED_BY_HAND and any(
        other.reason is DecisionReason.RESTORED_BY_HAND
        and (other.target, other.because) == (action.target, action.because)
        and other.status in IN_FLIGHT | {ActionStatus.DONE}
        for other in others
    )


def _recheck_limits(action: Action, policy: Policy, facts: FleetFacts, now: datetime) -> DecisionReason | None:
    """The operator's limits, which may have changed since the decision."""
    if facts.breaker.is_open:
        return DecisionReason.BREAKER_OPEN
    scope = scope_of_action(action.because, action.target, (), policy, facts)
    level, begun = policy.autonomy.of(scope), bool(action.detail)
    if begun and not facts.topology.above(action.target, EntityKind.SERVICE):
        level = Autonomy.ACT  # a drained node has no service any more, so the level of its services is not known
    if level is Autonomy.OBSERVE:
        return DecisionReason.AUTONOMY_OBSERVE
    if level is not Autonomy.ACT and action.approved_by is None:
        return DecisionReason.AUTONOMY_APPROVE
    if frozen_by(policy.freezes, scope, now):
        return DecisionReason.FREEZE
    missed = not (begun or action.params.get("lost_cluster")) and missed_window(action.kind, policy, scope, now)
    return DecisionReason.NOT_IN_MAINTENANCE_WINDOW if missed else None


def _recheck_capacity(action: Action, policy: Policy, facts: FleetFacts, history: History) -> DecisionReason | None:
    if action.kind is ActionKind.DEGRADE_SERVICE and action.target in facts.untrusted:
        return DecisionReason.VALUES_NOT_TRUSTED
    shrinks = action.kind is ActionKind.SCALE and action.params.get("replicas", 0) < action.params.get("current", 0)
    if shrinks and action.target in facts.untrusted:
        return DecisionReason.VALUES_NOT_TRUSTED
    begun = bool(action.detail) and action.kind not in CORDONING
    if action.kind in STOPPING and not begun:  # a node that restarts has no values for a while
        nodes = nodes_of(action.target, facts.topology)
        if (nodes - facts.not_ready) & facts.untrusted:
            return DecisionReason.VALUES_NOT_TRUSTED
        if nodes <= facts.nodes_cordoned_by_us and action.kind not in CORDONING:
            return None  # counted when it was cordoned
        ours = nodes_stopped(facts, history) - nodes
        others = facts.nodes_cordoned_by_others - ours - nodes
        return None if policy.node_allowed(len(ours), len(others), facts.nodes_total) else DecisionReason.TOO_MANY_NODES
    if shrinks:
        needed = facts.needed_replicas.get(action.target)
        if needed is None:
            return DecisionReason.VALUES_NOT_TRUSTED
        return DecisionReason.NO_HEADROOM if action.params["replicas"] < needed else None
    return None


def _recheck_services(
    action: Action,
    policy: Policy,
    facts: FleetFacts,
    now: datetime,
    history: History,
    playbooks: Mapping[str, Playbook],
) -> DecisionReason | None:
    """The capacity of the services. A begun drain follows the disruption budgets itself.

    Another action that has begun has already taken its replicas.
    """
    begun = bool(action.detail)
    if not takes_capacity(action) or (begun and action.kind is not ActionKind.DRAIN):
        return None
    if not begun and blocking_budgets(action.kind, action.target, facts.topology):
        return DecisionReason.DISRUPTION_BUDGET
    proposal = Proposal(
        action.session,
        action.because,
        action.kind,
        action.target,
        params=action.params,
        takes=_takes(action, facts, history, playbooks),
    )
    budget = CapacityBudget(facts, history, now, _away(action, facts, history))
    tight = below_minimum(proposal, policy, facts, budget)
    if tight is not None or begun or _accepts_risk(action):
        return tight
    return None if has_headroom(proposal, facts, budget) else DecisionReason.NO_HEADROOM


def _accepts_risk(action: Action) -> bool:
    """True if a person approved the action although the remaining replicas would not carry the load."""
    known = any(answer.reason is DecisionReason.NO_HEADROOM for answer in action.objections)
    return action.approved_by is not None and known


def _begun_before(action: Action, others: Iterable[Action], now: datetime) -> list[Action]:
    """Other actions without those in flight that begin after this one: they count this one instead."""
    place = (action.started_at or now, action.id)
    return [
        other
        for other in others
        if other.id != action.id
        and (other.status not in IN_FLIGHT or (other.started_at and (other.started_at, other.id) < place))
    ]


def _takes(
    action: Action, facts: FleetFacts, history: History, playbooks: Mapping[str, Playbook]
) -> dict[EntityRef, int]:
    """Serving replicas that each service would lose now, as the decision counted them."""
    incident, playbook = facts.incidents.get(action.because), playbooks.get(str(action.params.get("fault")))
    cause = incident.suspected_cause if incident else None
    stopped = cause is not None and playbook is not None and not playbook.serving
    broken = facts.topology.affected_by(cause.entity) if cause and stopped else frozenset()
    counted = facts.healthy if facts.serving is None else facts.serving
    able = (counted - history.diverted()) - (broken - facts.healthy)
    lost: dict[EntityRef, int] = {}
    for replica in replicas_reached(facts.topology, action.target):
        for service in facts.topology.above(replica, EntityKind.SERVICE):
            lost[service] = lost.get(service, 0) + (replica in able)
    return lost


def _away(action: Action, facts: FleetFacts, history: History) -> dict[EntityRef, int]:
    """Replicas of each service that others than this action have taken, and that still count as ready."""
    result: dict[EntityRef, int] = {}
    own = frozenset(replicas_reached(facts.topology, action.target)) - history.diverted()
    for replica in out_of_rotation(history, facts.topology, facts) - own:
        for service in facts.topology.above(replica, EntityKind.SERVICE):
            result[service] = result.get(service, 0) + 1
    return result
