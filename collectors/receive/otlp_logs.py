"""OTLP logs over HTTP, protobuf and JSON, decoded to lines with the pod that wrote them. Pure.

https://opentelemetry.io/docs/specs/otlp/#otlphttp and the semantic conventions of Kubernetes resources. Only
bodies that are texts are read, and of structured ones their ``message``, ``msg`` or ``log``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

from collectors.logs.matcher import Origin
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef

SOURCE = "otlp_logs"
PROTOBUF, JSON = "application/x-protobuf", "application/json"
_MOST_NAME = 253  # of a Kubernetes object
_TEXTS = ("message", "msg", "log", "body")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record: who wrote it, when (None when it does not say), and its text."""

    origin: Origin
    at: datetime | None
    text: str


def decode(body: bytes, kind: str, cluster: str) -> list[LogLine]:
    """The lines of one export; ``kind`` is its media type. Raises UsageError for a body that is none."""
    request = ExportLogsServiceRequest()
    try:
        if kind == JSON:
            json_format.Parse(body.decode("utf-8"), request, ignore_unknown_fields=True, max_recursion_depth=32)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the body is no OTLP logs export in {kind}",
            hint="send an ExportLogsServiceRequest as an OpenTelemetry exporter makes it (otlphttp)",
        ) from error
    return list(_lines(request, cluster))


def response_body(kind: str) -> bytes:
    """An ExportLogsServiceResponse: everything was taken."""
    response = ExportLogsServiceResponse()
    return json_format.MessageToJson(response).encode() if kind == JSON else response.SerializeToString()


def origin_of(told: Mapping[str, str], cluster: str) -> Origin:
    """Who writes: the pod of the resource, else its service, else the cluster."""
    told = {name: value.replace("/", "-")[:_MOST_NAME] for name, value in told.items()}  # a slash parts keys
    home = told.get("k8s.cluster.name") or cluster
    namespace, pod = told.get("k8s.namespace.name", ""), told.get("k8s.pod.name", "")
    service = told.get("service.name", "")
    if namespace and pod:
        entity = EntityRef(home, EntityKind.POD, namespace, pod)
    elif service and not service.startswith("unknown_service"):
        space = namespace or told.get("service.namespace", "")
        entity = EntityRef(home, EntityKind.SERVICE, space or None, service)
    elif told.get("k8s.node.name"):
        entity = EntityRef(home, EntityKind.NODE, None, told["k8s.node.name"])
    else:
        entity = EntityRef(home, EntityKind.CLUSTER, None, home)
    return Origin(entity, told.get("k8s.pod.uid") or entity.key, told.get("k8s.container.name", ""))


def _lines(request: ExportLogsServiceRequest, cluster: str) -> Iterator[LogLine]:
    for resource in request.resource_logs:
        told = _texts(resource.resource.attributes)
        for scope in resource.scope_logs:
            for record in scope.log_records:
                origin = origin_of({**told, **_pod_of(record.attributes)}, cluster)
                when = _instant(record.time_unix_nano) or _instant(record.observed_time_unix_nano)
                for line in _body_text(record.body).splitlines():
                    if line.strip():
                        yield LogLine(origin, when, line)


def _body_text(body: Any) -> str:
    """The text of a record's body."""
    which = body.WhichOneof("value")
    if which == "string_value":
        return str(body.string_value)
    if which == "kvlist_value":
        fields = _texts(body.kvlist_value.values)
        return next((fields[name] for name in _TEXTS if fields.get(name)), "")
    return ""


def _pod_of(attributes: Any) -> dict[str, str]:
    """Collectors that read files of many pods tell the pod of each record."""
    return {name: value for name, value in _texts(attributes).items() if name.startswith("k8s.")}


def _texts(attributes: Any) -> dict[str, str]:
    return {one.key: one.value.string_value for one in attributes if one.value.WhichOneof("value") == "string_value"}


def _instant(nanoseconds: int) -> datetime | None:
    if not 0 < nanoseconds < 4_102_444_800_000_000_000:  # the year 2100
        return None
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
