"""Runs a playbook: the next steps for an incident, and their effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil
from typing import Any

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    PlanReason,
    RemediationSession,
    StepState,
    StepStatus,
    Verdict,
)
from remediation.decide import approval, comparisons, sessions
from remediation.decide.conditions import StepOnTarget, met, unmet
from remediation.decide.context import STARTS_WITHIN, DecisionContext
from remediation.decide.disruption import blocked_pods
from remediation.decide.guards import GuardAnswer, Judgement, Proposal, answers, below_minimum, judge
from remediation.decide.history import (
    IN_FLIGHT,
    PERFORMED,
    WAITING,
    begun_at,
    is_half_open,
    is_undecided,
    objection_of,
    obstructed_since,
    rejected,
    settled,
    stop_holds,
    stopped_by_guard,
)
from remediation.decide.record import record
from remediation.decide.replacement import is_gone
from remediation.playbooks.conditions import Check
from remediation.playbooks.model import UNDOES, Playbook, Step

# Without a plan: the share of replicas to add, also above the measured load; the time in which they serve the queue;
# the time over which the load is measured. One step doubles the replicas or adds this many, like a step of the plan.
_GROWTH_RATIO, _STEP_REPLICAS = 0.25, 4
_DRAIN, _PRESENT = timedelta(minutes=5), timedelta(minutes=1)
_MUST_EXIST = frozenset({"self", "node", "services"})  # a missing replica on a broken part is not a data gap
# A cordon removes no capacity, a rollback no more at once than a rolling update.
_KEEP_CAPACITY = frozenset(
    {
        *(ActionKind.CORDON, ActionKind.ROLLBACK, ActionKind.PAUSE_ROLLOUT, ActionKind.BALANCE_TRAFFIC),
        *(ActionKind.WAKE_ENGINE, ActionKind.RESET_PREFIX_CACHE, ActionKind.RUN_DIAGNOSTIC),
    }
)
# Procedures decide these, with the level or the share of a cluster, which a step does not name.
_OF_PROCEDURES = frozenset({ActionKind.SWITCH_CLUSTER, ActionKind.DEGRADE_SERVICE})
_LIMITED = frozenset({PlanReason.AT_CEILING, PlanReason.AT_QUOTA, PlanReason.NO_GPU_FREE, PlanReason.STEP_LIMIT})
_MORE_REPLICAS_HELP = frozenset({DecisionReason.DISRUPTION_BUDGET, DecisionReason.SERVICE_MINIMUM})
_HELD_TEXT = "playbooks.step_held"
_REPLACES_POD = frozenset({ActionKind.RESTART_POD, ActionKind.DELETE_STUCK_POD})
_NOT_AN_ATTEMPT = WAITING | {ActionStatus.REFUSED, ActionStatus.CANCELLED}


@dataclass(frozen=True, slots=True)
class PreviewedStep:
    """One step on one target with the answers of all guards. ``missing`` is its first unmet precondition."""

    proposal: Proposal
    answers: tuple[GuardAnswer, ...]
    step: Step
    missing: Check | None


class PlaybookRun:
    """One incident's playbook in one round."""

    def __init__(
        self, context: DecisionContext, incident: Incident, cause: Hypothesis, session: RemediationSession
    ) -> None:
        """``session`` may be new: it counts only if an action follows."""
        self._context = context
        self._incident = incident
        self._cause = cause
        self._session = session
        self._playbook: Playbook = context.playbooks[cause.fault]
        self.states: list[StepStatus] = []

    def actions(self) -> list[Action]:
        """New decisions of every step that is due. ``states`` holds the states of all steps afterwards."""
        actions: list[Action] = []
        earlier_steps_over, approval_needed = True, False
        for step in self._playbook.steps:
            waits = self._context.now - self._incident.opened_at < step.wait
            if waits or (step.after_done and not earlier_steps_over):
                break
            targets = self._targets(step)
            if not targets and step.target in _MUST_EXIST:
                actions += self._unknown(step)
            for target in targets:
                actions += self._if_required(replace(step, ask=step.ask or approval_needed), target)
            states = [self._progress(step, target) for target in targets]
            if StepState.FAILED in states:
                if step.escalate.kind == "page":
                    break  # a person decides
                approval_needed = approval_needed or step.escalate.kind == "ask"
            earlier_steps_over = earlier_steps_over and StepState.VERIFYING not in states
        return actions

    def preview(self) -> list[PreviewedStep]:
        """The proposals of every step with the answers of all guards, as if each earlier step were done."""
        context = self._context
        result = []
        for step in self._playbook.steps:
            for target in self._targets(step):
                proposal = self._proposal(step, target)
                if proposal is not None:
                    given = answers(
                        proposal, context.policy, context.facts, context.history, context.budget, context.now
                    )
                    given = comparisons.explained(context, proposal, given)
                    result.append(PreviewedStep(proposal, given, step, unmet(step.require, self._on(step, target))))
        return result

    def _if_required(self, step: Step, target: EntityRef) -> list[Action]:
        """The decisions of a step on a target; none while a precondition is not met and nothing was done yet."""
        on = self._on(step, target)
        missing = unmet(step.require, on) if on.action is None else None
        if missing is None:
            return self._step(step, target)
        self._note(step, target, StepState.PRECONDITION_NOT_MET, str(missing))
        newest = self._context.history.newest(self._session.id, step.kind, target)
        if newest is None or newest.status not in WAITING:
            return []
        return [approval.withdrawn(newest, self._context.now, DecisionReason.PRECONDITION_NOT_MET, str(missing))]

    def _on(self, step: Step, target: EntityRef) -> StepOnTarget:
        done = [
            action for action in self._decided(step, target) if action.status in PERFORMED and not is_undecided(action)
        ]
        action = done[-1] if done else None
        return StepOnTarget(self._context, self._cause.fault, self._cause.entity, target, self._session.id, action)

    def _decided(self, step: Step, target: EntityRef) -> list[Action]:
        """Earlier decisions of this session about the step, without the return into rotation."""
        own = self._context.history.of(self._session.id, step.kind, target)
        return [action for action in own if not is_half_open(action)]

    def _progress(self, step: Step, target: EntityRef) -> StepState | None:
        """The state of a step after this round; None if it is over without a check, or was skipped.

        The time of a check counts from the end of the action. Until it holds, the step is not over.
        """
        on, before = self._on(step, target), self._decided(step, target)
        if on.action is None and unmet(step.require, on) is not None:
            return None
        spent = [] if before else self._tried_on_replaced(step, target)
        if len(spent) >= step.attempts:
            return self._replacement(step, on, spent[-1])
        if not settled(before[-1] if before else None, self._context.now, self._lasts(step)) or _surges(step, before):
            return self._waits(step, target, before)
        if on.action is None:
            return None  # refused for good, or rejected
        if on.action.status is not ActionStatus.FAILED or stopped_by_guard(on.action):
            if step.verify is None or on.action.status is ActionStatus.DRY_RUN:
                return None
            if met(step.verify, on):
                return self._note(step, target, StepState.VERIFIED, str(step.verify))
            if not self._timed_out(step, on.action):
                return self._note(step, target, StepState.VERIFYING, str(step.verify))
        if len(self._tried(before)) < step.attempts:
            return StepState.VERIFYING
        return self._failed(step, target)

    def _failed(self, step: Step, target: EntityRef) -> StepState:
        page = step.escalate.text if step.escalate.kind == "page" else ""
        return self._note(step, target, StepState.FAILED, str(step.verify or ""), page)

    def _replacement(self, step: Step, on: StepOnTarget, last: Action) -> StepState | None:
        """The state of a pod that took the place of a restarted one. It must pass the check in time."""
        if step.verify is None or met(step.verify, on):
            return None
        if not self._timed_out(step, last):
            return self._note(step, on.target, StepState.VERIFYING, str(step.verify))
        return self._failed(step, on.target)

    def _waits(self, step: Step, target: EntityRef, before: Sequence[Action]) -> StepState:
        """VERIFYING while the step is not over, with the guard that holds it. Some guards hold it for a time only."""
        objection = objection_of(before[-1]) if before else None
        if objection is None:
            return StepState.VERIFYING
        since, longest = obstructed_since(before), self._lasts(step)
        if since is not None and self._context.now - since >= (max(longest, STARTS_WITHIN) if step.surge else longest):
            page = _HELD_TEXT if step.escalate.kind == "page" else ""
            return self._note(step, target, StepState.FAILED, page=page, objection=objection)
        self._note(step, target, StepState.HELD_BY_GUARD, objection=objection)
        return StepState.VERIFYING

    def _timed_out(self, step: Step, action: Action) -> bool:
        """True if the check did not hold in time, or the action itself does not end."""
        if action.status in IN_FLIGHT:
            return self._context.now - begun_at(action) >= self._lasts(step)
        return self._context.now - (action.ended_at or action.decided_at) >= step.timeout

    def _lasts(self, step: Step) -> timedelta:
        """Time that the action of a step may take: its dispatcher may try for longer than its check takes."""
        return max(step.timeout, self._context.policy.time_limit(step.kind))

    def _awaits_check(self, step: Step, target: EntityRef) -> bool:
        """True if the last try was done, and its check holds or may still hold."""
        on = self._on(step, target)
        if step.verify is None or on.action is None or on.action.status is not ActionStatus.DONE:
            return False
        return met(step.verify, on) or not self._timed_out(step, on.action)

    def _tried(self, before: Iterable[Action]) -> list[Action]:
        """The attempts so far. An action that a guard stopped in time is none: the step is decided again."""
        dry = self._context.policy.dry_run
        return [
            action
            for action in before
            if action.status not in _NOT_AN_ATTEMPT and action.dry_run == dry and not is_undecided(action)
        ]

    def _tried_on_replaced(self, step: Step, target: EntityRef) -> list[Action]:
        """Attempts that were spent on the pod whose place this one took: its new name does not renew them.

        The first round decided on every pod that the fault had then. Which of them it replaces is not known, but it was
        created after that one's restart.
        """
        if step.kind not in _REPLACES_POD:
            return []
        own = [a for a in self._context.history.of_session(self._session.id) if a.kind is step.kind]
        first = min((action.decided_at for action in own), default=self._context.now)
        originals = {action.target for action in own if action.decided_at == first}
        if not originals or target in originals:
            return []
        created = self._context.created_at(target)
        gone = [
            action
            for action in self._tried(own)
            if is_gone(self._context, action.target)
            and created is not None
            and begun_at(action) < created + timedelta(seconds=1)  # the API server truncates to seconds
        ]
        return gone[len(gone) - len(gone) // len(originals) :]

    def _note(
        self,
        step: Step,
        target: EntityRef,
        state: StepState,
        check: str = "",
        page: str = "",
        objection: GuardAnswer | None = None,
    ) -> StepState:
        self.states.append(StepStatus(self._incident.id, step.kind, target, state, check, page, objection))
        return state

    def _targets(self, step: Step) -> tuple[EntityRef, ...]:
        """Targets of the step. A lost device may leave the topology, but the session knows its node."""
        result = self._context.targets(self._cause.entity, step.target)
        return result or (self._session.cordoned if step.target == "node" else ())

    def _unknown(self, step: Step) -> list[Action]:
        proposal = Proposal(self._session.id, self._incident.id, step.kind, self._cause.entity)
        return record(self._context, proposal, (Verdict.REFUSED, DecisionReason.UNKNOWN_TARGET))

    def _step(self, step: Step, target: EntityRef) -> list[Action]:
        context = self._context
        before, dry = self._decided(step, target), context.policy.dry_run
        tried = self._tried(before)
        if self._awaits_check(step, target):
            return []
        if before and (rejected(before[-1]) or before[-1].status in IN_FLIGHT):
            return []
        if len(tried) + len(self._tried_on_replaced(step, target)) >= (1 if dry else step.attempts):
            return []
        if stop_holds(before, context.now, context.policy.cooldown):
            return []
        proposal = self._proposal(step, target)
        if proposal is None:
            return []
        judgement = judge(proposal, context.policy, context.facts, context.history, context.budget, context.now)
        if (tried or _was_stopped(before)) and judgement[1] is DecisionReason.COOLDOWN:
            return []  # the cooldown between two attempts is not a refusal
        surge: list[Action] = []
        if step.surge and (self._short(proposal, proposal.takes) or _is_too_tight(step, judgement[1])):
            surge, judgement = self._surge(step, proposal, judgement)
        return [*surge, *record(context, proposal, judgement)]

    def _proposal(self, step: Step, target: EntityRef) -> Proposal | None:
        if step.kind in _OF_PROCEDURES:
            return None
        if step.kind is ActionKind.SCALE:
            return self._scale_out(target, self._target_replicas(target), ask=step.ask)
        if step.kind is ActionKind.ROLLBACK and target in self._context.budget.rolled_back:
            return None  # two incidents of one change: one rollback covers both
        weights = self._context.facts.traffic_weights.get(target)
        if step.kind is ActionKind.BALANCE_TRAFFIC and not weights:
            return None
        params: dict[str, Any] = {
            **sessions.ownership(self._session.id),
            **self._context.objects(step.kind, target),
            **self._origin(target),
        }
        if step.undo is None and step.kind in UNDOES:
            params["undo"] = "none"
        if step.kind is ActionKind.SHIFT_TRAFFIC:
            params["weight"] = 0.0
        if step.kind is ActionKind.BALANCE_TRAFFIC and weights:
            params["weights"] = dict(weights)
        return Proposal(
            session=self._session.id,
            because=self._incident.id,
            kind=step.kind,
            target=target,
            params=params,
            takes={}
            if step.kind in _KEEP_CAPACITY
            else self._context.takes(target, self._cause.entity, self._playbook),
            confidence=self._confidence(),
            ask=step.ask,
        )

    def _confidence(self) -> float:
        """The confidence that the fault is the cause, and no more than the one that it is still present."""
        present = self._context.facts.scores.get((self._cause.entity, self._cause.fault), 1.0)
        return min(self._cause.confidence, present)

    def _origin(self, target: EntityRef) -> dict[str, str]:
        """The fault and the node of a step, by which repeated faults and the need of a diagnostic are recognized."""
        nodes = self._context.targets(target, "node") or self._context.targets(self._cause.entity, "node")
        return {"fault": self._cause.fault, **({"host": nodes[0].name} if len(nodes) == 1 else {})}

    def _target_replicas(self, service: EntityRef) -> int:
        """Replicas to order: the plan's number, else those for the measured load, within ceiling, quota and free GPUs.

        A quarter more at least.
        """
        current, planned = self._context.current_replicas(service), self._context.recommendation(service)
        if planned is not None and planned.target_replicas > current:
            return planned.target_replicas
        if planned is not None and planned.reason in _LIMITED:
            return current
        target = max(current + max(1, ceil(current * _GROWTH_RATIO)), self._measured_demand(service, current))
        return self._context.replicas_within_limits(service, target)

    def _measured_demand(self, service: EntityRef, current: int) -> int:
        """Replicas that the present load and its queue need without a plan, within one step; 0 if unknown."""
        load = self._context.facts.load.get(service)
        recent = load.last(_PRESENT) if load else None
        ready = self._context.facts.ready_replicas.get(service, 0)
        demand = recent.replicas_for_all(ready, _GROWTH_RATIO, _DRAIN) if recent else None
        return 0 if demand is None else min(demand, max(2 * current, current + _STEP_REPLICAS))

    def _scale_out(self, service: EntityRef, replicas: int, *, ask: bool) -> Proposal | None:
        """None if no more may be ordered, and if the service is already scaled in this round."""
        current = self._context.current_replicas(service)
        if service in self._context.budget.scaled or replicas <= current:
            return None
        return Proposal(
            session=self._session.id,
            because=self._incident.id,
            kind=ActionKind.SCALE,
            target=service,
            params={
                **sessions.ownership(self._session.id),
                **self._context.objects(ActionKind.SCALE, service),
                "replicas": replicas,
                "current": current,
            },
            confidence=self._confidence(),
            ask=ask,
        )

    def _short(self, proposal: Proposal, takes: Mapping[EntityRef, int]) -> dict[EntityRef, int]:
        """Number of replicas that each service would lack for its current load without those of ``takes``."""
        facts, budget = self._context.facts, self._context.budget
        lacking: dict[EntityRef, int] = {}
        for service, count in takes.items():
            ready, needed = budget.ready(facts, service), facts.needed_replicas.get(service)
            if proposal.kind is ActionKind.SHIFT_TRAFFIC:
                needed = facts.carrying_replicas.get(service, needed)
            if count and ready is not None and needed is not None and ready - count < needed:
                lacking[service] = needed - (ready - count)
        return lacking

    def _whole_step(self, step: Step) -> dict[EntityRef, int]:
        """Serving replicas that each service loses by the step on all of its targets."""
        total: dict[EntityRef, int] = {}
        for target in self._targets(step):
            for service, count in self._context.takes(target, self._cause.entity, self._playbook).items():
                total[service] = total.get(service, 0) + count
        return total

    def _surge(self, step: Step, proposal: Proposal, judgement: Judgement) -> tuple[list[Action], Judgement]:
        """Adds capacity first (safety rule 8).

        The new replicas cover the step on all of its targets. Until they are ready the step is held. If they cannot be
        added, approval is requested. A disruption budget or the minimum of a service refuses the step until that
        service has one more.
        """
        refused = judgement[0] is Verdict.REFUSED
        if refused and not _is_too_tight(step, judgement[1]):
            return [], judgement
        context, actions, expected = self._context, list[Action](), False
        lacking = self._short(proposal, self._whole_step(step))
        if refused:
            lacking = {service: max(1, lacking.get(service, 0)) for service in self._blocked(proposal, judgement[1])}
        for service, count in lacking.items():
            newest = context.history.newest(self._session.id, ActionKind.SCALE, service)
            if newest is None:
                target = context.current_replicas(service) + count
                growth = self._scale_out(service, context.replicas_within_limits(service, target), ask=False)
                if growth is None:
                    continue
                verdict = judge(growth, context.policy, context.facts, context.history, context.budget, context.now)
                actions += record(context, growth, verdict)
                expected = expected or verdict[0] is not Verdict.REFUSED
            else:
                pending = newest.status in IN_FLIGHT | WAITING | {ActionStatus.DONE}
                expected = expected or (pending and context.now - begun_at(newest) < STARTS_WITHIN)
        if refused:
            return actions, judgement
        held = (Verdict.REFUSED, DecisionReason.NO_HEADROOM)
        return actions, held if expected else (Verdict.ASK, DecisionReason.NO_HEADROOM)

    def _blocked(self, proposal: Proposal, reason: DecisionReason) -> list[EntityRef]:
        """The services that one more replica would relieve: those with a protected pod there, or at their minimum."""
        context = self._context
        if reason is DecisionReason.DISRUPTION_BUDGET:
            pods = blocked_pods(proposal.kind, proposal.target, context.topology)
            protected = {service for pod in pods for service in context.topology.above(pod, EntityKind.SERVICE)}
            return [service for service in proposal.takes if service in protected]
        return [
            service
            for service, count in proposal.takes.items()
            if below_minimum(replace(proposal, takes={service: count}), context.policy, context.facts, context.budget)
        ]


def _was_stopped(before: Sequence[Action]) -> bool:
    """True if a guard stopped the newest decision of a step at the last moment, or between two attempts."""
    return bool(before) and stopped_by_guard(before[-1])


def _surges(step: Step, before: Sequence[Action]) -> bool:
    """True while the step waits for the capacity that is added first."""
    return bool(
        step.surge
        and before
        and before[-1].status is ActionStatus.REFUSED
        and (before[-1].reason is DecisionReason.NO_HEADROOM or _is_too_tight(step, before[-1].reason))
    )


def _is_too_tight(step: Step, reason: DecisionReason) -> bool:
    """True for a drain that one more replica would permit."""
    return step.kind is ActionKind.DRAIN and reason in _MORE_REPLICAS_HELP
