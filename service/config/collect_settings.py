"""Metrics sources: targets, discovery, an existing Prometheus, the flight recorder."""

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
    """Entity of a target."""

    kind: EntityKind = Field(description="Entity kind: replica, node, gpu, pod, workload, service or cluster.")
    name: str = Field(description="Entity name.")
    namespace: str | None = Field(None, description="Kubernetes namespace, if it has one.")
    cluster: str | None = Field(None, description="Cluster, if it differs from the configured one.", pattern=r"^[^/]+$")


class TargetSettings(AccessSettings):
    """One metrics page to scrape."""

    name: str = Field(description="Unique name of the target.")
    adapter: str = Field(
        description=("Adapter of the metrics page: vllm, sglang, dcgm, istio ..., or one of collect.adapters.")
    )
    url: str = Field(description="URL of the metrics page, http or https.", pattern=r"^https?://")
    entity: EntitySettings = Field(description="Entity that the metrics page describes.")
    labels: dict[str, str] = Field(
        {}, description="Labels node, pod, service, gpu_type, model, workload; they define the topology."
    )
    timeout: Duration = Field(timedelta(seconds=5), description="Deadline of a scrape.")


class PrometheusSettings(AccessSettings):
    """An existing Prometheus, Thanos, Mimir or VictoriaMetrics to read instead of scraping."""

    url: str = Field(pattern=r"^https?://", description="Base URL of the HTTP API.")
    jobs: dict[str, str] = Field(
        {}, description="Map from job label to adapter. Adapters of other jobs are detected from metric names."
    )
    timeout: Duration = Field(timedelta(seconds=10), description="Deadline of a query.")
    parameters: dict[str, str] = Field(
        {},
        description=(
            "Parameters of every query, for example partial_response: 'false' and "
            "max_source_resolution: '0' for Thanos. A tenant of Mimir belongs under headers."
        ),
    )
    pushdown: Duration | None = Field(
        None,
        description=(
            "Let the server compute signals over this window, for example 5m, instead of fetching raw "
            "samples. For large fleets; rates are smoother, and latencies have no buckets."
        ),
    )


class FlightSettings(Section):
    """Recent scrapes on disk, to replay the time before an incident. Not available with prometheus.pushdown."""

    enabled: bool = Field(True, description="Record the scrapes before every P0 and P1 incident.")
    before: Duration = Field(timedelta(minutes=30), description="Recorded time before an incident.")
    ring_bytes: Annotated[int, Field(gt=0)] = Field(
        512 * 1024 * 1024, description="Maximum disk space of recent scrapes."
    )
    incidents: Annotated[int, Field(gt=0)] = Field(
        20, description=("Maximum number of recordings; the oldest are deleted first.")
    )
    kept_bytes: Annotated[int, Field(gt=0)] = Field(
        2 * 1024 * 1024 * 1024, description="Maximum disk space of recordings."
    )
    targets: Annotated[int, Field(gt=0)] = Field(
        100, description="Maximum number of targets in a recording; those of the incident come first."
    )


class CollectSettings(Section):
    """Metrics sources."""

    interval: Duration = Field(timedelta(seconds=15), description="Time between two cycles.")
    targets: list[TargetSettings] = Field([], description="Metrics pages to scrape.")
    discover: list[DiscoverSettings] = Field([], description="Target discovery.")
    prometheus: PrometheusSettings | None = Field(None, description="Existing Prometheus to read instead of scraping.")
    adapters: list[Path] = Field(
        [], description="Own adapter files, relative to this file. A packaged adapter of the same name is replaced."
    )
    flight: FlightSettings = Field(FlightSettings(), description="The flight recorder.")
    tenants: Annotated[int, Field(ge=1, le=1000)] = Field(
        20,
        description=(
            "Maximum number of tenants of a service whose prompt tokens are kept by name, the largest ones; all others "
            "are summed as other."
        ),
    )
    spread: Duration = Field(
        timedelta(seconds=1),
        description=("Time over which 1,000 scrapes are spread, each at its own offset; shorter for fewer targets."),
    )
    page_limit_bytes: Annotated[int, Field(gt=0)] = Field(
        64 * 1024 * 1024, description="Maximum size of a metrics page; larger ones are rejected."
    )
    page_limit_series: Annotated[int, Field(gt=0)] = Field(
        100_000,
        description=(
            "Maximum number of series per metrics page. Beyond it only series that the adapter reads "
            "are kept, and the log names the label."
        ),
    )
