"""OTLP metrics over HTTP, protobuf and JSON, decoded to the series of an equivalent Prometheus. Pure.

A resource is a target: ``service.namespace/service.name`` is its job, ``service.instance.id`` its instance; its
other attributes are facts. Gauges, sums and histograms of both temporalities are read; deltas are marked and added
up later. Exponential histograms become classic ones on the ladder of their signal (``histogram``). Summaries are
dropped: they have no increases that could be merged.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags

from collectors.receive.histogram import MOST_BUCKETS, ExponentialHistogram, buckets, ladders, le
from collectors.receive.otlp_names import labels, metric_name
from collectors.receive.protocol import (
    STALE_NAN_BITS,
    DecodedRequest,
    DropReason,
    IngestProtocol,
    ReceiveError,
    RejectionReason,
    Source,
    Stream,
    malformed,
)

PROTOBUF, JSON = "application/x-protobuf", "application/json"
STALE = struct.unpack("<d", struct.pack("<Q", STALE_NAN_BITS))[0]
_INSTANCES = ("service.instance.id", "k8s.pod.uid", "k8s.pod.name", "container.id", "host.id", "host.name")
_NANOSECONDS_A_MILLISECOND = 1_000_000
_SCALES = range(-11, 21)
_Line = tuple[str, Mapping[str, str], float, bool]  # name, labels beyond the point's own, value, is a delta


def media_type(content_type: str) -> str:
    """Media type of a request, also used for its response. Raises ReceiveError."""
    kind = content_type.split(";", maxsplit=1)[0].strip().lower()
    if kind not in {PROTOBUF, JSON}:
        raise ReceiveError(
            f"the Content-Type {content_type!r} is neither {PROTOBUF} nor {JSON}",
            reason=RejectionReason.UNSUPPORTED,
            hint="this endpoint accepts OTLP/HTTP metrics; gRPC is not supported",
        )
    return kind


def decode(body: bytes, kind: str) -> DecodedRequest:
    """Series of one export. Raises ReceiveError for an invalid body."""
    request = ExportMetricsServiceRequest()
    decoded = DecodedRequest(IngestProtocol.OTLP)
    try:
        if kind == JSON:
            json_format.Parse(body.decode("utf-8"), request, ignore_unknown_fields=True, max_recursion_depth=32)
        else:
            request.ParseFromString(body)
        for resource in request.resource_metrics:
            source, about = _resource(resource.resource)
            decoded.about.setdefault(source, {}).update(about)
            for scope in resource.scope_metrics:
                _add_scope(decoded, source, scope)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise malformed(f"OTLP metrics export in {kind}", error) from error
    return decoded


def response_body(kind: str, rejected: int, message: str) -> bytes:
    """An ExportMetricsServiceResponse; ``partial_success`` only if samples were rejected."""
    response = ExportMetricsServiceResponse()
    if rejected or message:
        response.partial_success.rejected_data_points = rejected
        response.partial_success.error_message = message
    return json_format.MessageToJson(response).encode() if kind == JSON else response.SerializeToString()


def _resource(resource: Any) -> tuple[Source, dict[str, str]]:
    about = labels(resource.attributes)
    plain = {
        attribute.key: attribute.value.string_value
        for attribute in resource.attributes
        if attribute.value.HasField("string_value")
    }
    name, space = plain.get("service.name", ""), plain.get("service.namespace", "")
    job = f"{space}/{name}" if space and name else name
    instance = next((plain[key] for key in _INSTANCES if plain.get(key)), "")
    if not job and not instance and about:  # still one target, identified by all of its attributes
        instance = hashlib.sha256(repr(sorted(about.items())).encode()).hexdigest()[:12]
    return Source(job, instance), about


def _add_scope(decoded: DecodedRequest, source: Source, scope: Any) -> None:
    common = {"otel_scope_name": scope.scope.name, "otel_scope_version": scope.scope.version}
    common = {name: value for name, value in common.items() if value}
    for metric in scope.metrics:
        kind = metric.WhichOneof("data")
        if kind is None:
            continue
        content = getattr(metric, kind)
        points = content.data_points
        decoded.samples += len(points)
        if not metric.name:
            decoded.leave_out(DropReason.UNNAMED, "", len(points))
            continue
        name = _name(metric, kind, content)
        if kind == "summary" or (kind == "exponential_histogram" and name not in ladders()):
            decoded.leave_out(DropReason.UNSUPPORTED, name, len(points))
            continue
        adds_up = kind != "gauge" and _is_delta(content)
        for point in points:
            _add_point(decoded, source, common, point, list(_lines(name, kind, point, adds_up=adds_up)))


def _name(metric: Any, kind: str, content: Any) -> str:
    monotonic = kind == "sum" and content.is_monotonic
    return metric_name(metric.name, metric.unit, monotonic_sum=monotonic, gauge=kind == "gauge")


def _is_delta(content: Any) -> bool:
    return bool(content.aggregation_temporality == AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA)


def _add_point(
    decoded: DecodedRequest, source: Source, common: Mapping[str, str], point: Any, lines: list[_Line]
) -> None:
    at = point.time_unix_nano // _NANOSECONDS_A_MILLISECOND
    ended = bool(point.flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK)
    own = {**common, **labels(point.attributes)}
    for name, extra, value, adds_up in lines:
        # The end of a series is not an amount: it is passed on unchanged for any temporality.
        sample, delta = (STALE, False) if ended else (value, adds_up)
        decoded.streams.append(Stream(source, name, {**own, **extra}, (at,), (sample,), delta))


def _lines(name: str, kind: str, point: Any, *, adds_up: bool) -> Iterator[_Line]:
    if kind in {"gauge", "sum"}:
        which = point.WhichOneof("value")
        yield name, {}, float(getattr(point, which)) if which else 0.0, adds_up
        return
    if kind == "histogram":
        bounds, counts = point.explicit_bounds, point.bucket_counts
        if counts and len(counts) != len(bounds) + 1:
            raise ValueError(f"{name} has {len(counts)} buckets for {len(bounds)} bounds")
        summed = list(accumulate(counts))
        counted = [(le(bound), float(count)) for bound, count in zip(bounds, summed, strict=False)]
        counted.append(("+Inf", float(point.count)))
    else:
        counted = buckets(_exponential(name, point), ladders()[name])
    for bound, count in counted:
        yield f"{name}_bucket", {"le": bound}, count, adds_up
    yield f"{name}_sum", {}, float(point.sum), adds_up
    yield f"{name}_count", {}, float(point.count), adds_up


def _exponential(name: str, point: Any) -> ExponentialHistogram:
    positive = point.positive
    if len(positive.bucket_counts) > MOST_BUCKETS or point.scale not in _SCALES:
        raise ValueError(f"{name} has a histogram of scale {point.scale} with {len(positive.bucket_counts)} buckets")
    below = float(point.zero_count + sum(point.negative.bucket_counts))
    return ExponentialHistogram(
        scale=point.scale,
        offset=positive.offset,
        counts=tuple(map(float, positive.bucket_counts)),
        below=below,
        total=float(point.count),
        sum=float(point.sum),
    )
