"""Routing technique of each service, for the performer ``traffic``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from outrider.errors import ConfigProblem
from outrider.text import yaml_file
from remediation.actuators.traffic.route import OutlierEjection, RouteKind, TrafficRoute
from service.config.settings_base import Duration, Section

_EJECTION = OutlierEjection()
_OF_KINDS: Mapping[str, tuple[RouteKind, ...]] = {
    "label": ("service", "inference_pool", "http_route", "virtual_service", "ingress_canary"),
    "replace": ("service", "inference_pool", "http_route", "virtual_service", "ingress_canary"),
    "backends": ("http_route", "virtual_service", "ingress_canary"),
    "ejection": ("destination_rule",),
}


class EjectionSettings(Section):
    """Outlier detection that Istio applies during an incident."""

    consecutive_5xx_errors: Annotated[int, Field(ge=1)] = Field(
        _EJECTION.consecutive_5xx_errors, description="Number of 5xx responses in a row that ejects an endpoint."
    )
    interval: Duration = Field(
        timedelta(seconds=_EJECTION.interval_seconds), description="Time between two checks of the endpoints."
    )
    base_ejection_time: Duration = Field(
        timedelta(seconds=_EJECTION.base_ejection_seconds),
        description="Minimum time of an ejection; each further one of an endpoint lasts longer.",
    )
    max_ejection_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        _EJECTION.max_ejection_percent, description="Maximum share of endpoints that are ejected at once, in percent."
    )

    def ejection(self) -> OutlierEjection:
        """The outlier detection, for the actuator."""
        return OutlierEjection(
            self.consecutive_5xx_errors,
            self.interval.total_seconds(),
            self.base_ejection_time.total_seconds(),
            self.max_ejection_percent,
        )


class RouteSettings(Section):
    """Object that routes requests of one service."""

    kind: RouteKind = Field(
        description=(
            "service, inference_pool: a pod loses a label that the selector needs; http_route (Gateway API), "
            "virtual_service (Istio): weights of backends; destination_rule (Istio): outlier ejection; "
            "ingress_canary (ingress-nginx): canary weight."
        ),
        examples=["http_route"],
    )
    name: str = Field(
        "",
        description="Name of the object. Default: the service name, or the only object that selects the pod.",
        examples=["chat-route"],
    )
    namespace: str = Field("", description="Namespace of the object. Default: that of the service.", examples=["llm"])
    label: str = Field(
        "", description="Label that a pod loses. Default: one that its controller does not need.", examples=["app"]
    )
    replace: bool = Field(False, description="Permit that a ReplicaSet replaces a pod that lost its label.")
    backends: dict[str, str] = Field(
        {},
        description="Map from a replica to its backend in the route. Default: by the selectors of the backends.",
        examples=["{chat-0: chat-blue}"],
    )
    ejection: EjectionSettings = Field(EjectionSettings(), description="Outlier detection of a destination_rule.")

    def route(self) -> TrafficRoute:
        """The route, for the actuator."""
        return TrafficRoute(
            self.kind,
            self.name,
            self.namespace,
            self.label,
            self.replace,
            dict(self.backends),
            self.ejection.ejection(),
        )


class TrafficSettings(Section):
    """Routing techniques for the performer traffic."""

    routes: dict[str, RouteSettings] = Field(
        {},
        description=("Map from a service, as name or namespace/name, to its routing technique. Default: kind service."),
        examples=["{chat: {kind: http_route}}"],
    )

    def by_service(self) -> dict[str, TrafficRoute]:
        """The routes by service, for the actuator."""
        return {service: settings.route() for service, settings in self.routes.items()}


def traffic_problems(
    traffic: TrafficSettings, services: Sequence[str], document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Checks that routes name known services, and that each key applies to its kind."""
    for service, route in traffic.routes.items():
        path = ("remediation", "traffic", "routes", service)
        name = service.rpartition("/")[2]
        if services and name not in services:
            hint = yaml_file.near(name, services) or "; name it under services"
            yield document.problem(path, f"no service is named {name!r}{hint}")
        for key, kinds in _OF_KINDS.items():
            if key in route.model_fields_set and route.kind not in kinds:
                yield document.problem((*path, key), f"does not apply to {route.kind}; expected {' or '.join(kinds)}")
        if route.kind == "ingress_canary" and not route.name:
            yield document.problem((*path, "name"), "is required by ingress_canary: the name of the canary Ingress")
