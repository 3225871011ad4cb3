"""Default actions of alert rules, for incidents that no playbook repairs. Pure.

A rule knows a symptom, a playbook the cause. A playbook with a step for the cause therefore takes precedence. The
actions pass the same guards as a playbook's, in the session of the incident, and are undone like them. Without a cause
the confidence is zero, so that they need approval. They also need it if the playbook of the cause is ``none``: its
author decided that nothing is done automatically.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from outrider.model import (
    TARGET_KINDS,
    Action,
    ActionKind,
    Alert,
    AlertState,
    EntityRef,
    Hypothesis,
    Incident,
    RemediationSession,
)
from remediation.decide import cluster_loss
from remediation.decide.context import DecisionContext, cause_of
from remediation.decide.guards import Proposal
from remediation.decide.steps import PlaybookRun
from remediation.playbooks.model import UNDOES, Playbook, Step
from remediation.playbooks.selectors import Selector

THEN = "then"  # annotation of an alert: the default actions and checks of its rule
TARGETS: dict[ActionKind, Selector] = {
    **dict.fromkeys((ActionKind.CORDON, ActionKind.DRAIN, ActionKind.REBOOT_NODE, ActionKind.RUN_DIAGNOSTIC), "node"),
    **dict.fromkeys(
        (
            ActionKind.SHIFT_TRAFFIC,
            ActionKind.WAKE_ENGINE,
            ActionKind.SLEEP_ENGINE,
            ActionKind.DRAIN_ENGINE,
            ActionKind.RESET_PREFIX_CACHE,
        ),
        "replicas",
    ),
    **dict.fromkeys((ActionKind.RESTART_POD, ActionKind.DELETE_STUCK_POD), "pods"),
    **dict.fromkeys(
        (
            ActionKind.SCALE,
            ActionKind.ROLLBACK,
            ActionKind.PAUSE_ROLLOUT,
            ActionKind.BALANCE_TRAFFIC,
            ActionKind.SWITCH_CLUSTER,
        ),
        "services",
    ),
    ActionKind.RESET_GPU: "self",
}


def has_steps(context: DecisionContext, incident: Incident) -> bool:
    """True if a playbook repairs the suspected cause."""
    cause = cause_of(incident)
    playbook = context.playbooks.get(cause.fault) if cause else None
    return playbook is not None and bool(playbook.steps)


def default_actions(
    context: DecisionContext, incident: Incident, alerts: Sequence[Alert], session: RemediationSession
) -> list[Action]:
    """New decisions about the default actions of an incident's rules, the most severe alert first."""
    actions: dict[tuple[ActionKind, EntityRef], list[Action]] = {}
    ask = _is_left_alone(context, incident)
    for alert in sorted(_firing(incident, alerts), key=lambda alert: (alert.priority.rank, alert.fingerprint)):
        steps = tuple(
            Step(kind=kind, target=TARGETS[kind], ask=ask, undo=UNDOES.get(kind))
            for kind in kinds_of(alert)
            if _reaches(context, kind, alert.entity)
        )
        decided: dict[tuple[ActionKind, EntityRef], list[Action]] = {}
        for action in _RuleRun(context, incident, alert, session, steps).actions():
            decided.setdefault((action.kind, action.target), []).append(action)
        actions = {**decided, **actions}  # two rules with one action propose it once
    return [action for those in actions.values() for action in those]


def kinds_of(alert: Alert) -> tuple[ActionKind, ...]:
    """The default actions of an alert's rule, without its checks."""
    words = alert.annotations.get(THEN, "").split(",")
    return tuple(ActionKind(word) for word in words if word in tuple(ActionKind))


def _firing(incident: Incident, alerts: Sequence[Alert]) -> Iterator[Alert]:
    own = set(incident.alerts)
    return (alert for alert in alerts if alert.fingerprint in own and alert.state is AlertState.FIRING)


def _is_left_alone(context: DecisionContext, incident: Incident) -> bool:
    """True if the playbook of the cause is ``none``: nothing is done automatically."""
    cause = cause_of(incident)
    playbook = context.playbooks.get(cause.fault) if cause else None
    return playbook is not None and not playbook.steps


def _reaches(context: DecisionContext, kind: ActionKind, entity: EntityRef) -> bool:
    """False for an action on a part that the symptom does not name: a slow service names no replica and no device."""
    return any(target.kind in TARGET_KINDS[kind] for target in context.targets(entity, TARGETS[kind]))


class _RuleRun(PlaybookRun):
    """The default actions of one rule, run as a playbook on the entity of its alert."""

    def __init__(
        self,
        context: DecisionContext,
        incident: Incident,
        alert: Alert,
        session: RemediationSession,
        steps: tuple[Step, ...],
    ) -> None:
        name, cause = f"rule:{alert.rule}", cause_of(incident)
        playbook = Playbook(fault=name, steps=steps, serving=True)
        confidence = cause.confidence if cause is not None else 0.0
        target = Hypothesis(alert.entity, name, confidence)
        super().__init__(replace(context, playbooks={name: playbook}), incident, target, session)
        self._rule = alert.rule

    def _proposal(self, step: Step, target: EntityRef) -> Proposal | None:
        """The proposal of a step, with the name of the rule."""
        if step.kind is ActionKind.SWITCH_CLUSTER:
            proposal = cluster_loss.away(self._context, self._incident, self._cause, self._session, target)
        else:
            proposal = super()._proposal(step, target)
        if proposal is None:
            return None
        return replace(proposal, ask=proposal.ask or step.ask, params={**proposal.params, "rule": self._rule})
