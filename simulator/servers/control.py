"""Control endpoint of the fleet: the actions that a platform may request.

Actions are idempotent by id: a repeated id returns the first result and changes nothing. The fleet performs every
action; guard rails are the platform's task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outrider.errors import UsageError
from outrider.model import ActionKind, EntityKind, EntityRef, OutcomeStatus
from outrider.text.i18n import fill
from simulator.cluster.pods import Pod
from simulator.fleet import Fleet
from simulator.hardware.diagnostic import DIAGNOSTIC_SECONDS, node_failures
from simulator.traffic.degradation import Degradation
from simulator.world import World


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of an action, in one sentence. ``follow`` returns the later result of one in progress."""

    status: OutcomeStatus
    detail: str
    follow: Callable[[], Answer] | None = None

    def as_json(self) -> dict[str, str]:
        """Returns the body of the HTTP response."""
        return {"status": self.status.value, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class _Order:
    """A requested action, its fleet and the world of that fleet. ``kind`` is None if only a name was given."""

    fleet: Fleet
    world: World | None
    name: str
    kind: EntityKind | None
    params: Mapping[str, Any]


class Control:
    """Performs actions on a fleet and keeps their results.

    In a world the cluster of the entity selects the fleet; a bare name means the control's own fleet.
    """

    def __init__(self, fleet: Fleet, world: World | None = None) -> None:
        """``world`` is the world of the fleet, None if the fleet is alone."""
        self._fleet, self._world = fleet, world
        self._answers: dict[str, Answer] = {}
        self._following: dict[str, Callable[[], Answer]] = {}

    def act(
        self,
        action_id: str,
        kind: ActionKind | str,
        target: EntityRef | str,
        params: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
    ) -> Answer:
        """Performs an action once. Raises UsageError for an unknown kind, target or parameter."""
        if action_id in self._answers:
            return self._answers[action_id]
        try:
            verb = _VERBS.get(ActionKind(kind))
        except ValueError:
            known = ", ".join(known.value for known in ActionKind)
            raise UsageError(f"{kind!r} is not an action", hint=f"actions are: {known}") from None
        if verb is None:
            raise UsageError(f"the simulated fleet cannot perform {kind}", hint="choose another actuator for it")
        order = self._order(target, params or {})
        if dry_run:
            return Answer(OutcomeStatus.DRY_RUN, f"would {ActionKind(kind).value} {order.name}")
        answer = self._following[action_id]() if action_id in self._following else verb(order)
        if answer.status is not OutcomeStatus.IN_PROGRESS:
            self._answers[action_id] = answer
            self._following.pop(action_id, None)
        elif answer.follow is not None:
            self._following[action_id] = answer.follow
        return answer

    def _order(self, target: EntityRef | str, params: Mapping[str, Any]) -> _Order:
        if isinstance(target, str):
            return _Order(self._fleet, self._world, target, None, params)
        world = self._world
        elsewhere = world is not None and target.cluster in world.clusters
        fleet = world.fleet(target.cluster) if world is not None and elsewhere else self._fleet
        return _Order(fleet, world, target.name, target.kind, params)


def _cordon(order: _Order) -> Answer:
    node = _node(order)
    if order.fleet.pods.cordoned[node]:
        return Answer(OutcomeStatus.ALREADY, f"{order.name} is already cordoned")
    order.fleet.pods.cordoned[node] = True
    return Answer(OutcomeStatus.DONE, f"{order.name} is cordoned")


def _uncordon(order: _Order) -> Answer:
    node = _node(order)
    if not order.fleet.pods.cordoned[node]:
        return Answer(OutcomeStatus.ALREADY, f"{order.name} is already schedulable")
    order.fleet.pods.cordoned[node] = False
    return Answer(OutcomeStatus.DONE, f"{order.name} is schedulable again")


def _drain(order: _Order) -> Answer:
    node = _node(order)
    order.fleet.pods.cordoned[node] = True
    moved = order.fleet.pods.on_node(node)
    for pod in moved:
        order.fleet.restart(pod.slot)
    sentence = fill("{name} is cordoned; {n} [pod is|pods are] rescheduled", name=order.name, n=len(moved))
    return Answer(OutcomeStatus.DONE, sentence)


def _restart_pod(order: _Order) -> Answer:
    order.fleet.restart(_pod(order).slot)
    return Answer(OutcomeStatus.DONE, f"{order.name} was deleted; a new pod starts")


def _shift_traffic(order: _Order) -> Answer:
    """Sets the weight of a replica, device or host, or the entry of a service if the params have a cluster."""
    if "cluster" in order.params:
        return _switch_entry(order)
    return _set_weight(order, _ratio(order.params.get("weight", 0.0), "weight"))


def _switch_entry(order: _Order) -> Answer:
    name, cluster = order.fleet.spec.service(order.name).name, str(order.params["cluster"])
    share = _ratio(order.params.get("share", 1.0), "share")
    world = order.world
    if world is None:
        raise UsageError("there is no other cluster for the traffic", hint="only a world with a standby has one")
    if abs(world.entries(name).get(cluster, -1.0) - share) < 1e-9:
        return Answer(OutcomeStatus.ALREADY, f"{share:.0%} of {name} already goes to {cluster}")
    world.switch_entry(name, cluster, share)
    return Answer(OutcomeStatus.DONE, f"{share:.0%} of {name} goes to {cluster}")


def _set_level(order: _Order) -> Answer:
    """Sets the degrade level of a service at its gateway, with the content of the level."""
    level = order.params.get("level")
    if isinstance(level, bool) or not isinstance(level, int) or level < 0:
        raise UsageError(f"level {level!r} is not a whole number", hint='give params {"level": 3}')
    service = order.fleet.spec.service(order.name)
    wanted = Degradation(
        level=level,
        reject=_classes(order, "reject"),
        defer=_classes(order, "defer"),
        max_prompt_tokens=_tokens(order, "max_prompt_tokens"),
        max_prompt_exempt=_classes(order, "max_prompt_exempt"),
        max_output_tokens=_tokens(order, "max_output_tokens"),
        model=order.params.get("model"),
    )
    number, levels = order.fleet.spec.services.index(service), order.fleet.degradations
    if levels.current.get(number, Degradation()) == (wanted if level else Degradation()):
        return Answer(OutcomeStatus.ALREADY, f"{service.name} is at degrade level {level} already")
    levels.set(number, wanted)
    return Answer(OutcomeStatus.DONE, f"{service.name} is at degrade level {level}")


def _classes(order: _Order, key: str) -> frozenset[str]:
    return frozenset(order.params.get(key) or ())


def _tokens(order: _Order, key: str) -> int | None:
    """Returns a number of tokens; None without one. Raises UsageError unless it is a whole number above 0."""
    value = order.params.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise UsageError(f"{key} {value!r} is not a whole number above 0", hint="give tokens, such as 256")


def _restore_traffic(order: _Order) -> Answer:
    """Restores the full share; a service's entry returns to its home cluster."""
    world = order.world
    if order.kind is EntityKind.SERVICE and world is not None:
        name, home = order.fleet.spec.service(order.name).name, world.home.spec.cluster
        if world.entries(name)[home] < 1.0:
            world.switch_entry(name, home)
            return Answer(OutcomeStatus.DONE, f"all of {name} goes to {home} again")
    if order.kind is EntityKind.SERVICE:
        slots, balanced = _slots(order), order.fleet.router.balanced
        if not np.isnan(balanced[slots]).all():
            balanced[slots] = np.nan
            return Answer(OutcomeStatus.DONE, f"{order.name} has the weights of its own route again")
    return _set_weight(order, 1.0)


def _balance_traffic(order: _Order) -> Answer:
    """Sets the weights of a service's replicas; those without one keep an even share."""
    service = order.fleet.spec.service(order.name).name
    weights = _whole_weights(order.params.get("weights"))
    slot_of = {pod.name: pod.slot for pod in order.fleet.pods.of_service(service) if pod.exists}
    unknown = next((name for name in weights if name not in slot_of), None)
    if unknown is not None:
        raise UsageError(f"{service} has no replica {unknown!r}", hint=f"its replicas are {', '.join(slot_of)}")
    slots, wanted = [slot_of[name] for name in weights], np.array(list(weights.values()), dtype=np.float64)
    wanted /= wanted.mean()
    balanced = order.fleet.router.balanced
    if np.array_equal(balanced[slots], wanted):
        return Answer(OutcomeStatus.ALREADY, f"{service} has these weights already")
    balanced[slots] = wanted
    return Answer(OutcomeStatus.DONE, f"{service} has the weights " + ", ".join(f"{k} {v}" for k, v in weights.items()))


def _whole_weights(weights: Any) -> dict[str, int]:
    """Returns weights by replica. Raises UsageError unless they are whole numbers from 0, with one above 0."""
    hint = 'give params {"weights": {"chat-70b-0": 60, "chat-70b-1": 40}}'
    if not isinstance(weights, Mapping) or not weights:
        raise UsageError("the action has no weights", hint=hint)
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 0:
            raise UsageError(f"{name}: weight {weight!r} is not a whole number from 0", hint=hint)
    if not any(weights.values()):
        raise UsageError("all weights are 0: no replica would get traffic", hint=hint)
    return dict(weights)


def _scale(order: _Order) -> Answer:
    wanted = order.params.get("replicas")
    service = order.fleet.spec.service(order.name)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
        raise UsageError(f"replicas {wanted!r} is not a whole number", hint='give params {"replicas": 12}')
    if wanted > service.ceiling:
        sentence = fill("{name} has a ceiling of {n} [replica|replicas]", name=order.name, n=service.ceiling)
        return Answer(OutcomeStatus.FAILED, sentence)
    if wanted == sum(pod.exists for pod in order.fleet.pods.of_service(order.name)):
        sentence = fill("{name} already has {n} [replica|replicas]", name=order.name, n=wanted)
        return Answer(OutcomeStatus.ALREADY, sentence)
    before = order.fleet.scale(order.name, wanted)
    text = "{name} is scaled from {before} to {n} [replica|replicas]"
    return Answer(OutcomeStatus.DONE, fill(text, name=order.name, before=before, n=wanted))


def _rollback(order: _Order) -> Answer:
    name = order.fleet.spec.service(order.name).name
    before = order.fleet.rollouts.revision(name)
    after = order.fleet.rollback(name)
    if after is None:
        return Answer(OutcomeStatus.FAILED, f"{name} has no revision before {before}")
    return Answer(OutcomeStatus.DONE, f"{name} is rolled back from {before} to {after}")


def _delete_stuck_pod(order: _Order) -> Answer:
    """Refuses: a simulated kubelet confirms the end of a pod at once, so none is ever stuck."""
    _pod(order)
    return Answer(OutcomeStatus.FAILED, f"{order.name} is not being deleted")


def _pause_rollout(order: _Order) -> Answer:
    return _set_paused(order, paused=True)


def _resume_rollout(order: _Order) -> Answer:
    return _set_paused(order, paused=False)


def _set_paused(order: _Order, *, paused: bool) -> Answer:
    name = order.fleet.spec.service(order.name).name
    state = "paused" if paused else "not paused"
    if order.fleet.rollouts.pause(name, paused=paused):
        return Answer(OutcomeStatus.DONE, f"the rollout of {name} is {state}")
    return Answer(OutcomeStatus.ALREADY, f"the rollout of {name} is already {state}")


def _sleep_engine(order: _Order) -> Answer:
    slot = _pod(order).slot
    if order.fleet.effects.slots.asleep[slot] > 0.5:
        return Answer(OutcomeStatus.ALREADY, f"{order.name} already sleeps")
    if not order.fleet.pods.ready[slot]:
        return Answer(OutcomeStatus.FAILED, f"the engine of {order.name} does not run")
    order.fleet.sleep_engine(slot)
    return Answer(OutcomeStatus.DONE, f"the engine of {order.name} sleeps")


def _wake_engine(order: _Order) -> Answer:
    slot = _pod(order).slot
    if order.fleet.effects.slots.asleep[slot] <= 0.5:
        return Answer(OutcomeStatus.ALREADY, f"{order.name} is awake")
    order.fleet.wake_engine(slot)
    return Answer(OutcomeStatus.DONE, f"the engine of {order.name} is awake")


def _reset_prefix_cache(order: _Order) -> Answer:
    slots = _slots(order)
    for slot in slots:
        order.fleet.operations.empty_cache(slot, order.fleet.at)
    return Answer(OutcomeStatus.DONE, f"the prefix cache of {order.name} is empty")


def _reset_gpu(order: _Order) -> Answer:
    fleet, gpus = order.fleet, _gpus(order)
    owners = {int(owner) for owner in fleet.pods.owner[gpus] if owner >= 0}
    users = [fleet.pods.pods[slot].name for slot in sorted(owners) if fleet.pods.loaded_ratio[slot] > 0]
    if users:
        return Answer(OutcomeStatus.FAILED, f"{order.name} is in use by {', '.join(users)}: drain the node first")
    if not fleet.gpus.visible[gpus].all():
        return Answer(OutcomeStatus.FAILED, f"{order.name} is not visible to its driver: reboot the node")
    fleet.reset_gpus(gpus)
    return Answer(OutcomeStatus.DONE, f"{order.name} is reset")


def _reboot_node(order: _Order) -> Answer:
    node, fleet, name = _hosting(order), order.fleet, order.name
    if not fleet.operations.is_rebooting(node):
        fleet.operations.reboot(node, fleet.at)

    def follow() -> Answer:
        if fleet.operations.is_rebooting(node) or not fleet.nodes.ready[node]:
            return Answer(OutcomeStatus.IN_PROGRESS, f"the node of {name} is not ready yet")
        return Answer(OutcomeStatus.DONE, f"the node of {name} has rebooted and is ready")

    return Answer(OutcomeStatus.IN_PROGRESS, f"the node of {name} reboots", follow)


def _run_diagnostic(order: _Order) -> Answer:
    node, fleet, name = _hosting(order), order.fleet, order.name
    ends = fleet.at + DIAGNOSTIC_SECONDS

    def follow() -> Answer:
        if fleet.at < ends:
            return Answer(OutcomeStatus.IN_PROGRESS, f"the diagnostic runs on the node of {name}")
        failed = node_failures(fleet, node)
        if failed:
            return Answer(OutcomeStatus.FAILED, f"diagnostic failed: {'; '.join(failed)}")
        return Answer(OutcomeStatus.DONE, "diagnostic passed")

    return Answer(OutcomeStatus.IN_PROGRESS, f"the diagnostic runs on the node of {name}", follow)


def _switch_cluster(order: _Order) -> Answer:
    """Switches the entry of a service, or of every service for a cluster."""
    if "cluster" not in order.params:
        raise UsageError("the action names no cluster", hint='give params {"cluster": "west", "share": 1.0}')
    if order.kind is not EntityKind.CLUSTER:
        return _switch_entry(order)
    services = [service.name for service in order.fleet.spec.services]
    answers = [_switch_entry(replace(order, name=name, kind=EntityKind.SERVICE)) for name in services]
    done = any(answer.status is OutcomeStatus.DONE for answer in answers)
    status = OutcomeStatus.DONE if done else OutcomeStatus.ALREADY
    return Answer(status, "; ".join(answer.detail for answer in answers))


_VERBS: dict[ActionKind, Callable[[_Order], Answer]] = {
    ActionKind.CORDON: _cordon,
    ActionKind.UNCORDON: _uncordon,
    ActionKind.DRAIN: _drain,
    ActionKind.RESTART_POD: _restart_pod,
    ActionKind.SHIFT_TRAFFIC: _shift_traffic,
    ActionKind.RESTORE_TRAFFIC: _restore_traffic,
    ActionKind.BALANCE_TRAFFIC: _balance_traffic,
    ActionKind.SCALE: _scale,
    ActionKind.ROLLBACK: _rollback,
    ActionKind.PAUSE_ROLLOUT: _pause_rollout,
    ActionKind.RESUME_ROLLOUT: _resume_rollout,
    ActionKind.DELETE_STUCK_POD: _delete_stuck_pod,
    ActionKind.DEGRADE_SERVICE: _set_level,
    ActionKind.RESTORE_SERVICE: _set_level,
    ActionKind.SLEEP_ENGINE: _sleep_engine,
    ActionKind.WAKE_ENGINE: _wake_engine,
    ActionKind.RESET_PREFIX_CACHE: _reset_prefix_cache,
    ActionKind.RESET_GPU: _reset_gpu,
    ActionKind.REBOOT_NODE: _reboot_node,
    ActionKind.RUN_DIAGNOSTIC: _run_diagnostic,
    ActionKind.SWITCH_CLUSTER: _switch_cluster,
}


def _ratio(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise UsageError(f"{name} {value!r} is not between 0 and 1", hint="0 removes it, 1 is its full share")
    return float(value)


def _set_weight(order: _Order, weight: float) -> Answer:
    slots, weights = _slots(order), order.fleet.router.weights
    if all(weights[slot] == weight for slot in slots):
        return Answer(OutcomeStatus.ALREADY, f"{order.name} already has weight {weight:g}")
    weights[slots] = weight
    return Answer(OutcomeStatus.DONE, f"{order.name}: {weight:.0%} of its share of the traffic")


def _slots(order: _Order) -> list[int]:
    """Returns the slots of an entity: a replica itself, those on a node, or the one on a device."""
    fleet, name = order.fleet, order.name
    if order.kind is EntityKind.NODE or (order.kind is None and name in fleet.node_named):
        return [pod.slot for pod in fleet.pods.on_node(_node(order))]
    if order.kind is EntityKind.GPU:
        gpu = fleet.gpu_named.get(name)
        owner = -1 if gpu is None else int(fleet.pods.owner[gpu])
        return [owner] if owner >= 0 else []
    if order.kind is EntityKind.SERVICE:
        return [pod.slot for pod in fleet.pods.of_service(fleet.spec.service(name).name) if pod.exists]
    return [_pod(order).slot]


def _gpus(order: _Order) -> np.ndarray:
    """Returns a device, or every device of a node."""
    if order.kind is EntityKind.GPU or order.name in order.fleet.gpu_named:
        if order.name not in order.fleet.gpu_named:
            raise UsageError(f"the fleet has no device {order.name!r}", hint="see its GPU exporters for UUIDs")
        return np.array([order.fleet.gpu_named[order.name]])
    return np.flatnonzero(order.fleet.gpus.node == _node(order))


def _hosting(order: _Order) -> int:
    """Returns a node, or the node of a device."""
    if order.kind is EntityKind.GPU or order.name in order.fleet.gpu_named:
        return int(order.fleet.gpus.node[_gpus(order)[0]])
    return _node(order)


def _node(order: _Order) -> int:
    known = order.fleet.node_named
    if order.name not in known:
        some = ", ".join(list(known)[:8])
        raise UsageError(f"the fleet has no node {order.name!r}", hint=f"its {len(known)} nodes are {some} ...")
    return known[order.name]


def _pod(order: _Order) -> Pod:
    pod = order.fleet.pod_named(order.name)
    if pod is None:
        raise UsageError(f"the fleet has no pod {order.name!r}", hint="see GET /control/targets for its replicas")
    return pod
