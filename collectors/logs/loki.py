"""Logs of model servers from Grafana Loki: polled by ``query_range``, each time from the end of the last query.

https://grafana.com/docs/loki/latest/reference/loki-http-api/#query-logs-within-a-range-of-time
Loki accepts lines that are some seconds late. Each reading therefore overlaps the last one and skips known lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from collectors.events.unresolved_event import FIRST_LOOK, UnresolvedEvent
from collectors.kubernetes.api import items, mapping, text, texts
from collectors.kubernetes.startup_log import expressions
from collectors.logs.matcher import LogMatcher, Origin
from collectors.logs.patterns import packaged
from collectors.mapping.entity_binding import first_label
from collectors.net.http import HttpClient
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef

SOURCE = "loki"
PATH = "/loki/api/v1/query_range"
PAGE_LINES = 5_000  # Loki's default limit of entries per query
MOST_PAGES = 20  # per reading; the rest follows in the next one
OVERLAP = timedelta(seconds=10)
# labels set by promtail, Alloy, the OpenTelemetry collector and Fluent Bit
_NAMESPACE = ("namespace", "k8s_namespace_name", "kubernetes_namespace_name")
_POD = ("pod", "pod_name", "k8s_pod_name", "kubernetes_pod_name", "instance")
_CONTAINER = ("container", "container_name", "k8s_container_name", "kubernetes_container_name")
_SERVICE = ("service_name", "app", "app_kubernetes_io_name", "job")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LokiEntry:
    """One entry: its time (unix nanoseconds), its stream's labels, and its text."""

    nanoseconds: int
    labels: Mapping[str, str]
    text: str

    @property
    def at(self) -> datetime:
        """The time, to the microsecond."""
        return _EPOCH + timedelta(microseconds=self.nanoseconds // 1000)


class LokiLogs:
    """Reads the streams that a LogQL query selects."""

    def __init__(self, name: str, client: HttpClient, cluster: str, query: str, *, prefilter: bool = True) -> None:
        """``query`` is a LogQL log query. With ``prefilter``, Loki drops lines that match no pattern."""
        self.name, self.lines = name, LogMatcher(SOURCE)
        self._client, self._cluster = client, cluster
        self._query = f"{query} |~ {_quoted('|'.join(_filters()))}" if prefilter else query
        self._newest = self._behind = 0  # nanoseconds
        self._recent: dict[tuple[int, int], None] = {}

    async def read(self, at: datetime, nodes: Sequence[EntityRef]) -> tuple[list[UnresolvedEvent], list[CollectError]]:
        """Events since the last reading; the first one covers ``FIRST_LOOK``."""
        del nodes
        events: list[UnresolvedEvent] = []
        begin = self._newest - _nanoseconds(OVERLAP) if self._newest else _unix(at - FIRST_LOOK)
        begin, self._behind = self._behind or begin, 0
        try:
            for _ in range(MOST_PAGES):
                page = await self._page(begin, _unix(at + OVERLAP))
                for line in page:
                    events.extend(self._take(line, at))
                if len(page) < PAGE_LINES:
                    break
                # The last nanosecond is queried again, its entries are known; a full page of one nanosecond is skipped.
                begin = max(page[-1].nanoseconds, begin + 1)
            else:
                self._behind = begin  # a flood: the next reading continues here without overlap
        except CollectError as error:
            return events, [error]
        self._forget()
        return events, []

    def _take(self, line: LokiEntry, at: datetime) -> Iterator[UnresolvedEvent]:
        identity = (line.nanoseconds, hash((line.text, tuple(sorted(line.labels.items())))))
        if identity in self._recent:
            return
        self._recent[identity] = None
        self._newest = max(self._newest, line.nanoseconds)
        yield from self.lines.take(origin_of(line.labels, self._cluster), line.at, line.text, at)

    def _forget(self) -> None:
        oldest = self._newest - 2 * _nanoseconds(OVERLAP)
        self._recent = {identity: None for identity in self._recent if identity[0] >= oldest}

    async def _page(self, begin: int, end: int) -> list[LokiEntry]:
        """Entries of [begin, end), oldest first."""
        parameters = {
            "query": self._query,
            "start": str(begin),
            "end": str(end),
            "limit": str(PAGE_LINES),
            "direction": "forward",
        }
        response = await self._client.get(PATH, parameters)
        if response.status != 200:
            detail = response.body[:200].decode("utf-8", errors="replace").strip()
            hint = {
                400: 'check the query of the source: it must be a LogQL log query such as {namespace="serving"}',
                401: "check its credentials, and headers: {X-Scope-OrgID: TENANT} if Loki has tenants",
                403: "check its credentials, and headers: {X-Scope-OrgID: TENANT} if Loki has tenants",
                404: "set url to Loki's base URL, without /loki/api/v1",
                429: "increase `every` of the source, or Loki's limits",
            }.get(response.status, "check the log of Loki")
            raise self._client.fault(f"Loki returned HTTP {response.status}: {detail}", CollectReason.HTTP_STATUS, hint)
        return lines_of(response.body, self._client)

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()


def lines_of(body: bytes, client: HttpClient) -> list[LokiEntry]:
    """The entries of a response, oldest first. Raises CollectError if it is not a list of streams."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        hint = "check the url of the source"
        raise client.fault("Loki returned a response that is not JSON", CollectReason.TRUNCATED, hint) from error
    data = mapping(mapping(read).get("data"))
    if data.get("resultType") != "streams":
        message = f"the query gives {text(data.get('resultType')) or 'nothing'}, not log lines"
        raise client.fault(message, CollectReason.OTHER, "expected a log query, without rate() or count_over_time()")
    lines = [
        LokiEntry(int(entry[0]), labels, text(entry[1]))
        for stream in items(data.get("result"))
        for labels in [texts(stream.get("stream"))]
        for entry in _entries(stream.get("values"))
    ]
    return sorted(lines, key=lambda line: line.nanoseconds)


def origin_of(labels: Mapping[str, str], cluster: str) -> Origin:
    """Writer of a stream: the pod in its labels, else the service, else the cluster."""
    values = (first_label(labels, names) or "" for names in (_NAMESPACE, _POD, _CONTAINER, _SERVICE))
    namespace, pod, container, service = values
    namespace = namespace.replace("/", "-")  # a slash separates key parts
    if namespace and pod:
        entity = EntityRef(cluster, EntityKind.POD, namespace, pod)
    elif service:
        entity = EntityRef(cluster, EntityKind.SERVICE, namespace or None, service.rsplit("/", 1)[-1])
    else:
        entity = EntityRef(cluster, EntityKind.CLUSTER, None, cluster)
    return Origin(entity, entity.key, container)


def _filters() -> list[str]:
    """All patterns, in the syntax of RE2."""
    return [re.sub(r"\(\?P<\w+>", "(?:", pattern.match.pattern) for pattern in packaged("engine_log").table] + (
        expressions()
    )


def _quoted(pattern: str) -> str:
    """A LogQL string, in Go syntax."""
    return json.dumps(pattern)


def _entries(values: Any) -> Iterator[list[Any]]:
    for entry in values if isinstance(values, list) else []:
        if isinstance(entry, list) and len(entry) >= 2 and text(entry[0]).isdecimal():
            yield entry


def _unix(at: datetime) -> int:
    return _nanoseconds(at - _EPOCH)


def _nanoseconds(span: timedelta) -> int:
    return (span // timedelta(microseconds=1)) * 1000
