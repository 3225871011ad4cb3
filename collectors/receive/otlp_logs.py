"""OTLP logs over HTTP, protobuf and JSON, decoded to lines with their pod. Pure.

https://opentelemetry.io/docs/specs/otlp/#otlphttp and the semantic conventions of Kubernetes resources. Only text
bodies are read, and ``message``, ``msg`` or ``log`` of structured ones.
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
    """One record: its writer, time (None if absent) and text."""

    origin: Origin
    at: datetime | None
    text: str


def decode(body: bytes, kind: str, cluster: str) -> list[LogLine]:
    """Lines of one export; ``kind`` is its media type. Raises UsageError for an invalid body."""
    request = ExportLogsServiceRequest()
    try:
        if kind == JSON:
            json_format.Parse(body.decode("utf-8"), request, ignore_unknown_fields=True, max_recursion_depth=32)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the body is not an OTLP logs export in {kind}",
            hint="send an ExportLogsServiceRequest of an OpenTelemetry exporter (otlphttp)",
        ) from error
    return list(_lines(request, cluster))


def response_body(kind: str) -> bytes:
    """An ExportLogsServiceResponse without rejections."""
    response = ExportLogsServiceResponse()
    return json_format.MessageToJson(response).encode() if kind == JSON else response.SerializeToString()


def origin_of(attributes: Mapping[str, str], cluster: str) -> Origin:
    """Writer: the pod of the resource, else its service, else the cluster."""
    attributes = {
        name: value.replace("/", "-")[:_MOST_NAME] for name, value in attributes.items()
    }  # a slash separates key parts
    cluster_name = attributes.get("k8s.cluster.name") or cluster
    namespace, pod = attributes.get("k8s.namespace.name", ""), attributes.get("k8s.pod.name", "")
    service = attributes.get("service.name", "")
    if namespace and pod:
        entity = EntityRef(cluster_name, EntityKind.POD, namespace, pod)
    elif service and not service.startswith("unknown_service"):
        namespace_or_service_namespace = namespace or attributes.get("service.namespace", "")
        entity = EntityRef(cluster_name, EntityKind.SERVICE, namespace_or_service_namespace or None, service)
    elif attributes.get("k8s.node.name"):
        entity = EntityRef(cluster_name, EntityKind.NODE, None, attributes["k8s.node.name"])
    else:
        entity = EntityRef(cluster_name, EntityKind.CLUSTER, None, cluster_name)
    return Origin(entity, attributes.get("k8s.pod.uid") or entity.key, attributes.get("k8s.container.name", ""))


def _lines(request: ExportLogsServiceRequest, cluster: str) -> Iterator[LogLine]:
    for resource in request.resource_logs:
        attributes = _texts(resource.resource.attributes)
        for scope in resource.scope_logs:
            for record in scope.log_records:
                origin = origin_of({**attributes, **_pod_of(record.attributes)}, cluster)
                when = _instant(record.time_unix_nano) or _instant(record.observed_time_unix_nano)
                for line in _body_text(record.body).splitlines():
                    if line.strip():
                        yield LogLine(origin, when, line)


def _body_text(body: Any) -> str:
    """Text of a record's body."""
    which = body.WhichOneof("value")
    if which == "string_value":
        return str(body.string_value)
    if which == "kvlist_value":
        fields = _texts(body.kvlist_value.values)
        return next((fields[name] for name in _TEXTS if fields.get(name)), "")
    return ""


def _pod_of(attributes: Any) -> dict[str, str]:
    """Pod of a record: collectors that read files of many pods set it per record."""
    return {name: value for name, value in _texts(attributes).items() if name.startswith("k8s.")}


def _texts(attributes: Any) -> dict[str, str]:
    return {
        attribute.key: attribute.value.string_value
        for attribute in attributes
        if attribute.value.WhichOneof("value") == "string_value"
    }


def _instant(nanoseconds: int) -> datetime | None:
    if not 0 < nanoseconds < 4_102_444_800_000_000_000:  # the year 2100
        return None
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
