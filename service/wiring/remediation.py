"""Builds the guard rails and the actuators of a configuration."""

from __future__ import annotations

from outrider.model import ActionKind
from outrider.ports import Actuator
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.registry import ACTUATORS
from remediation.actuators.router import ActuatorRouter
from remediation.decide.policy import Policy
from service.config.settings import ActuatorName, Settings
from service.scaling import emitting


def policy(settings: Settings) -> Policy:
    """Returns the configured guard rails."""
    remediation = settings.remediation
    return Policy(
        autonomy=remediation.autonomy,
        dry_run=remediation.dry_run,
        max_cordoned_nodes=remediation.max_cordoned_nodes,
        max_cordoned_ratio=remediation.max_cordoned_ratio,
        max_actions_per_hour=remediation.max_actions_per_hour,
        cooldown=remediation.cooldown,
        min_confidence=remediation.min_confidence,
        ask_for=frozenset(remediation.ask_for),
        plan_acts=not settings.planner.scaling.shadow,
        writes_replicas=remediation.performer(ActionKind.SCALE) == "kubernetes",
    )


def actuator(settings: Settings) -> Actuator:
    """Returns the configured actuator of each action kind."""
    remediation = settings.remediation
    named = {name: _named(name, settings) for name in {remediation.actuator, *remediation.actuators.values()}}
    by_kind = {kind: named[name] for kind, name in remediation.actuators.items()}
    return ActuatorRouter(named[remediation.actuator], by_kind)


def _named(name: ActuatorName, settings: Settings) -> Actuator:
    if name == "autoscalers":
        return emitting.actuator(settings.planner.scaling)
    if name == "kubernetes":
        return KubernetesActuator(*settings.remediation.kubernetes.server())
    return ACTUATORS[name]({"control_url": settings.remediation.control_url})
