"""Runs a playbook: the next steps for an incident, and their effect."""

from __future__ import annotations

from datetime import timedelta
from math import ceil
from typing import Any

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityRef,
    Hypothesis,
    Incident,
    PlanReason,
    RemediationSession,
    Verdict,
)
from remediation.decide import sessions
from remediation.decide.context import STARTS_WITHIN, DecisionContext
from remediation.decide.guards import GuardAnswer, Judgement, Proposal, answers, judge
from remediation.decide.history import IN_FLIGHT, WAITING, rejected, settled
from remediation.decide.record import record
from remediation.playbooks.model import Playbook, Step

_STEP_TIMEOUT = timedelta(minutes=5)  # a step in progress for longer no longer blocks the next one
_GROWTH_RATIO = 0.25  # share of the replicas to add without a plan
_MUST_EXIST = frozenset({"self", "node", "services"})  # a missing replica on a broken part is not a data gap
_LIMITED = frozenset({PlanReason.AT_CEILING, PlanReason.AT_QUOTA, PlanReason.STEP_LIMIT})
_NOT_AN_ATTEMPT = WAITING | {ActionStatus.REFUSED, ActionStatus.CANCELLED}


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

    def actions(self) -> list[Action]:
        """New decisions of every step that is due."""
        actions: list[Action] = []
        earlier_steps_over = True
        for step in self._playbook.steps:
            waits = self._context.now - self._incident.opened_at < step.wait
            if waits or not self._due(step) or (step.after_done and not earlier_steps_over):
                break
            targets = self._targets(step)
            if not targets and step.target in _MUST_EXIST:
                actions += self._unknown(step)
            for target in targets:
                actions += self._step(step, target)
            earlier_steps_over = earlier_steps_over and all(self._over(step, target) for target in targets)
        return actions

    def preview(self) -> list[tuple[Proposal, tuple[GuardAnswer, ...]]]:
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
                    result.append((proposal, given))
        return result

    def _due(self, step: Step) -> bool:
        """True if the step's condition is met: every node of the cause reports not ready."""
        nodes = self._context.targets(self._cause.entity, "node")
        return step.when is None or (bool(nodes) and self._context.facts.not_ready.issuperset(nodes))

    def _targets(self, step: Step) -> tuple[EntityRef, ...]:
        """Targets of the step. A lost device may leave the topology, but the session knows its node."""
        result = self._context.targets(self._cause.entity, step.target)
        return result or (self._session.cordoned if step.target == "node" else ())

    def _over(self, step: Step, target: EntityRef) -> bool:
        newest = self._context.history.newest(self._session.id, step.kind, target)
        return settled(newest, self._context.now, _STEP_TIMEOUT)

    def _unknown(self, step: Step) -> list[Action]:
        proposal = Proposal(self._session.id, self._incident.id, step.kind, self._cause.entity)
        return record(self._context, proposal, (Verdict.REFUSED, DecisionReason.UNKNOWN_TARGET))

    def _step(self, step: Step, target: EntityRef) -> list[Action]:
        context = self._context
        before = context.history.of(self._session.id, step.kind, target)
        dry = context.policy.dry_run
        tried = [action for action in before if action.status not in _NOT_AN_ATTEMPT and action.dry_run == dry]
        if before and (rejected(before[-1]) or before[-1].status in IN_FLIGHT):
            return []
        if len(tried) >= (1 if dry else step.attempts):
            return []
        proposal = self._proposal(step, target)
        if proposal is None:
            return []
        judgement = judge(proposal, context.policy, context.facts, context.history, context.budget, context.now)
        if tried and judgement[1] is DecisionReason.COOLDOWN:
            return []  # the cooldown between two attempts is not a refusal
        surge: list[Action] = []
        if step.surge and self._short(proposal):
            surge, judgement = self._surge(proposal, judgement)
        return [*surge, *record(context, proposal, judgement)]

    def _proposal(self, step: Step, target: EntityRef) -> Proposal | None:
        if step.kind is ActionKind.SCALE:
            return self._scale_out(target, self._target_replicas(target), ask=step.ask)
        if step.kind is ActionKind.ROLLBACK and target in self._context.budget.rolled_back:
            return None  # two incidents of one change: one rollback covers both
        # A cordon removes no capacity, a rollback no more at once than a rolling update.
        keeps_capacity = step.kind in (ActionKind.CORDON, ActionKind.ROLLBACK)
        params: dict[str, Any] = {
            **sessions.ownership(self._session.id),
            **self._context.objects(step.kind, target),
        }
        if step.kind is ActionKind.SHIFT_TRAFFIC:
            params["weight"] = 0.0
        return Proposal(
            session=self._session.id,
            because=self._incident.id,
            kind=step.kind,
            target=target,
            params=params,
            takes={} if keeps_capacity else self._context.takes(target, self._cause.entity, self._playbook),
            confidence=self._cause.confidence,
            ask=step.ask,
        )

    def _target_replicas(self, service: EntityRef) -> int:
        """Replicas to order: the plan's number, else a quarter more, never above the ceiling or the quota."""
        current, planned = self._context.current_replicas(service), self._context.recommendation(service)
        if planned is not None and planned.target_replicas > current:
            return planned.target_replicas
        if planned is not None and planned.reason in _LIMITED:
            return current
        target = current + max(1, ceil(current * _GROWTH_RATIO))
        return min(target, planned.ceiling) if planned else target

    def _scale_out(self, service: EntityRef, replicas: int, *, ask: bool) -> Proposal | None:
        """None at the ceiling, and if the service is already scaled in this round."""
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
            confidence=self._cause.confidence,
            ask=ask,
        )

    def _short(self, proposal: Proposal) -> dict[EntityRef, int]:
        """Number of replicas that each service would lack for its current load."""
        facts, budget = self._context.facts, self._context.budget
        lacking: dict[EntityRef, int] = {}
        for service, count in proposal.takes.items():
            ready, needed = budget.ready(facts, service), facts.needed_replicas.get(service)
            if count and ready is not None and needed is not None and ready - count < needed:
                lacking[service] = needed - (ready - count)
        return lacking

    def _surge(self, drain: Proposal, judgement: Judgement) -> tuple[list[Action], Judgement]:
        """Adds capacity first (safety rule 8).

        Until it is ready the drain is held. If it cannot be added, approval is requested.
        """
        if judgement[0] is Verdict.REFUSED:
            return [], judgement
        context, actions, expected = self._context, list[Action](), False
        for service, count in self._short(drain).items():
            newest = context.history.newest(self._session.id, ActionKind.SCALE, service)
            if newest is None:
                target = context.current_replicas(service) + count
                planned = context.recommendation(service)
                proposal = self._scale_out(service, min(target, planned.ceiling) if planned else target, ask=False)
                if proposal is None:
                    continue
                verdict = judge(proposal, context.policy, context.facts, context.history, context.budget, context.now)
                actions += record(context, proposal, verdict)
                expected = expected or verdict[0] is not Verdict.REFUSED
            else:
                pending = newest.status in IN_FLIGHT | WAITING | {ActionStatus.DONE}
                expected = expected or (pending and context.now - newest.decided_at < STARTS_WITHIN)
        held = (Verdict.REFUSED, DecisionReason.NO_HEADROOM)
        return actions, held if expected else (Verdict.ASK, DecisionReason.NO_HEADROOM)
