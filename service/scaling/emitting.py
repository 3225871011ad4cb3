"""Joins the plan's documents with what sends them: for the dispatcher, and for ``outrider capacity emit``."""

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
from outrider.wire.http_auth import Access, Tls
from planner.manifests import scaling_manifests
from planner.manifests.scaling_manifests import Document
from remediation.actuators.autoscalers import AutoscalerActuator
from remediation.decide.limits import Policy
from service.config.scaling_settings import EmitSettings, ScalingSettings
from service.config.settings import Settings, read_secret
from service.scaling import manual_scale_guard

_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NOBODYS = frozenset({"127.0.0.1", "::1", "localhost", "0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_SENT = ("hpa", "scaled_object", "knative", "deployment", "webhook")


@dataclass(frozen=True, slots=True)
class Hook:
    """A webhook of the configuration."""

    url: str
    token_file: Path | None

    def headers(self) -> dict[str, str]:
        """With its token, read anew: tokens rotate. Raises ConfigError."""
        return {} if self.token_file is None else {"Authorization": f"Bearer {read_secret(self.token_file)}"}


def actuator(scaling: ScalingSettings) -> AutoscalerActuator:
    """What performs SCALE actions by the configured objects."""

    def render(action: Action) -> list[tuple[Document, Hook | None]]:
        found = _as_recommendation(action)
        return [
            (
                scaling_manifests.render(found, one.target(action.target.namespace)),
                Hook(one.url, one.token_file) if one.url else None,
            )
            for one in scaling.emit
            if one.service == action.target.name and one.type in _SENT
        ]

    url, access = _door(scaling)
    return AutoscalerActuator(render, url, access)


def documents(
    settings: Settings, plan: Plan, service: str | None, kinds: Sequence[str] | None
) -> list[tuple[Recommendation, Document]]:
    """Every document of a plan. Without configured aims, or for ``kinds`` that none has, the service's own name is it.

    Raises UsageError for a service that has no plan.
    """
    found: list[tuple[Recommendation, Document]] = []
    forecasts = {one.entity: one for one in plan.forecasts}
    url = _own_url(settings)
    for item in plan.recommendations:
        if service not in (None, item.service.name):
            continue
        if not isinstance(item, Recommendation):
            if service is not None:
                raise UsageError(f"{service} has no plan: {item.reason.value}", hint="see outrider capacity explain")
            continue
        aims = [one.target(item.service.namespace) for one in aims_of(settings, item.service, kinds)]
        found += [(item, one) for one in scaling_manifests.documents(item, aims, forecasts.get(item.service), url=url)]
    return found


def _own_url(settings: Settings) -> str:
    """Where others reach the API; empty where nobody but this machine can: a document for KEDA would ask itself."""
    api = settings.api
    host = next((one for one in (*api.hosts, api.host) if one not in _NOBODYS), None)
    return f"http://{host}:{api.port}" if host else ""


def aims_of(settings: Settings, service: EntityRef, kinds: Sequence[str] | None) -> list[EmitSettings]:
    """The configured aims of a service, of these kinds where some are given."""
    own = [one for one in settings.planner.scaling.emit if one.service == service.name]
    if kinds is None:
        return own or [EmitSettings(service=service.name, type="hpa")]
    known: dict[str, EmitSettings] = {one.type: one for one in own}
    return [known.get(kind) or EmitSettings.model_validate({"service": service.name, "type": kind}) for kind in kinds]


def send(
    settings: Settings, state: StateStore, found: Recommendation, now: datetime, policy: Policy, *, dry_run: bool
) -> tuple[Action, Outcome]:
    """Perform one recommendation by hand, as the dispatcher would, and put it on record.

    A pause and the guard rails of the live loop hold it (cooldowns, rates, survivors), and the configuration's
    ``dry_run`` makes it one. Raises UsageError while it is held, ActuationError.
    """
    if state.paused():
        raise UsageError("remediation is paused", hint="outrider remediate resume")
    held = manual_scale_guard.refusal(policy, state, found, now)
    if held is not None:
        raise UsageError(
            f"{found.service.name} is not scaled to {found.target_replicas} now: {held}",
            hint="the guard rails of remediation hold it; wait, or see outrider remediate list",
        )
    action = Action(
        id=f"emit:{found.service.key}:{int(found.made_at.timestamp())}:{found.target_replicas}",
        session="emit",
        kind=ActionKind.SCALE,
        target=found.service,
        params={"replicas": found.target_replicas, "current": found.current_replicas},
        because="plan",
        dry_run=dry_run or settings.remediation.dry_run,
        decision=Verdict.ALLOWED,
        reason=DecisionReason.APPROVED,
        status=ActionStatus.CLAIMED,
        decided_at=now,
        approved_by=os.environ.get("USER", "cli"),
    )
    try:
        outcome = actuator(settings.planner.scaling).perform(action)
    except ActuationError as error:
        state.append_audit([_record(action, "failed", error.message, now)])
        raise
    state.append_audit([_record(action, outcome.status.value, outcome.detail, now)])
    return replace(action, status=ActionStatus(outcome.status.value if action.dry_run else "done")), outcome


def _record(action: Action, status: str, said: str, now: datetime) -> AuditRecord:
    detail: Mapping[str, str] = {"action": action.id, "said": said, "dry_run": str(action.dry_run)}
    subject = f"{action.kind} {action.target}"
    return AuditRecord(now, AuditEvent.ACTION_PERFORMED, subject, status, by=action.approved_by or "cli", detail=detail)


def _as_recommendation(action: Action) -> Recommendation:
    """What an action says of a plan: its number. The rest is not sent."""
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


def _door(scaling: ScalingSettings) -> tuple[str | None, Access]:
    """The API server of the configuration; inside a pod the cluster's own."""
    given, host = scaling.kubernetes, os.environ.get("KUBERNETES_SERVICE_HOST")
    if given.url is None and host:
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        tls = Tls(ca_file=_IN_CLUSTER / "ca.crt")
        return f"https://{host}:{port}", Access(bearer_token_file=_IN_CLUSTER / "token", tls=tls)
    tls = Tls(ca_file=given.ca_file, insecure_skip_verify=given.insecure_skip_verify)
    return given.url, Access(bearer_token_file=given.bearer_token_file, tls=tls)
