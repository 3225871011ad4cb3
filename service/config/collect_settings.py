"""The part of the configuration that says what is watched, and how."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field

from outrider.model import EntityKind
from service.config.access_settings import AccessSettings
from service.config.discovery_settings import DiscoverSettings
from service.config.settings_base import Duration, Section


class EntitySettings(Section):
    """The component a target stands for."""

    kind: EntityKind = Field(description="replica, node, gpu, pod, workload, service, cluster")
    name: str = Field(description="name of the component")
    namespace: str | None = Field(None, description="Kubernetes namespace, where it has one")
    cluster: str | None = Field(None, description="its cluster, when it is another one", pattern=r"^[^/]+$")


class TargetSettings(AccessSettings):
    """One page to scrape."""

    name: str = Field(description="unique name of the target")
    adapter: str = Field(description="how to read the page: vllm, sglang, dcgm, istio ..., or one of collect.adapters")
    url: str = Field(description="the metrics page, http or https", pattern=r"^https?://")
    entity: EntitySettings = Field(description="the component the page speaks for")
    labels: dict[str, str] = Field(
        {}, description="node, pod, service, gpu_type, model, workload: they give the topology"
    )
    timeout: Duration = Field(timedelta(seconds=5), description="whole time a scrape may take")


class PrometheusSettings(AccessSettings):
    """An existing Prometheus, Thanos, Mimir or VictoriaMetrics to read instead of scraping."""

    url: str = Field(pattern=r"^https?://", description="base URL of the HTTP API")
    jobs: dict[str, str] = Field(
        {}, description="job label -> adapter; jobs not named are guessed from their metric names"
    )
    timeout: Duration = Field(timedelta(seconds=10), description="whole time a query may take")
    parameters: dict[str, str] = Field(
        {},
        description="sent with every query, such as partial_response: 'false' and max_source_resolution: '0' to "
        "Thanos; a tenant of Mimir goes under headers, as X-Scope-OrgID",
    )
    pushdown: Duration | None = Field(
        None,
        description="let the server work out the signals over this window, such as 5m, instead of fetching raw "
        "samples: for large fleets. Rates are smoother and latencies come without buckets",
    )


class FlightSettings(Section):
    """Pages kept on disk, so that what led to an incident can be replayed. With prometheus.pushdown there are none."""

    enabled: bool = Field(True, description="keep the scrapes before every P0 and P1 incident")
    before: Duration = Field(timedelta(minutes=30), description="how far back before an incident")
    ring_bytes: Annotated[int, Field(gt=0)] = Field(512 * 1024 * 1024, description="most that the last scrapes take")
    incidents: Annotated[int, Field(gt=0)] = Field(20, description="recordings kept; the oldest go first")
    kept_bytes: Annotated[int, Field(gt=0)] = Field(2 * 1024 * 1024 * 1024, description="most that recordings take")
    targets: Annotated[int, Field(gt=0)] = Field(
        100, description="targets in a recording: those the incident is about first, all when there are no more"
    )


class CollectSettings(Section):
    """What is watched."""

    interval: Duration = Field(timedelta(seconds=15), description="time between two cycles")
    targets: list[TargetSettings] = Field([], description="pages to scrape")
    discover: list[DiscoverSettings] = Field([], description="where more targets are found")
    prometheus: PrometheusSettings | None = Field(
        None, description="an existing Prometheus to read instead of scraping"
    )
    adapters: list[Path] = Field(
        [], description="adapter files of your own (relative to this file); one of a packaged name takes its place"
    )
    flight: FlightSettings = Field(FlightSettings(), description="the flight recorder")
    spread: Duration = Field(
        timedelta(seconds=1), description="1,000 targets are asked over this time, each at its own moment; fewer sooner"
    )
    page_limit_bytes: Annotated[int, Field(gt=0)] = Field(64 * 1024 * 1024, description="a larger page is refused")
    page_limit_series: Annotated[int, Field(gt=0)] = Field(
        100_000,
        description="a page with more series is cut down to what its adapter reads, and the log names the label",
    )
