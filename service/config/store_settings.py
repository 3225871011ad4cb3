"""The part of the configuration that says where values go when one machine is not enough."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from service.config.access_settings import AccessSettings
from service.config.settings_base import Duration
from store.remote.metric_store import Remote


class RemoteMetricsSettings(AccessSettings):
    """A VictoriaMetrics, Mimir, Thanos or Prometheus that keeps the values; all else stays in ``store.url``."""

    url_write: str = Field(
        pattern=r"^https?://",
        description="where it takes remote write, such as http://victoria:8428/api/v1/write, "
        "http://mimir/api/v1/push or http://thanos-receive:19291/api/v1/receive",
    )
    url_read: str = Field(
        pattern=r"^https?://",
        description="what /api/v1/query is appended to, such as http://victoria:8428, http://mimir/prometheus or "
        "http://thanos-query:9090",
    )
    name: str | None = Field(
        None,
        description="value of the label outrider on every series, so that several platforms may share a server; "
        "that of cluster when not given",
        min_length=1,
    )
    timeout: Duration = Field(timedelta(seconds=5), description="whole time a request that writes may take")
    query_timeout: Duration = Field(timedelta(minutes=1), description="whole time a query may take")
    retry_for: Duration = Field(
        timedelta(seconds=3), description="how long a cycle is tried again before it goes to the spool"
    )
    samples_per_request: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        10_000, description="about 1.7 MB before compression; VictoriaMetrics takes 32 MB"
    )
    connections: Annotated[int, Field(ge=1, le=64)] = Field(4, description="requests under way at once")

    def remote(self, cluster: str) -> Remote:
        """The same for the store."""
        return Remote(
            write_url=self.url_write,
            read_url=self.url_read,
            owner=self.name or cluster,
            access=self.access,
            timeout=self.timeout,
            query_timeout=self.query_timeout,
            retry_for=self.retry_for,
            samples=self.samples_per_request,
            connections=self.connections,
        )
