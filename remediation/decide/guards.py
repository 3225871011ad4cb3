"""Guards: allow, refuse or request approval, each with its reason. Pure.

A refusal takes precedence over an approval request. Undo is only blocked by a pause, by the kill switch and by lost
monitoring: no breaker, freeze, maintenance window, disruption budget or approval ever holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from outrider.model import TARGET_KINDS, ActionKind, DecisionReason, EntityKind, EntityRef, GuardAnswer, Verdict
from outrider.topology import Topology
from remediation.decide.autonomy import PLAN, Autonomy, Scope, scope_of
from remediation.decide.disruption import blocking_budgets
from remediation.decide.history import STOPPING, History
from remediation.decide.limits import FleetFacts, Policy
from remediation.decide.owners import OwnerObjection, objection
from remediation.decide.service_entry import lost
from remediation.decide.sessions import PLAN_SESSION
from remediation.decide.time_windows import frozen_by, missed_windows

__all__ = ["CapacityBudget", "GuardAnswer", "Judgement", "Proposal", "answers", "judge", "judge_undo"]
_HOUR = timedelta(hours=1)
# An undo whose kind alone does not show it: an engine that we put to sleep is woken, a replica's trial has failed.
_RETURNING = {
    ActionKind.WAKE_ENGINE: DecisionReason.RECOVERED,
    ActionKind.SHIFT_TRAFFIC: DecisionReason.FAILED_AGAIN,
}
# Diverting load protects users at once, also the second time. The ladder has minimum times of its own.
AT_ONCE = frozenset({ActionKind.SHIFT_TRAFFIC, ActionKind.SWITCH_CLUSTER, ActionKind.DEGRADE_SERVICE})
Judgement = tuple[Verdict, DecisionReason]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One proposed action.

    ``takes`` is the number of serving replicas that each service would lose. ``confidence`` None means that no
    suspected cause is involved. ``scale_in`` marks a SCALE that goes down, to ``params["replicas"]``. ``lost_cluster``
    requires the action although monitoring is blind there. ``undoes``: it returns to normal, which no limit blocks.
    """

    session: str
    because: str
    kind: ActionKind
    target: EntityRef
    params: Mapping[str, Any] = field(default_factory=dict)
    takes: Mapping[EntityRef, int] = field(default_factory=dict)
    touches: tuple[EntityRef, ...] = ()
    confidence: float | None = None
    ask: bool = False
    scale_in: bool = False
    lost_cluster: str = ""
    undoes: bool = False


def nodes_of(target: EntityRef, topology: Topology) -> frozenset[EntityRef]:
    """The nodes that an action on a node or device takes out of service."""
    return frozenset({target} if target.kind is EntityKind.NODE else topology.below(target, EntityKind.NODE))


def nodes_stopped(facts: FleetFacts, history: History) -> frozenset[EntityRef]:
    """The nodes that are out of service because of us, or about to be. One that monitoring lost may still exist."""
    ours = (facts.nodes_cordoned_by_us | history.cordoned()) - (facts.deleted_nodes - history.existing())
    stopping = history.in_flight(STOPPING)
    return ours.union(*(nodes_of(action.target, facts.topology) for action in stopping))


class CapacityBudget:
    """Capacity already used by this round of decisions, in addition to actions in flight."""

    def __init__(self, facts: FleetFacts, history: History, now: datetime, away: Mapping[EntityRef, int]) -> None:
        """Starts from the fleet and the actions not yet visible in it.

        ``away`` is the number of replicas per service that count as ready but get no traffic because of us.
        """
        self.nodes = set(nodes_stopped(facts, history))
        self._topology = facts.topology
        self.removed = dict(away)
        self.performed = history.performed_since(now - _HOUR)
        self.scaled: set[EntityRef] = set()
        self.rolled_back: set[EntityRef] = set()

    def enter(self, proposal: Proposal) -> None:
        """Adds an action that will be performed."""
        self.performed += not proposal.undoes
        if proposal.kind in STOPPING:
            self.nodes |= nodes_of(proposal.target, self._topology)
        if proposal.kind is ActionKind.SCALE:
            self.scaled.add(proposal.target)
        if proposal.kind is ActionKind.ROLLBACK:
            self.rolled_back.add(proposal.target)
        for service, count in proposal.takes.items():
            self.removed[service] = self.removed.get(service, 0) + count

    def ready(self, facts: FleetFacts, service: EntityRef) -> int | None:
        """Serving replicas left after all entered actions; None if unknown."""
        result = facts.ready_replicas.get(service)
        return None if result is None else result - self.removed.get(service, 0)


def judge(
    proposal: Proposal, policy: Policy, facts: FleetFacts, history: History, budget: CapacityBudget, now: datetime
) -> Judgement:
    """The first refusal that applies, else the first approval request, else allow."""
    return judgement_of(answers(proposal, policy, facts, history, budget, now))


def answers(
    proposal: Proposal, policy: Policy, facts: FleetFacts, history: History, budget: CapacityBudget, now: datetime
) -> tuple[GuardAnswer, ...]:
    """The answer of every guard: those that refuse first, then those that request approval."""
    doubtful = proposal.confidence is not None and proposal.confidence < policy.min_confidence
    reported = proposal.because in facts.reported_only and not proposal.undoes
    owner = objection(proposal.kind, proposal.target, facts.owners, writes_replicas=policy.writes_replicas)
    approval_required = proposal.ask or (proposal.kind in policy.ask_for | policy.two_person and not proposal.undoes)
    scope = scope_of_action(proposal.because, proposal.target, proposal.takes, policy, facts)
    frozen = frozen_by(policy.freezes, scope, now)
    waits = not (proposal.undoes or proposal.lost_cluster)  # an outage does not wait for a maintenance window
    missed = missed_window(proposal.kind, policy, scope, now) if waits else ""
    budgets = ", ".join(blocking_budgets(proposal.kind, proposal.target, facts.topology))
    level = Autonomy.ACT if proposal.undoes else policy.autonomy.of(scope)
    unreached = policy.unreached(proposal.kind, proposal.target)
    refusals = {
        "target": None if proposal.target.kind in TARGET_KINDS[proposal.kind] else DecisionReason.WRONG_TARGET,
        "performer": DecisionReason.NO_PERFORMER if proposal.kind in policy.unperformed else None,
        "cluster": DecisionReason.OTHER_CLUSTER if unreached else None,
        "hold": held_by(facts, proposal.target, proposal.lost_cluster),
        "breaker": DecisionReason.BREAKER_OPEN if facts.breaker.is_open and not proposal.undoes else None,
        "freeze": DecisionReason.FREEZE if frozen and not proposal.undoes else None,
        "maintenance_window": DecisionReason.NOT_IN_MAINTENANCE_WINDOW if missed else None,
        "trusted_values": _untrusted(proposal, facts),
        "cooldown": _too_soon(proposal, policy, facts, history, now),
        "rate_limit": None if proposal.undoes else _too_many(policy, budget),
        "foreign_cordon": _foreign_cordon(proposal, facts, budget),
        "node_breaker": _too_many_nodes(proposal, policy, facts, budget),
        "service_minimum": below_minimum(proposal, policy, facts, budget),
        "disruption_budget": DecisionReason.DISRUPTION_BUDGET if budgets else None,
        "survivors": _survivors(proposal, policy, facts),
    }
    requests = {
        "confidence": DecisionReason.LOW_CONFIDENCE if doubtful else None,
        "own_evidence": DecisionReason.REPORTED_ONLY if reported else None,
        "headroom": None if has_headroom(proposal, facts, budget) else DecisionReason.NO_HEADROOM,
        "approval": DecisionReason.NEEDS_APPROVAL if approval_required else None,
    }
    details = {"cluster": unreached, "freeze": frozen, "maintenance_window": missed, "disruption_budget": budgets}
    return (
        *(_answer(name, Verdict.REFUSED, reason, details.get(name, "")) for name, reason in refusals.items()),
        _owner_answer(owner),
        *(_answer(name, Verdict.ASK, reason) for name, reason in requests.items()),
        _of_level(level),
    )


def level_of(proposal: Proposal, policy: Policy, facts: FleetFacts) -> Autonomy:
    """The level of autonomy that a proposal has."""
    return policy.autonomy.of(scope_of_action(proposal.because, proposal.target, proposal.takes, policy, facts))


def scope_of_action(
    because: str, target: EntityRef, affected: Iterable[EntityRef], policy: Policy, facts: FleetFacts
) -> Scope:
    """The playbook, services and environments of an action. The capacity plan counts as a playbook."""
    incident = facts.incidents.get(because)
    cause = incident.suspected_cause if incident else None
    playbook = PLAN if because == PLAN else cause.fault if cause else None
    return scope_of(playbook, target, affected, facts.topology, policy.environments)


def judgement_of(given: Iterable[GuardAnswer]) -> Judgement:
    """The judgement that follows from the answers of all guards."""
    objections = [answer for answer in given if answer.verdict is not Verdict.ALLOWED]
    for verdict in (Verdict.REFUSED, Verdict.ASK):
        for answer in objections:
            if answer.verdict is verdict:
                return verdict, answer.reason
    return Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS


def _answer(guard: str, verdict: Verdict, reason: DecisionReason | None, detail: str = "") -> GuardAnswer:
    if reason is None:
        return GuardAnswer(guard, Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS)
    return GuardAnswer(guard, verdict, reason, detail)


def _of_level(level: Autonomy) -> GuardAnswer:
    if level is Autonomy.OBSERVE:
        return _answer("autonomy", Verdict.REFUSED, DecisionReason.AUTONOMY_OBSERVE)
    if level is Autonomy.RECOMMEND:
        return _answer("autonomy", Verdict.ASK, DecisionReason.AUTONOMY_RECOMMEND)
    return _answer("autonomy", Verdict.ASK, DecisionReason.AUTONOMY_APPROVE if level is Autonomy.APPROVE else None)


def missed_window(kind: ActionKind, policy: Policy, scope: Scope, now: datetime) -> str:
    """The maintenance windows that a disruptive kind waits for; empty if none holds it."""
    return missed_windows(policy.maintenance_windows, scope, now) if kind in policy.disruptive else ""


def _owner_answer(owner: OwnerObjection | None) -> GuardAnswer:
    if owner is None:
        return _answer("owner", Verdict.ALLOWED, None)
    return GuardAnswer("owner", owner.verdict, owner.reason, owner.owner)


def judge_undo(facts: FleetFacts, target: EntityRef) -> Judgement:
    """Undoing our own changes: no circuit breaker, freeze, window, approval or rate limit."""
    held = held_by(facts, target)
    return (Verdict.REFUSED, held) if held else (Verdict.ALLOWED, DecisionReason.RECOVERED)


def is_returning(kind: ActionKind, reason: DecisionReason) -> bool:
    """True for an undo that only its reason shows."""
    return _RETURNING.get(kind) is reason


def held_by(facts: FleetFacts, target: EntityRef, lost_cluster: str = "") -> DecisionReason | None:
    """What holds every action on a target.

    A lost cluster blinds its own monitoring: what its loss requires goes on while other clusters are visible, and so
    does every repair in those. Without proof of the loss the fault may be ours, and nothing is done anywhere.
    """
    if facts.killed:
        return DecisionReason.KILL_SWITCH
    if facts.paused:
        return DecisionReason.PAUSED
    if not facts.blind or (lost_cluster and lost(facts.entries, lost_cluster, timedelta(0))):
        return None
    unseen = facts.blind_clusters
    if unseen and target.cluster not in unseen and all(lost(facts.entries, name, timedelta(0)) for name in unseen):
        return None
    return DecisionReason.MONITOR_BLIND


def concerned_by(proposal: Proposal, facts: FleetFacts) -> frozenset[EntityRef]:
    """Safety rule 1: the components without whose values nothing is stopped, scaled in or degraded; else none."""
    if proposal.kind is ActionKind.DEGRADE_SERVICE:
        return frozenset({proposal.target})
    if proposal.kind not in STOPPING and not proposal.scale_in:
        return frozenset()
    # what a reset repairs may have no values; its node must
    stopped = nodes_of(proposal.target, facts.topology) if proposal.kind in STOPPING else {proposal.target}
    # a node that the control plane itself has lost has no values either: that is no outage of the metrics
    return frozenset({*(stopped - facts.not_ready), *proposal.touches, *proposal.takes})


def untrusted_of(proposal: Proposal, facts: FleetFacts) -> frozenset[EntityRef]:
    """The components among them whose values are not trusted, or whose replicas are not counted."""
    concerned = concerned_by(proposal, facts)
    taken = concerned.intersection(proposal.takes)
    return (concerned & facts.untrusted) | (taken - facts.ready_replicas.keys())


def _untrusted(proposal: Proposal, facts: FleetFacts) -> DecisionReason | None:
    return DecisionReason.VALUES_NOT_TRUSTED if untrusted_of(proposal, facts) else None


def _too_soon(
    proposal: Proposal, policy: Policy, facts: FleetFacts, history: History, now: datetime
) -> DecisionReason | None:
    if proposal.kind in AT_ONCE:
        return None
    if outgrown(proposal, facts):
        return None  # a surge that outgrows the last scale-out does not wait
    last = history.last_performed(proposal.kind, proposal.target)
    return DecisionReason.COOLDOWN if last is not None and now - last < cooldown_of(proposal, policy) else None


def cooldown_of(proposal: Proposal, policy: Policy) -> timedelta:
    """The time between two such actions on one target."""
    return policy.scale_in_cooldown if proposal.scale_in else policy.cooldown


def outgrown(proposal: Proposal, facts: FleetFacts) -> bool:
    """True for a scale-out while the present load, by a trusted plan, needs more replicas than are ordered."""
    if proposal.kind is not ActionKind.SCALE or proposal.scale_in or proposal.target in facts.untrusted:
        return False
    current, needed = proposal.params.get("current"), facts.needed_replicas.get(proposal.target)
    if current is None or needed is None or needed <= int(current):
        return False
    return proposal.session == PLAN_SESSION or int(proposal.params["replicas"]) <= needed


def _too_many(policy: Policy, budget: CapacityBudget) -> DecisionReason | None:
    return DecisionReason.RATE_LIMIT if budget.performed >= policy.max_actions_per_hour else None


def nodes_stopped_by(proposal: Proposal, facts: FleetFacts, budget: CapacityBudget) -> frozenset[EntityRef]:
    """The nodes that the action would take out of service, without those that are because of us."""
    nodes = nodes_of(proposal.target, facts.topology) if proposal.kind in STOPPING else frozenset()
    return nodes - budget.nodes


def _foreign_cordon(proposal: Proposal, facts: FleetFacts, budget: CapacityBudget) -> DecisionReason | None:
    """A node that somebody else cordoned is theirs to repair."""
    if not nodes_stopped_by(proposal, facts, budget) & facts.nodes_cordoned_by_others:
        return None
    return DecisionReason.ALREADY_DONE if proposal.kind is ActionKind.CORDON else DecisionReason.NOT_OURS


def _too_many_nodes(
    proposal: Proposal, policy: Policy, facts: FleetFacts, budget: CapacityBudget
) -> DecisionReason | None:
    """Safety rule 7: nodes out of service, in absolute numbers and as a share."""
    others = facts.nodes_cordoned_by_others - budget.nodes
    if not nodes_stopped_by(proposal, facts, budget) - others:
        return None
    allowed = policy.node_allowed(len(budget.nodes), len(others), facts.nodes_total)
    return None if allowed else DecisionReason.TOO_MANY_NODES


def below_minimum(
    proposal: Proposal, policy: Policy, facts: FleetFacts, budget: CapacityBudget
) -> DecisionReason | None:
    """Safety rule 7: the minimum that a service keeps, whatever is broken."""
    shifts = proposal.kind is ActionKind.SHIFT_TRAFFIC
    for service, count in proposal.takes.items():
        ready = budget.ready(facts, service)
        if ready is None or (count == 0 and not shifts):
            continue
        ejected = budget.removed.get(service, 0) + count
        if shifts and count and not policy.ejection_allowed(ejected, facts.ready_replicas.get(service, 0)):
            return DecisionReason.TOO_MANY_EJECTED
        if ready - count < least_of(proposal, policy, service):
            return DecisionReason.SERVICE_MINIMUM
    return None


def least_of(proposal: Proposal, policy: Policy, service: EntityRef) -> int:
    """The serving replicas that an action leaves to a service at least: traffic needs a destination."""
    shifts = proposal.kind is ActionKind.SHIFT_TRAFFIC
    return max(1 if shifts else 0, policy.minimum_of(service) if proposal.takes[service] else 0)


def _survivors(proposal: Proposal, policy: Policy, facts: FleetFacts) -> DecisionReason | None:
    """Safety rule 3: the replicas left after a scale-in carry the current load."""
    if not proposal.scale_in:
        return None
    needed = facts.needed_replicas.get(proposal.target)
    if needed is None:
        return DecisionReason.VALUES_NOT_TRUSTED
    left = int(proposal.params["replicas"])
    if left < policy.minimum_of(proposal.target):
        return DecisionReason.SERVICE_MINIMUM
    return DecisionReason.NO_HEADROOM if left < needed or proposal.target in facts.burning else None


def has_headroom(proposal: Proposal, facts: FleetFacts, budget: CapacityBudget) -> bool:
    """Safety rule 8: the remaining replicas carry the load, and the error budget is not burning.

    A shift away from a faulty replica is what stops the burning. It needs the capacity for the present load only.
    """
    for service, count in proposal.takes.items():
        if count == 0:
            continue
        ready, needed = budget.ready(facts, service), needed_by(proposal, facts, service)
        if burns(proposal, facts, service) or ready is None or needed is None or ready - count < needed:
            return False
    return True


def needed_by(proposal: Proposal, facts: FleetFacts, service: EntityRef) -> int | None:
    """The replicas that the load needs after an action; None if unknown."""
    needed, carrying = facts.needed_replicas.get(service), facts.carrying_replicas.get(service)
    return carrying if proposal.kind is ActionKind.SHIFT_TRAFFIC and carrying is not None else needed


def burns(proposal: Proposal, facts: FleetFacts, service: EntityRef) -> bool:
    """True if the error budget burns, and the action is not what stops it."""
    stops_it = proposal.kind is ActionKind.SHIFT_TRAFFIC and service in facts.carrying_replicas
    return service in facts.burning and not stops_it
