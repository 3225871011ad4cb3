"""How fast services may grow, what a start is taken to cost, and where the plan's numbers are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from outrider.errors import ConfigProblem
from outrider.text import yaml_file
from planner.capacity.lead_time import MARGIN_RATIO, NODE_PROVISION_PRIOR, LeadSettings
from planner.capacity.prescale import ScaleLimits
from planner.manifests.scaling_manifests import ScalingTarget
from service.config.settings_base import Duration, Port, Ratio, Section, TimeZone

_LIMITS = ScaleLimits()
Kind = Literal["hpa", "scaled_object", "knative", "deployment", "cron", "kustomize", "webhook"]
_OF_KUBERNETES = ("hpa", "scaled_object", "knative", "deployment")


class EmitSettings(Section):
    """One place that the number of replicas of a service goes to."""

    service: str = Field(description="the service whose plan is sent")
    type: Kind = Field(
        description="hpa, scaled_object: their least replicas; knative: min-scale of the newest ready revision; "
        "deployment: its replicas, where no other controller owns them; webhook: a POST; cron and kustomize are "
        "written by `outrider capacity emit` only"
    )
    name: str = Field("", description="of the object; the service's name when not given")
    namespace: str | None = Field(None, description="of the object; that of the service when not given")
    url: str | None = Field(None, description="of the webhook")
    token_file: Path | None = Field(None, description="bearer token of the webhook")
    timezone: TimeZone = Field("UTC", description="of the cron scaler's hours, such as Asia/Shanghai")
    file: str = Field("", description="path inside the Git repository that a kustomize patch is for")

    def aim(self, namespace: str | None) -> ScalingTarget:
        """As the planner's renderer takes it; ``namespace`` is that of the service."""
        return ScalingTarget(
            kind=self.type,
            name=self.name or self.service,
            namespace=self.namespace or namespace or "default",
            timezone=self.timezone,
            file=self.file,
        )


class KubernetesDoor(Section):
    """The API server whose autoscalers are patched."""

    url: str | None = Field(None, description="https://host:port; inside a pod the cluster's own when not given")
    bearer_token_file: Path | None = Field(None, description="token of an account that may get and patch them")
    ca_file: Path | None = Field(None, description="certificates that sign the server's own")
    insecure_skip_verify: bool = Field(False, description="believe any certificate: for trials")


class ScalingSettings(Section):
    """How fast services may grow, what a start is taken to cost, and where the plan's numbers are sent."""

    step_ratio: Annotated[float, Field(ge=1)] = Field(
        _LIMITS.step_ratio, description="one plan makes no more replicas than this times those of now, or"
    )
    step_replicas: Annotated[int, Field(ge=1)] = Field(
        _LIMITS.step_replicas, description="so many more, whichever is larger"
    )
    hour_ratio: Annotated[float, Field(ge=1)] = Field(
        _LIMITS.hour_ratio, description="one hour makes no more than this times the fewest of that hour, or"
    )
    hour_replicas: Annotated[int, Field(ge=1)] = Field(
        _LIMITS.hour_replicas, description="so many more, whichever is larger"
    )
    spike_ratio: Annotated[float, Field(gt=1)] = Field(
        _LIMITS.spike_ratio, description="a single sample this many times above all before is not believed alone"
    )
    cooling: Duration = Field(_LIMITS.cooling, description="nothing is taken away so soon after a scale-out")
    margin: Ratio = Field(MARGIN_RATIO, description="added to a measured lead time, a ratio")
    node_provision: Duration = Field(
        NODE_PROVISION_PRIOR, description="time to get a node while no GPU is free; a prior until measured"
    )
    warm_up: Duration = Field(timedelta(0), description="from ready until a replica carries its share")
    shadow: bool = Field(
        False, description="plans are made and reported (what would have been done), and no action follows from them"
    )
    emit: list[EmitSettings] = Field([], description="where the numbers go; see `outrider capacity emit`")
    kubernetes: KubernetesDoor = Field(KubernetesDoor(), description="the API server whose autoscalers are patched")
    external_scaler_port: Port | None = Field(
        None, description="the API also serves KEDA's external-push scaler (gRPC) there; needs the extra grpc"
    )

    @property
    def limits(self) -> ScaleLimits:
        """As the planner takes them."""
        return ScaleLimits(
            self.step_ratio,
            self.step_replicas,
            self.hour_ratio,
            self.hour_replicas,
            self.spike_ratio,
            self.cooling,
        )

    @property
    def lead(self) -> LeadSettings:
        """As the planner takes them."""
        return LeadSettings(self.margin, self.node_provision, self.warm_up)


def emit_usable(
    scaling: ScalingSettings, services: Sequence[str], actuator: str, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Every aim is complete, and a service has one aim that acts at most: two would fight over its replicas."""
    acting: set[str] = set()
    for index, one in enumerate(scaling.emit):
        where = ("planner", "scaling", "emit", index)
        if services and one.service not in services:
            known = yaml_file.near(one.service, services) or "; name it under services"
            yield document.problem((*where, "service"), f"no service is named {one.service!r}{known}")
        if one.type == "webhook" and not one.url:
            yield document.problem((*where, "url"), "is needed by a webhook")
        if one.type in _OF_KUBERNETES:
            if one.service in acting:
                yield document.problem((*where, "type"), f"{one.service} has another object already; one may act")
            acting.add(one.service)
    if actuator == "autoscalers" and not scaling.emit:
        yield document.problem(("planner", "scaling", "emit"), "is needed by the actuator autoscalers")
