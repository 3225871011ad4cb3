"""Builds the guard rails and the actuators of a configuration."""

from __future__ import annotations

from outrider.ports import Actuator
from remediation.actuators.degrade.actuator import DegradeActuator
from remediation.actuators.degrade.webhook import GatewayWebhook
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from remediation.actuators.registry import ACTUATORS
from remediation.actuators.router import ActuatorRouter
from remediation.decide.policy import Policy
from remediation.procedures.bundle import Procedures
from service.config.settings import LADDER_KINDS, ActuatorName, Settings, read_secret
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


def procedures(settings: Settings) -> Procedures:
    """Returns the configured degrade ladders and the procedure for a lost cluster."""
    remediation = settings.remediation
    startups = {service.name: service.startup for service in settings.services}
    return Procedures(
        ladders=remediation.degrade.ladders(startups),
        switch=remediation.cluster_switch.procedure(),
    )


def actuator(settings: Settings) -> Actuator:
    """Returns the configured actuator of each action kind."""
    remediation = settings.remediation
    performers = {kind: remediation.performer(kind) for kind in (*remediation.actuators, *LADDER_KINDS)}
    named = {name: _named(name, settings) for name in {remediation.actuator, *performers.values()}}
    by_kind = {kind: named[name] for kind, name in performers.items()}
    return ActuatorRouter(named[remediation.actuator], by_kind)


def degrade_actuator(settings: Settings) -> Actuator:
    """Returns the performer of degrade levels: a ConfigMap, offline Deployments and a webhook, as configured."""
    degrade = settings.remediation.degrade
    secret = read_secret(degrade.webhook_secret_file) if degrade.webhook_secret_file else ""
    webhook = None if degrade.webhook is None else GatewayWebhook(degrade.webhook, secret)
    return DegradeActuator(*settings.remediation.kubernetes.server(), webhook=webhook, config_map=degrade.config_map)


def _named(name: ActuatorName, settings: Settings) -> Actuator:
    if name == "autoscalers":
        return emitting.actuator(settings.planner.scaling)
    if name == "kubernetes":
        return KubernetesActuator(*settings.remediation.kubernetes.server())
    if name == "degrade":
        return degrade_actuator(settings)
    return ACTUATORS[name]({"control_url": settings.remediation.control_url})
