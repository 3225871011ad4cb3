"""The metric store on a real server, for tests that read directly after a write."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

from outrider.model import EntityKind, EntityRef, Event, Floats, SampleBatch, SignalKey, Statuses
from store.remote.metric_store import PrometheusMetricStore, Remote
from tests.support.metric_servers import MetricServer


def remote_of(server: MetricServer, owner: str | None = None) -> Remote:
    """Returns the remote settings of a server, with a separate owner label."""
    return Remote(f"{server.url}/api/v1/write", server.url, owner or uuid.uuid4().hex, retry_for=timedelta(seconds=1))


class Searchable(PrometheusMetricStore):
    """Makes every write searchable before it returns; otherwise this takes some seconds."""

    def __init__(self, server: MetricServer, url: str, remote: Remote | None = None) -> None:
        self.remote = remote or remote_of(server)
        super().__init__(self.remote, url)
        self._url = server.url
        self._flush = server.flush if "victoria" in server.command[0] else lambda: None

    @property
    def owner(self) -> str:
        """Label ``outrider`` of its series."""
        return self.remote.owner

    def ask(self, query: str, at: datetime) -> float:
        """Returns the only number of a query result."""
        fields = urlencode({"query": query, "time": at.timestamp(), "nocache": 1})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{fields}", timeout=30) as answer:
            (row,) = json.load(answer)["data"]["result"]
        return float(row["value"][1])

    def write(self, at: datetime, batches: Sequence[SampleBatch], events: Sequence[Event] = ()) -> int:
        written = super().write(at, batches, events)
        self._flush()
        return written

    def write_block(
        self,
        kind: EntityKind,
        times: Floats,
        keys: Sequence[SignalKey],
        entities: Sequence[EntityRef],
        values: Floats,
        status: Statuses | None = None,
    ) -> int:
        written = super().write_block(kind, times, keys, entities, values, status)
        self._flush()
        return written


def searchable(server: MetricServer, folder: Path) -> Searchable:
    """Returns a separate store on that server; events and names are in a file in the folder."""
    return Searchable(server, f"sqlite:///{folder}/remote-metrics.db")
