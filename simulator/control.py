"""The fleet's control door: the actions a platform may ask for, and the list of its targets.

Actions are idempotent by id: the same id again answers what it answered the first time and changes
nothing. The fleet obeys, for better or worse: judging an action is the platform's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.errors import UsageError
from outrider.model import ActionKind, EntityKind, EntityRef, OutcomeStatus
from simulator.fleet import Fleet
from simulator.pods import Pod


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an action, in one sentence."""

    status: OutcomeStatus
    detail: str

    def as_json(self) -> dict[str, str]:
        """The body of the HTTP answer."""
        return {"status": self.status.value, "detail": self.detail}


class Control:
    """Performs actions on a fleet and remembers their answers."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._answers: dict[str, Answer] = {}
        self._verbs = {
            ActionKind.CORDON: self._cordon,
            ActionKind.UNCORDON: self._uncordon,
            ActionKind.DRAIN: self._drain,
            ActionKind.RESTART_POD: self._restart_pod,
            ActionKind.SHIFT_TRAFFIC: self._shift_traffic,
            ActionKind.RESTORE_TRAFFIC: self._restore_traffic,
            ActionKind.SCALE: self._scale,
        }

    def act(
        self,
        action_id: str,
        kind: ActionKind | str,
        target: EntityRef | str,
        params: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
    ) -> Answer:
        """Do it once. Raises UsageError for an unknown kind, target or parameter, and remembers nothing then."""
        if action_id in self._answers:
            return self._answers[action_id]
        try:
            verb = self._verbs[ActionKind(kind)]
        except ValueError:
            known = ", ".join(known.value for known in ActionKind)
            raise UsageError(f"{kind!r} is not an action", hint=f"actions are: {known}") from None
        name = target if isinstance(target, str) else target.name
        wanted = None if isinstance(target, str) else target.kind
        if dry_run:
            return Answer(OutcomeStatus.DRY_RUN, f"would {ActionKind(kind).value} {name}")
        answer = verb(name, wanted, dict(params or {}))
        self._answers[action_id] = answer
        return answer

    def _cordon(self, name: str, _: EntityKind | None, __: dict[str, Any]) -> Answer:
        node = self._node(name)
        if self._fleet.pods.cordoned[node]:
            return Answer(OutcomeStatus.ALREADY, f"{name} is cordoned already")
        self._fleet.pods.cordoned[node] = True
        return Answer(OutcomeStatus.DONE, f"{name} takes no new pods")

    def _uncordon(self, name: str, _: EntityKind | None, __: dict[str, Any]) -> Answer:
        node = self._node(name)
        if not self._fleet.pods.cordoned[node]:
            return Answer(OutcomeStatus.ALREADY, f"{name} is schedulable already")
        self._fleet.pods.cordoned[node] = False
        return Answer(OutcomeStatus.DONE, f"{name} takes new pods again")

    def _drain(self, name: str, _: EntityKind | None, __: dict[str, Any]) -> Answer:
        node = self._node(name)
        self._fleet.pods.cordoned[node] = True
        moved = [pod for pod in self._fleet.pods.pods if pod.node == node]
        for pod in moved:
            self._fleet.restart(pod.slot)
        return Answer(OutcomeStatus.DONE, f"{name} is cordoned and {len(moved)} pods are placed anew")

    def _restart_pod(self, name: str, _: EntityKind | None, __: dict[str, Any]) -> Answer:
        pod = self._pod(name)
        self._fleet.restart(pod.slot)
        return Answer(OutcomeStatus.DONE, f"{name} was deleted; a new pod starts")

    def _shift_traffic(self, name: str, kind: EntityKind | None, params: dict[str, Any]) -> Answer:
        weight = params.get("weight", 0.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0.0 <= weight <= 1.0:
            raise UsageError(
                f"weight {weight!r} is not between 0 and 1", hint="0 takes a replica out, 1 is its full share"
            )
        return self._set_weight(name, kind, float(weight))

    def _restore_traffic(self, name: str, kind: EntityKind | None, _: dict[str, Any]) -> Answer:
        return self._set_weight(name, kind, 1.0)

    def _scale(self, name: str, _: EntityKind | None, params: dict[str, Any]) -> Answer:
        fleet, wanted = self._fleet, params.get("replicas")
        service = fleet.spec.service(name)
        if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 0:
            raise UsageError(f"replicas {wanted!r} is not a whole number", hint='give params {"replicas": 12}')
        if wanted > service.ceiling:
            return Answer(OutcomeStatus.FAILED, f"{name} may have at most {service.ceiling} replicas")
        if wanted == sum(pod.exists for pod in fleet.pods.of_service(name)):
            return Answer(OutcomeStatus.ALREADY, f"{name} has {wanted} replicas already")
        before = fleet.scale(name, wanted)
        return Answer(OutcomeStatus.DONE, f"{name} goes from {before} to {wanted} replicas")

    def _set_weight(self, name: str, kind: EntityKind | None, weight: float) -> Answer:
        slots = self._slots(name, kind)
        weights = self._fleet.router.weights
        if all(weights[slot] == weight for slot in slots):
            return Answer(OutcomeStatus.ALREADY, f"{name} has weight {weight:g} already")
        for slot in slots:
            weights[slot] = weight
        return Answer(OutcomeStatus.DONE, f"{name}: {weight:.0%} of its share of the traffic")

    def _slots(self, name: str, kind: EntityKind | None) -> list[int]:
        """The replicas an entity stands for: itself, those on a node, or the one on a device."""
        fleet = self._fleet
        if kind is EntityKind.NODE or (kind is None and name in fleet.nodes.names):
            node = self._node(name)
            return [pod.slot for pod in fleet.pods.pods if pod.node == node]
        if kind is EntityKind.GPU:
            owner = next(
                (int(fleet.pods.owner[gpu]) for gpu in range(fleet.gpus.size) if fleet.gpu_uuid(gpu) == name), -1
            )
            return [owner] if owner >= 0 else []
        if kind is EntityKind.SERVICE:
            return [pod.slot for pod in fleet.pods.of_service(fleet.spec.service(name).name) if pod.exists]
        return [self._pod(name).slot]

    def _node(self, name: str) -> int:
        if name not in self._fleet.nodes.names:
            raise UsageError(f"the fleet has no node {name!r}", hint=f"its nodes are {self._fleet.nodes.names}")
        return self._fleet.nodes.names.index(name)

    def _pod(self, name: str) -> Pod:
        pod = self._fleet.pod_named(name)
        if pod is None:
            raise UsageError(f"the fleet has no pod {name!r}", hint="see GET /control/targets for its replicas")
        return pod
