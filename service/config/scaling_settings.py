"""Scaling limits, start-up cost, and the receivers of the plan."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from outrider.errors import ConfigProblem
from outrider.text import yaml_file
from outrider.wire.http_auth import Access, Tls
from planner.capacity.lead_time import MARGIN_RATIO, NODE_PROVISION_PRIOR, LeadSettings
from planner.capacity.prescale import ScaleLimits
from planner.manifests.scaling_manifests import ScalingTarget
from service.config.settings_base import Duration, Port, Ratio, Section, TimeZone

_LIMITS = ScaleLimits()
Kind = Literal["hpa", "scaled_object", "knative", "deployment", "cron", "kustomize", "webhook"]
_OF_KUBERNETES = ("hpa", "scaled_object", "knative", "deployment")


class EmitSettings(Section):
    """One receiver of the replica count of a service."""

    service: str = Field(description="Service whose plan is sent.")
    type: Kind = Field(
        description=(
            "hpa, scaled_object: their minimum replicas; knative: min-scale of the newest ready "
            "revision; deployment: its replicas, if no other controller owns them; webhook: a POST; "
            "cron and kustomize are written by `outrider capacity emit` only."
        )
    )
    name: str = Field("", description="Name of the object. Default: the service name.")
    namespace: str | None = Field(None, description="Namespace of the object. Default: that of the service.")
    url: str | None = Field(None, description="URL of the webhook.")
    token_file: Path | None = Field(None, description="File with the bearer token of the webhook.")
    timezone: TimeZone = Field("UTC", description="Time zone of the cron scaler, for example Asia/Shanghai.")
    file: str = Field("", description="Path in the Git repository that the kustomize patch is for.")

    def target(self, namespace: str | None) -> ScalingTarget:
        """The receiver, for the planner's renderer; ``namespace`` is that of the service."""
        return ScalingTarget(
            kind=self.type,
            name=self.name or self.service,
            namespace=self.namespace or namespace or "default",
            timezone=self.timezone,
            file=self.file,
        )


_IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubernetesApiSettings(Section):
    """API server that actions change."""

    url: str | None = Field(
        None,
        description="URL as https://host:port. Default inside a pod: its own cluster.",
        examples=["https://10.0.0.1:6443"],
    )
    cluster: str | None = Field(
        None,
        description="Cluster of this server; targets of another one are refused. Default: the configured cluster.",
        pattern=r"^[^/]+$",
        examples=["eu-1"],
    )
    bearer_token_file: Path | None = Field(
        None,
        description=("Token file of an account that may perform the actions."),
        examples=["/run/secrets/outrider-act"],
    )
    ca_file: Path | None = Field(None, description="CA certificates of the server.", examples=["/run/secrets/ca.crt"])
    insecure_skip_verify: bool = Field(False, description="Skip certificate verification; for tests only.")

    def server(self) -> tuple[str | None, Access]:
        """Returns URL and credentials; inside a pod, by default those of its cluster."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        if self.url is None and host:
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            tls = Tls(ca_file=_IN_CLUSTER / "ca.crt")
            return f"https://{host}:{port}", Access(bearer_token_file=_IN_CLUSTER / "token", tls=tls)
        tls = Tls(ca_file=self.ca_file, insecure_skip_verify=self.insecure_skip_verify)
        return self.url, Access(bearer_token_file=self.bearer_token_file, tls=tls)


class ScalingSettings(Section):
    """Scaling limits, start-up cost, and the receivers of the plan."""

    step_ratio: Annotated[float, Field(ge=1)] = Field(
        _LIMITS.step_ratio, description="Maximum replicas of a plan, as a multiple of current replicas, or"
    )
    step_replicas: Annotated[int, Field(ge=1)] = Field(
        _LIMITS.step_replicas, description="as additional replicas, whichever is larger."
    )
    hour_ratio: Annotated[float, Field(ge=1)] = Field(
        _LIMITS.hour_ratio, description="Maximum replicas within an hour, as a multiple of that hour's minimum, or"
    )
    hour_replicas: Annotated[int, Field(ge=1)] = Field(
        _LIMITS.hour_replicas, description="as additional replicas, whichever is larger."
    )
    spike_ratio: Annotated[float, Field(gt=1)] = Field(
        _LIMITS.spike_ratio,
        description=("A single sample this many times above the previous maximum needs confirmation."),
    )
    cooling: Duration = Field(_LIMITS.cooling, description="Time after a scale-out without scale-in.")
    drain: Annotated[Duration, Field(gt=timedelta(0))] = Field(
        _LIMITS.drain, description="Time in which a scale-out serves the requests that wait, beside the arrivals."
    )
    margin: Ratio = Field(MARGIN_RATIO, description="Margin on a measured lead time, as a ratio.")
    node_provision: Duration | None = Field(
        NODE_PROVISION_PRIOR,
        description="Time to provision a node if no GPU is free. Default: a prior until measured. `null`: no node is "
        "added, and a plan orders no more replicas than the free GPUs hold.",
    )
    warm_up: Duration = Field(timedelta(0), description="Time from ready until a replica takes its full share of load.")
    shadow: bool = Field(False, description="Compute and report plans without acting on them.")
    emit: list[EmitSettings] = Field([], description="Receivers of the plan; see `outrider capacity emit`.")
    kubernetes: KubernetesApiSettings = Field(
        KubernetesApiSettings(), description="API server whose autoscalers are patched."
    )
    external_scaler_port: Port | None = Field(
        None, description="Address of KEDA's external-push scaler (gRPC) in the API process; requires the extra grpc."
    )

    @property
    def patches_kubernetes(self) -> bool:
        """True if a receiver is an object of the API server."""
        return any(receiver.type in _OF_KUBERNETES for receiver in self.emit)

    @property
    def limits(self) -> ScaleLimits:
        """Scaling limits, for the planner."""
        return ScaleLimits(
            self.step_ratio,
            self.step_replicas,
            self.hour_ratio,
            self.hour_replicas,
            self.spike_ratio,
            self.cooling,
            self.drain,
        )

    @property
    def lead(self) -> LeadSettings:
        """Lead-time settings, for the planner."""
        return LeadSettings(self.margin, self.node_provision, self.warm_up)


def emit_problems(
    scaling: ScalingSettings, services: Sequence[str], performer_of_scale: str, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Checks that every receiver is complete, and that a service has at most one that acts: two would conflict."""
    acting: set[str] = set()
    for index, receiver in enumerate(scaling.emit):
        path = ("planner", "scaling", "emit", index)
        if services and receiver.service not in services:
            hint = yaml_file.near(receiver.service, services) or "; name it under services"
            yield document.problem((*path, "service"), f"no service is named {receiver.service!r}{hint}")
        if receiver.type == "webhook" and not receiver.url:
            yield document.problem((*path, "url"), "is required by a webhook")
        if receiver.type in _OF_KUBERNETES:
            if receiver.service in acting:
                yield document.problem(
                    (*path, "type"), f"{receiver.service} already has a receiver that acts; only one may act"
                )
            acting.add(receiver.service)
    if performer_of_scale == "autoscalers" and not scaling.emit:
        yield document.problem(("planner", "scaling", "emit"), "is required by the actuator autoscalers")
