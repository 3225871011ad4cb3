"""Conditions of playbook steps, as data: preconditions (``require``) and checks (``verify``).

A condition is a name, or a name with a duration or a count: ``pod_ready``, ``{rollout_preceded: 30m}``,
``{replicas_at_least: 3}``. ``decide.conditions`` evaluates them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from outrider.errors import UsageError
from outrider.text import yaml_file
from outrider.vocabulary.units import format_duration, parse_duration

DEFAULT_WITHIN = timedelta(minutes=30)


class Condition(StrEnum):
    """Facts that a step can require or verify."""

    NODE_NOT_READY = "node_not_ready"  # the control plane itself reports the node as unreachable
    ROLLOUT_PRECEDED = "rollout_preceded"  # the service was changed within the duration
    REPEATED = "repeated"  # we repaired the same fault on another pod of the node within the duration
    POD_STUCK = "pod_stuck"  # we deleted the pod, and it still exists two minutes later
    SLEEPING = "sleeping"  # the engine reports that it sleeps
    NOT_SERVING = "not_serving"  # no replica of the target serves
    CONFINED = "confined"  # no other replica of the service has the same fault
    DIVERTED = "diverted"  # every replica of the target is out of rotation because of us
    DEVICE_THROTTLED = "device_throttled"  # a device of the node is throttled or too hot
    REPLICAS_AT_LEAST = "replicas_at_least"  # every service of the target has that many serving replicas
    POD_READY = "pod_ready"  # the pod, or the one that replaced it, passes its readiness probe
    SERVING = "serving"  # every replica of the target that still exists serves without an alert
    AWAKE = "awake"  # the engine reports that it does not sleep
    CORDONED = "cordoned"  # the control plane reports the node as unschedulable
    DRAINED = "drained"  # no replica is left on the node
    NODE_READY = "node_ready"  # the control plane reports the node as reachable
    NO_ALERT = "no_alert"  # no alert on the target, and none of the fault on the cause or a pod of the service
    REVISION_CHANGED = "revision_changed"  # the cluster reports a change of the service after the step
    REPLICAS_READY = "replicas_ready"  # the service has the ordered number of serving replicas


WITH_DURATION = frozenset({Condition.ROLLOUT_PRECEDED, Condition.REPEATED})
WITH_COUNT = frozenset({Condition.REPLICAS_AT_LEAST})
AFTER_A_STEP = frozenset({Condition.REVISION_CHANGED, Condition.REPLICAS_READY})
"""Conditions about the result of an action, which cannot be a precondition."""


@dataclass(frozen=True, slots=True)
class Check:
    """One condition with its argument: ``within`` for those with a duration, ``count`` for those with a number."""

    condition: Condition
    within: timedelta = timedelta(0)
    count: int = 0

    def __str__(self) -> str:
        if self.condition in WITH_DURATION:
            return f"{self.condition} {format_duration(self.within)}"
        return f"{self.condition} {self.count}" if self.condition in WITH_COUNT else str(self.condition)


def parse_check(value: Any, allowed: Iterable[Condition]) -> Check:
    """Parses one condition. Raises UsageError with what was expected."""
    known = sorted(allowed)
    name, argument = _parts(value)
    if name not in known:
        raise UsageError(f"unknown condition{yaml_file.near(str(name), known)}; expected one of {', '.join(known)}")
    condition = Condition(name)
    if condition in WITH_DURATION:
        within = DEFAULT_WITHIN if argument is None else parse_duration(str(argument))
        return Check(condition, within=within)
    if condition in WITH_COUNT:
        if isinstance(argument, bool) or not isinstance(argument, int) or argument < 1:
            raise UsageError(f"expected a number of replicas, such as {{{condition}: 2}}")
        return Check(condition, count=argument)
    if argument is not None:
        raise UsageError(f"{condition} takes no value")
    return Check(condition)


def _parts(value: Any) -> tuple[Any, Any]:
    """The name and the argument of a condition; the argument is None without one."""
    if isinstance(value, dict) and len(value) == 1:
        return next(iter(value.items()))
    return value, None
