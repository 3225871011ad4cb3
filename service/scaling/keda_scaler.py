"""KEDA external-push scaler over gRPC: pushes the planned replicas as soon as they change.

The messages follow KEDA's ``externalscaler.proto`` (package ``externalscaler``), described field by field
without generated code. The server needs ``grpcio`` (extra ``grpc``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from outrider.errors import UnavailableError
from outrider.text import install_hints

SERVICE = "externalscaler.ExternalScaler"
METRIC = "outrider-plan-replicas"
POLL_SECONDS = 5.0
_WORKERS = 16  # one per streaming ScaledObject
_TEXT, _WHOLE, _REAL, _BOOL, _MESSAGE = 9, 3, 1, 8, 11
DesiredReplicas = Callable[[str, str], int | None]
"""(namespace, service) -> desired replicas, None without a fresh plan."""


def _messages() -> dict[str, Any]:
    """Returns the message classes by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="outrider/externalscaler.proto", package="externalscaler", syntax="proto3"
    )

    def add(name: str, *fields: tuple[str, int, int, str, bool]) -> Any:
        message = file.message_type.add(name=name)
        for field, number, kind, of, repeated in fields:
            label: Any = 3 if repeated else 1
            added = message.field.add(name=field, number=number, type=kind, label=label)
            if of:
                added.type_name = f".externalscaler.{of}"
        return message

    ref = add(
        "ScaledObjectRef",
        ("name", 1, _TEXT, "", False),
        ("namespace", 2, _TEXT, "", False),
        ("scalerMetadata", 3, _MESSAGE, "ScaledObjectRef.ScalerMetadataEntry", True),
    )
    entry = ref.nested_type.add(name="ScalerMetadataEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_TEXT, label=1)
    entry.field.add(name="value", number=2, type=_TEXT, label=1)
    add("IsActiveResponse", ("result", 1, _BOOL, "", False))
    add(
        "MetricSpec",
        ("metricName", 1, _TEXT, "", False),
        ("targetSize", 2, _WHOLE, "", False),
        ("targetSizeFloat", 3, _REAL, "", False),
    )
    add("GetMetricSpecResponse", ("metricSpecs", 1, _MESSAGE, "MetricSpec", True))
    add(
        "GetMetricsRequest",
        ("scaledObjectRef", 1, _MESSAGE, "ScaledObjectRef", False),
        ("metricName", 2, _TEXT, "", False),
    )
    add(
        "MetricValue",
        ("metricName", 1, _TEXT, "", False),
        ("metricValue", 2, _WHOLE, "", False),
        ("metricValueFloat", 3, _REAL, "", False),
    )
    add("GetMetricsResponse", ("metricValues", 1, _MESSAGE, "MetricValue", True))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"externalscaler.{message.name}"))
        for message in file.message_type
    }


MESSAGES = _messages()


class KedaScaler:
    """A gRPC server on ``port``; call ``stop`` at the end."""

    def __init__(self, desired: DesiredReplicas, host: str, port: int, *, poll_seconds: float = POLL_SECONDS) -> None:
        """Starts listening. Raises UnavailableError without grpcio, or if the port is in use."""
        try:
            grpc = import_module("grpc")  # an extra
        except ImportError as error:
            hint = f"{install_hints.how('grpc')}; or remove planner.scaling.external_scaler_port"
            raise UnavailableError("the external scaler needs grpcio", hint=hint) from error
        self._grpc, self._desired, self._poll_seconds = grpc, desired, poll_seconds
        self._stopped = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(_WORKERS, thread_name_prefix="keda"))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            self.port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise UnavailableError(
                f"the external scaler cannot listen on {host}:{port}", hint="is the port in use?"
            ) from error
        self._server.start()

    def stop(self) -> None:
        """Ends every stream and stops listening."""
        self._stopped.set()
        self._server.stop(grace=1.0).wait()

    def _handlers(self) -> Any:
        grpc = self._grpc

        def unary(act: Callable[[Any, Any], Any], request: str) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                act, request_deserializer=MESSAGES[request].FromString, response_serializer=_bytes
            )

        stream = grpc.unary_stream_rpc_method_handler(
            self._stream, request_deserializer=MESSAGES["ScaledObjectRef"].FromString, response_serializer=_bytes
        )
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "IsActive": unary(self._is_active, "ScaledObjectRef"),
                "StreamIsActive": stream,
                "GetMetricSpec": unary(self._spec, "ScaledObjectRef"),
                "GetMetrics": unary(self._metrics, "GetMetricsRequest"),
            },
        )

    def _replicas(self, ref: Any) -> int | None:
        """Returns the replicas of the service in the trigger's metadata, else of that with the object's name."""
        metadata = dict(ref.scalerMetadata)
        return self._desired(metadata.get("namespace") or ref.namespace, metadata.get("service") or ref.name)

    def _is_active(self, ref: Any, context: Any) -> Any:
        replicas = self._replicas(ref)
        if (
            replicas is None
        ):  # on an error KEDA keeps the replicas or uses its fallback; without a plan it must not scale to zero
            context.abort(self._grpc.StatusCode.UNAVAILABLE, "there is no fresh plan")
        return MESSAGES["IsActiveResponse"](result=bool(replicas))

    def _stream(self, ref: Any, context: Any) -> Iterator[Any]:
        """Streams the active state, at once and after each change of the replicas."""
        last: int | None = None
        while context.is_active() and not self._stopped.is_set():
            replicas = self._replicas(ref)
            if replicas is not None and replicas != last:
                last = replicas
                yield MESSAGES["IsActiveResponse"](result=replicas > 0)
            self._stopped.wait(self._poll_seconds)

    def _spec(self, _ref: Any, _context: Any) -> Any:
        # KEDA divides the value by the target: one replica each
        spec = MESSAGES["MetricSpec"](metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return MESSAGES["GetMetricSpecResponse"](metricSpecs=[spec])

    def _metrics(self, request: Any, context: Any) -> Any:
        replicas = self._replicas(request.scaledObjectRef)
        if replicas is None:
            context.abort(self._grpc.StatusCode.UNAVAILABLE, "there is no fresh plan")
            raise AssertionError
        value = MESSAGES["MetricValue"](metricName=METRIC, metricValue=replicas, metricValueFloat=float(replicas))
        return MESSAGES["GetMetricsResponse"](metricValues=[value])


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())
