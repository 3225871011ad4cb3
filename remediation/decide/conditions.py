"""Evaluates the conditions of playbook steps against one round of decisions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from outrider.model import Action, ActionKind, ActionStatus, EntityKind, EntityRef
from remediation.decide.context import DecisionContext
from remediation.decide.history import was_performed
from remediation.playbooks.conditions import Check, Condition

_THROTTLED = ("gpu-thermal-throttle", "gpu-slow-peer")
ENDS_WITHIN = timedelta(minutes=2)  # the longest usual grace period of a pod


@dataclass(frozen=True, slots=True)
class StepOnTarget:
    """A step on one of its targets. ``action`` is the performed one of this session, None before it."""

    context: DecisionContext
    fault: str
    cause: EntityRef
    target: EntityRef
    session: str
    action: Action | None = None

    @property
    def nodes(self) -> tuple[EntityRef, ...]:
        """Nodes of the target, or of the cause if the target is above all nodes."""
        return self.context.targets(self.target, "node") or self.context.targets(self.cause, "node")

    @property
    def replicas(self) -> tuple[EntityRef, ...]:
        """Replicas of the target; for a service its own."""
        return self.context.served_by(self.target)

    @property
    def services(self) -> tuple[EntityRef, ...]:
        """Services of the target."""
        return self.context.targets(self.target, "services")


def met(check: Check, on: StepOnTarget) -> bool:
    """True if the condition holds now. A fact that is not known does not hold."""
    return _RULES[check.condition](check, on)


def unmet(checks: tuple[Check, ...], on: StepOnTarget) -> Check | None:
    """The first condition that does not hold; None if all do."""
    return next((check for check in checks if not met(check, on)), None)


def _node_not_ready(check: Check, on: StepOnTarget) -> bool:
    del check
    return bool(on.nodes) and on.context.facts.not_ready.issuperset(on.nodes)


def _node_ready(check: Check, on: StepOnTarget) -> bool:
    del check
    nodes = set(on.nodes)
    return bool(nodes) and not nodes & (on.context.facts.not_ready | on.context.facts.untrusted)


def _rollout_preceded(check: Check, on: StepOnTarget) -> bool:
    changed, now = on.context.facts.changed_at, on.context.now
    times = [changed[service] for service in on.services if service in changed]
    return any(now - at <= check.within for at in times)


def _repeated(check: Check, on: StepOnTarget) -> bool:
    """True if another session acted on another pod of the node for the same fault."""
    names = {node.name for node in on.nodes}
    return any(
        action.session != on.session
        and action.target not in (on.cause, on.target)
        and action.params.get("fault") == on.fault
        and action.params.get("host") in names
        and was_performed(action)
        and not action.dry_run
        and on.context.now - action.decided_at <= check.within
        for action in on.context.history.actions
    )


def _pod_stuck(check: Check, on: StepOnTarget) -> bool:
    """True if this session deleted the pod, and the same pod still exists after its time to end."""
    del check
    newest = on.context.history.newest(on.session, ActionKind.RESTART_POD, on.target)
    if newest is None or newest.status is not ActionStatus.DONE or newest.ended_at is None:
        return False
    uid = on.context.topology.label(on.target, "uid")
    return bool(uid) and uid == newest.params.get("uid") and on.context.now - newest.ended_at >= ENDS_WITHIN


def _sleeping(check: Check, on: StepOnTarget) -> bool:
    del check
    return bool(on.replicas) and on.context.facts.asleep.issuperset(on.replicas)


def _awake(check: Check, on: StepOnTarget) -> bool:
    del check
    return bool(on.replicas) and on.context.facts.awake.issuperset(on.replicas)


def _not_serving(check: Check, on: StepOnTarget) -> bool:
    del check
    facts = on.context.facts
    return not (facts.healthy if facts.serving is None else facts.serving).intersection(on.replicas)


def _confined(check: Check, on: StepOnTarget) -> bool:
    """True if no replica of the services outside the target has an alert of the same fault."""
    del check
    context = on.context
    own = set(on.replicas)
    others = {
        replica for service in on.services for replica in context.topology.below(service, EntityKind.REPLICA)
    } - own
    return bool(others) and not any((replica, on.fault) in context.facts.alerted for replica in others)


def _diverted(check: Check, on: StepOnTarget) -> bool:
    del check
    return bool(on.replicas) and on.context.history.diverted().issuperset(on.replicas)


def _device_throttled(check: Check, on: StepOnTarget) -> bool:
    del check
    devices = {device for node in on.nodes for device in on.context.topology.above(node, EntityKind.GPU)}
    return any((device, fault) in on.context.facts.alerted for device in devices for fault in _THROTTLED)


def _replicas_at_least(check: Check, on: StepOnTarget) -> bool:
    ready = [on.context.budget.ready(on.context.facts, service) for service in on.services]
    return bool(ready) and all(count is not None and count >= check.count for count in ready)


def _pod_ready(check: Check, on: StepOnTarget) -> bool:
    """True if the pod is ready. If another pod replaced it, its services must be complete again."""
    del check
    facts, known = on.context.facts, on.context.topology.entities
    pods = on.context.targets(on.target, "pods")
    if pods and known.issuperset(pods):
        return all(pod in facts.ready_pods or _serves(on.context, pod) for pod in pods)
    services = on.context.targets(on.cause, "services")
    return bool(services) and all(_complete(on.context, service) for service in services)


def _serves(context: DecisionContext, target: EntityRef) -> bool:
    replicas = context.served_by(target)
    return bool(replicas) and context.facts.healthy.issuperset(replicas)


def _complete(context: DecisionContext, service: EntityRef) -> bool:
    ready = context.facts.ready_replicas.get(service)
    return ready is not None and ready >= context.current_replicas(service)


def _serving(check: Check, on: StepOnTarget) -> bool:
    del check
    replicas = on.replicas
    if replicas:
        return on.context.facts.healthy.issuperset(replicas)
    services = on.context.targets(on.cause, "services")
    return bool(services) and all(_complete(on.context, service) for service in services)


def _cordoned(check: Check, on: StepOnTarget) -> bool:
    """True unless the control plane contradicts; without its view the result of our own action counts."""
    del check
    facts, nodes = on.context.facts, set(on.nodes)
    cordoned = facts.unschedulable | on.context.history.cordoned()
    return bool(nodes) and nodes <= cordoned and not nodes & facts.schedulable


def _drained(check: Check, on: StepOnTarget) -> bool:
    del check
    return not on.context.replicas(on.target)


def _no_alert(check: Check, on: StepOnTarget) -> bool:
    """True if no alert on the target is active, and, after a step, none of its fault on the cause or below a service.

    The alert of a faulty service is often on a pod or a replica, and a new pod may raise it again.
    """
    del check
    if on.context.has_alert(on.target):
        return False
    if on.action is None:
        return True
    replicas = on.context.topology.below(on.target, EntityKind.REPLICA) if on.target.kind is EntityKind.SERVICE else ()
    pods = (pod for replica in replicas for pod in on.context.topology.below(replica, EntityKind.POD))
    concerned = {on.cause, *replicas, *pods}
    return not any((entity, on.fault) in on.context.facts.alerted for entity in concerned)


def _revision_changed(check: Check, on: StepOnTarget) -> bool:
    del check
    if on.action is None:
        return False
    begun, changed = on.action.started_at or on.action.decided_at, on.context.facts.changed_at
    return bool(on.services) and all(service in changed and changed[service] >= begun for service in on.services)


def _replicas_ready(check: Check, on: StepOnTarget) -> bool:
    del check
    if on.action is None or on.action.kind is not ActionKind.SCALE:
        return all(_complete(on.context, service) for service in on.services)
    wanted = int(on.action.params.get("replicas", 0))
    return on.context.facts.ready_replicas.get(on.target, 0) >= wanted


_RULES: Mapping[Condition, Callable[[Check, StepOnTarget], bool]] = {
    Condition.NODE_NOT_READY: _node_not_ready,
    Condition.ROLLOUT_PRECEDED: _rollout_preceded,
    Condition.REPEATED: _repeated,
    Condition.POD_STUCK: _pod_stuck,
    Condition.SLEEPING: _sleeping,
    Condition.NOT_SERVING: _not_serving,
    Condition.CONFINED: _confined,
    Condition.DIVERTED: _diverted,
    Condition.DEVICE_THROTTLED: _device_throttled,
    Condition.REPLICAS_AT_LEAST: _replicas_at_least,
    Condition.POD_READY: _pod_ready,
    Condition.SERVING: _serving,
    Condition.AWAKE: _awake,
    Condition.CORDONED: _cordoned,
    Condition.DRAINED: _drained,
    Condition.NODE_READY: _node_ready,
    Condition.NO_ALERT: _no_alert,
    Condition.REVISION_CHANGED: _revision_changed,
    Condition.REPLICAS_READY: _replicas_ready,
}
