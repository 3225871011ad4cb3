"""Remote storage of values, for fleets that outgrow one machine."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from service.config.access_settings import AccessSettings
from service.config.settings_base import Duration
from store.remote.metric_store import Remote


class RemoteMetricsSettings(AccessSettings):
    """A VictoriaMetrics, Mimir, Thanos or Prometheus for the values; everything else stays in ``store.url``."""

    url_write: str = Field(
        pattern=r"^https?://",
        description=(
            "Remote-write URL, for example http://victoria:8428/api/v1/write, http://mimir/api/v1/push "
            "or http://thanos-receive:19291/api/v1/receive."
        ),
    )
    url_read: str = Field(
        pattern=r"^https?://",
        description=(
            "Base URL of queries (without /api/v1/query), for example http://victoria:8428, "
            "http://mimir/prometheus or http://thanos-query:9090."
        ),
    )
    name: str | None = Field(
        None,
        description=(
            "Value of the label outrider on every series, so that several platforms can share a server. "
            "Default: the cluster."
        ),
        min_length=1,
    )
    timeout: Duration = Field(timedelta(seconds=5), description="Deadline of a write request.")
    query_timeout: Duration = Field(timedelta(minutes=1), description="Deadline of a query.")
    retry_for: Duration = Field(
        timedelta(seconds=3), description="Time to retry a cycle before it goes to the write buffer."
    )
    samples_per_request: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        10_000, description="Maximum request size, about 1.7 MB before compression; VictoriaMetrics accepts 32 MB."
    )
    connections: Annotated[int, Field(ge=1, le=64)] = Field(4, description="Maximum concurrent requests.")

    def remote(self, cluster: str) -> Remote:
        """Remote storage, for the store."""
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
