"""Builds the guard rails and the actuator of a configuration."""

from __future__ import annotations

from outrider.ports import Actuator
from remediation.actuators.registry import ACTUATORS
from remediation.decide.policy import Policy
from service.config.settings import Settings
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
    )


def actuator(settings: Settings) -> Actuator:
    """Returns the configured actuator."""
    remediation = settings.remediation
    if remediation.actuator == "autoscalers":
        return emitting.actuator(settings.planner.scaling)
    return ACTUATORS[remediation.actuator]({"control_url": remediation.control_url})
