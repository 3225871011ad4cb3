"""Builds the guard rails, the playbooks, the kill switch and the actuators of a configuration."""

from __future__ import annotations

from collections.abc import Container, Mapping
from datetime import timedelta
from math import inf

from outrider.model import ActionKind
from outrider.ports import Actuator
from outrider.text import yaml_file
from remediation.actuators.degrade.actuator import KINDS as DEGRADE
from remediation.actuators.degrade.actuator import DegradeActuator
from remediation.actuators.degrade.webhook import GatewayWebhook
from remediation.actuators.engine.actuator import EngineActuator, names_cluster
from remediation.actuators.gslb.actuator import GslbActuator, SwitchRequest
from remediation.actuators.gslb.verification import ApiRead, DnsRead
from remediation.actuators.hook import job_manifest
from remediation.actuators.hook.actuator import STOPS_PODS, Hook, HookActuator
from remediation.actuators.hook.job import JobHook
from remediation.actuators.hook.node_check import CordonCheck
from remediation.actuators.hook.nvsentinel import NvsentinelHook
from remediation.actuators.hook.webhook import WebhookHook
from remediation.actuators.kubernetes.actuator import CHANGES, KubernetesActuator
from remediation.actuators.registry import ACTUATORS
from remediation.actuators.router import ActuatorRouter
from remediation.actuators.traffic.actuator import ACTIONS as TRAFFIC
from remediation.actuators.traffic.actuator import traffic_actuator
from remediation.decide.limits import ACTION_TIME_LIMIT, BreakerLimits, HalfOpen
from remediation.decide.policy import Policy
from remediation.playbooks import files as playbook_files
from remediation.playbooks.model import Playbook
from remediation.playbooks.model import time_limits as playbook_limits
from remediation.procedures.bundle import Procedures
from service.config.actuator_settings import KINDS_OF, GslbSettings, HookSettings, JobHookSettings
from service.config.remediation_settings import ActuatorName, RemediationSettings
from service.config.settings import Settings, read_secret
from service.config.slo_settings import ttft_limits
from service.engine.kill_switch import KillSwitch
from service.scaling import emitting


def policy(settings: Settings) -> Policy:
    """Returns the configured guard rails."""
    remediation = settings.remediation
    return Policy(
        autonomy=remediation.levels(),
        environments=remediation.named_environments(),
        maintenance_windows=tuple(window.window() for window in remediation.maintenance_windows),
        freezes=tuple(freeze.window() for freeze in remediation.freezes),
        disruptive=frozenset(remediation.disruptive),
        dry_run=remediation.dry_run,
        max_cordoned_nodes=remediation.max_cordoned_nodes,
        max_cordoned_ratio=remediation.max_cordoned_ratio,
        max_actions_per_hour=remediation.max_actions_per_hour,
        cooldown=remediation.cooldown,
        service_minimum=remediation.service_minimum.default,
        service_minimums=remediation.service_minimum.services,
        ceilings=_ceilings(settings),
        fixed_nodes=settings.planner.scaling.node_provision is None,
        scale_in_cooldown=remediation.scale_in_cooldown,
        scale_in_step_ratio=remediation.scale_in_step_ratio,
        min_confidence=remediation.min_confidence,
        ask_for=frozenset(remediation.ask_for),
        two_person=frozenset(remediation.two_person),
        approval_expires=remediation.approval_expires,
        breaker=BreakerLimits(
            window=remediation.breaker.window,
            max_unsuccessful=remediation.breaker.max_unsuccessful,
            max_unsuccessful_ratio=remediation.breaker.max_unsuccessful_ratio,
            recovers_within=remediation.breaker.recovers_within,
        ),
        diagnostic=remediation.runs_diagnostics,
        diagnostic_timeout=remediation.diagnostic_timeout,
        half_open=HalfOpen(
            tuple(remediation.half_open.weights), remediation.half_open.time, remediation.half_open.hold
        ),
        max_ejected_ratio=remediation.max_ejected_ratio,
        plan_acts=not settings.planner.scaling.shadow,
        ejecting=_ejecting(remediation),
        writes_replicas=remediation.performer(ActionKind.SCALE) == "kubernetes",
        time_limits=time_limits(settings),
        clusters=clusters(settings),
        unperformed=frozenset(kind for kind in ActionKind if not _performs(remediation.performer(kind), kind)),
    )


def _ceilings(settings: Settings) -> dict[str, int]:
    """Returns the most replicas of each configured service, by its ceiling and its quota."""
    result = {}
    for service in settings.services:
        name = f"{service.namespace}/{service.name}" if service.namespace else service.name
        quota = inf if service.quota_gpus is None else service.quota_gpus // service.gpus_per_replica
        result[name] = min(service.ceiling, quota)
    return {name: int(most) for name, most in result.items()}


_KINDS: Mapping[str, Container[ActionKind]] = {
    **KINDS_OF,
    "kubernetes": CHANGES,
    "traffic": TRAFFIC,
    "degrade": DEGRADE,
    "autoscalers": (ActionKind.SCALE,),
}


def _performs(performer: ActuatorName, kind: ActionKind) -> bool:
    """True also for a dry run and a simulated fleet, which perform every kind."""
    return performer not in _KINDS or kind in _KINDS[performer]


def _ejecting(remediation: RemediationSettings) -> frozenset[str]:
    """Returns the services whose route only enables outlier ejection."""
    if remediation.performer(ActionKind.SHIFT_TRAFFIC) != "traffic":
        return frozenset()
    routes = remediation.traffic.routes
    return frozenset(service for service, route in routes.items() if route.kind == "destination_rule")


def procedures(settings: Settings) -> Procedures:
    """Returns the configured degrade ladders and the procedure for a lost cluster."""
    remediation = settings.remediation
    startups = {service.name: service.startup for service in settings.services}
    return Procedures(
        ladders=remediation.degrade.ladders(startups, ttft_limits(settings.slos)),
        switch=remediation.cluster_switch.procedure(),
    )


def playbooks(settings: Settings) -> Mapping[str, Playbook]:
    """Returns the packaged playbooks and those of the configuration. Raises ConfigError with every mistake."""
    return playbook_files.load(settings.remediation.playbooks)


def kill_switch(settings: Settings) -> KillSwitch:
    """Returns the switch that stops every action."""
    return KillSwitch(settings.remediation.kill_switch_file)


def actuator(settings: Settings) -> Actuator:
    """Returns the configured actuator of each action kind."""
    remediation = settings.remediation
    performers = {kind: remediation.performer(kind) for kind in ActionKind}
    named = {name: _named(name, settings) for name in {remediation.actuator, *performers.values()}}
    by_kind = {kind: named[name] for kind, name in performers.items()}
    return ActuatorRouter(named[remediation.actuator], by_kind, clusters(settings))


def clusters(settings: Settings) -> dict[ActionKind, str]:
    """Returns the only cluster that the performer of a kind reaches. Kinds that reach every cluster are left out."""
    reached = {kind: _cluster(kind, settings) for kind in ActionKind}
    return {kind: cluster for kind, cluster in reached.items() if cluster is not None}


def _cluster(kind: ActionKind, settings: Settings) -> str | None:
    remediation = settings.remediation
    performer, own = remediation.performer(kind), settings.cluster_of(remediation.kubernetes)
    if performer in ("kubernetes", "traffic"):
        return own
    if performer == "degrade":
        return own if remediation.degrade.needs_api_server else None
    if performer == "hook":
        return own if _hook_needs_api_server(kind, remediation) else None
    if performer == "autoscalers":
        return emitting.cluster(settings)
    if performer == "engine" and remediation.engine.url and not names_cluster(remediation.engine.url):
        return settings.cluster  # the names of its pods resolve there
    return None  # a dry run, a simulated fleet, or a request that names the cluster


def _hook_needs_api_server(kind: ActionKind, remediation: RemediationSettings) -> bool:
    """True unless a webhook performs the kind alone. One that stops pods reads its node from a known API server."""
    hook = next((hook for named, hook in remediation.hooks.items() if named is kind), None)
    if hook is None or hook.webhook is None:
        return True
    return kind in STOPS_PODS and remediation.kubernetes.server()[0] is not None


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
    if name == "traffic":
        return traffic_actuator(*settings.remediation.kubernetes.server(), settings.remediation.traffic.by_service())
    if name == "engine":
        engine = settings.remediation.engine
        return EngineActuator(engine.access, url=engine.url, timeout=engine.timeout)
    if name == "hook":
        remediation = settings.remediation
        return HookActuator({kind: _hook(kind, hook, remediation) for kind, hook in remediation.hooks.items()})
    if name == "gslb" and settings.remediation.gslb is not None:
        return _gslb(settings.remediation.gslb)
    return ACTUATORS[name]({"control_url": settings.remediation.control_url})


def time_limits(settings: Settings) -> Mapping[ActionKind, timedelta]:
    """Returns the time after which an action without an end has failed, for kinds with a limit of their own.

    A hook has the limit of its configuration, a drain the longest time that a playbook gives it.
    """
    remediation = settings.remediation
    longest = playbook_limits(playbooks(settings)).items()
    limits = {kind: max(limit, ACTION_TIME_LIMIT) for kind, limit in longest}
    for kind, hook in remediation.hooks.items():
        if remediation.performer(kind) == "hook":
            limits[kind] = hook.timeout
    return limits


def _hook(kind: ActionKind, hook: HookSettings, remediation: RemediationSettings) -> Hook:
    server = remediation.kubernetes.server()
    if hook.webhook is not None:
        webhook = hook.webhook
        return WebhookHook(
            webhook.url,
            secret_file=webhook.secret_file,
            access=webhook.access,
            timeout=webhook.timeout,
            check=None if server[0] is None else CordonCheck(*server),
        )
    if hook.nvsentinel is not None:
        return NvsentinelHook(*server, force=hook.nvsentinel.force)
    return JobHook(*server, _job_options(kind, hook.job or JobHookSettings()))


def _job_options(kind: ActionKind, job: JobHookSettings) -> job_manifest.JobOptions:
    own = job.template
    template = job_manifest.packaged(kind, job.check) if own is None else yaml_file.read(own).value
    return job_manifest.JobOptions(
        template=template,
        namespace=job.namespace,
        image=job.image,
        runtime_class=job.runtime_class,
        limits=job.limits,
        level=job.level,
        deadline=job.deadline,
        keeps=job.keeps,
        peer_ratio=job.peer_ratio,
    )


def _gslb(gslb: GslbSettings) -> GslbActuator:
    read, names = gslb.read, gslb.dns
    return GslbActuator(
        SwitchRequest(gslb.url, gslb.method, gslb.body, gslb.names),
        gslb.access,
        read=ApiRead(read.url, read.share, read.whole) if read else None,
        dns=DnsRead(names.name, names.addresses, tuple(names.servers)) if names else None,
        timeout=gslb.timeout,
    )
