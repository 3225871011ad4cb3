"""Renders and sends the plan's autoscaler manifests, for the dispatcher and ``outrider capacity emit``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import ActuationError, UsageError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityRef,
    Outcome,
    Plan,
    PlanReason,
    Recommendation,
    Verdict,
)
from outrider.ports import StateStore
from planner.manifests import scaling_manifests
from planner.manifests.scaling_manifests import Document
from remediation.actuators.autoscalers import AutoscalerActuator
from remediation.actuators.router import check_cluster
from remediation.decide.limits import Policy
from service.config.scaling_settings import EmitSettings, ScalingSettings
from service.config.settings import Settings, read_secret
from service.scaling import manual_scale_guard
from service.scaling.stops import check_not_stopped

_LOCAL_HOSTS = frozenset({"127.0.0.1", "::1", "localhost", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_SENT = ("hpa", "scaled_object", "knative", "deployment", "webhook")


@dataclass(frozen=True, slots=True)
class Hook:
    """A configured webhook."""

    url: str
    token_file: Path | None

    def headers(self) -> dict[str, str]:
        """Returns the authorization header; reads the token each time, because tokens rotate. Raises ConfigError."""
        return {} if self.token_file is None else {"Authorization": f"Bearer {read_secret(self.token_file)}"}


def actuator(scaling: ScalingSettings) -> AutoscalerActuator:
    """Returns the actuator that performs SCALE actions with the configured objects."""

    def render(action: Action) -> list[tuple[Document, Hook | None]]:
        recommendation = _as_recommendation(action)
        return [
            (
                scaling_manifests.render(recommendation, emit.target(action.target.namespace)),
                Hook(emit.url, emit.token_file) if emit.url else None,
            )
            for emit in scaling.emit
            if emit.service == action.target.name and emit.type in _SENT
        ]

    url, access = scaling.kubernetes.server()
    return AutoscalerActuator(render, url, access)


def cluster(settings: Settings) -> str | None:
    """Returns the only cluster that the receivers of the plan reach; None if all of them are webhooks."""
    scaling = settings.planner.scaling
    return settings.cluster_of(scaling.kubernetes) if scaling.patches_kubernetes else None


def documents(
    settings: Settings, plan: Plan, service: str | None, kinds: Sequence[str] | None
) -> list[tuple[Recommendation, Document]]:
    """Returns every document of a plan. Kinds without a configured object use the service's own name.

    Raises UsageError for a service without a plan.
    """
    rendered: list[tuple[Recommendation, Document]] = []
    forecasts = {forecast.entity: forecast for forecast in plan.forecasts}
    url = _own_url(settings)
    for item in plan.recommendations:
        if service not in (None, item.service.name):
            continue
        if not isinstance(item, Recommendation):
            if service is not None:
                raise UsageError(f"{service} has no plan: {item.reason.value}", hint="see outrider capacity explain")
            continue
        aims = [emit.target(item.service.namespace) for emit in aims_of(settings, item.service, kinds)]
        forecast = forecasts.get(item.service)
        rendered += [(item, document) for document in scaling_manifests.documents(item, aims, forecast, url=url)]
    return rendered


def _own_url(settings: Settings) -> str:
    """Returns the API's URL for other hosts; empty if it listens on local addresses only."""
    api = settings.api
    host = next((name for name in (*api.hosts, api.host) if name not in _LOCAL_HOSTS), None)
    return f"http://{host}:{api.port}" if host else ""


def aims_of(settings: Settings, service: EntityRef, kinds: Sequence[str] | None) -> list[EmitSettings]:
    """Returns the configured scaling objects of a service, filtered by ``kinds`` if given."""
    own = [emit for emit in settings.planner.scaling.emit if emit.service == service.name]
    if kinds is None:
        return own or [EmitSettings(service=service.name, type="hpa")]
    known: dict[str, EmitSettings] = {emit.type: emit for emit in own}
    return [known.get(kind) or EmitSettings.model_validate({"service": service.name, "type": kind}) for kind in kinds]


def send(
    settings: Settings,
    state: StateStore,
    recommendation: Recommendation,
    now: datetime,
    policy: Policy,
    *,
    dry_run: bool,
) -> tuple[Action, Outcome]:
    """Performs one recommendation on request, as the dispatcher would, and writes an audit record.

    A pause, the kill switch or a guard rail of the live loop (cooldowns, rates, survivors) refuses it. The configured
    ``dry_run`` applies. Raises UsageError if it is refused, ActuationError also for a service of another cluster.
    """
    check_not_stopped(settings, state)
    reason = manual_scale_guard.refusal(policy, state, recommendation, now)
    if reason is not None:
        raise UsageError(
            f"{recommendation.service.name} is not scaled to {recommendation.target_replicas} now: {reason}",
            hint="the guard rails of remediation refuse it; wait, or see outrider remediate list",
        )
    action = Action(
        id=f"emit:{recommendation.service.key}:{int(recommendation.made_at.timestamp())}:{recommendation.target_replicas}",
        session="emit",
        kind=ActionKind.SCALE,
        target=recommendation.service,
        params={"replicas": recommendation.target_replicas, "current": recommendation.current_replicas},
        because="plan",
        dry_run=dry_run or settings.remediation.dry_run,
        decision=Verdict.ALLOWED,
        reason=DecisionReason.APPROVED,
        status=ActionStatus.CLAIMED,
        decided_at=now,
        approved_by=os.environ.get("USER", "cli"),
    )
    check_cluster(action, cluster(settings))
    try:
        outcome = actuator(settings.planner.scaling).perform(action)
    except ActuationError as error:
        state.append_audit([_record(action, "failed", error.message, now)])
        raise
    state.append_audit([_record(action, outcome.status.value, outcome.detail, now)])
    return replace(action, status=ActionStatus(outcome.status.value if action.dry_run else "done")), outcome


def _record(action: Action, status: str, message: str, now: datetime) -> AuditRecord:
    detail: Mapping[str, str] = {"action": action.id, "said": message, "dry_run": str(action.dry_run)}
    subject = f"{action.kind} {action.target}"
    return AuditRecord(now, AuditEvent.ACTION_PERFORMED, subject, status, by=action.approved_by or "cli", detail=detail)


def _as_recommendation(action: Action) -> Recommendation:
    """Converts an action to a recommendation; manifests use only its replica count."""
    replicas = int(action.params["replicas"])
    return Recommendation(
        service=action.target,
        gpu_type="",
        current_replicas=int(action.params.get("current", replicas)),
        target_replicas=replicas,
        gpus=0,
        floor=0,
        ceiling=replicas,
        binding="load",
        need_at=None,
        needed_by=None,
        lead_time=timedelta(0),
        cost_per_hour=None,
        currency="",
        derivation={},
        reason=PlanReason.FORECAST_PEAK if replicas > int(action.params.get("current", 0)) else PlanReason.ENOUGH,
        made_at=action.decided_at,
    )
