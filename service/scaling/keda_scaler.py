"""KEDA's external-push scaler over gRPC: the plan's number, pushed as soon as it changes.

The messages are those of KEDA's ``externalscaler.proto`` (package ``externalscaler``), described here field by
field so that nothing is generated. ``grpcio`` comes with the extra ``grpc``; without it the server is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from outrider.errors import UnavailableError
from outrider.text import extras

SERVICE = "externalscaler.ExternalScaler"
METRIC = "outrider-plan-replicas"
LOOK_SECONDS = 5.0
_WORKERS = 16  # each ScaledObject holds one while it is followed
_TEXT, _WHOLE, _REAL, _BOOL, _MESSAGE = 9, 3, 1, 8, 11
Wanted = Callable[[str, str], int | None]
"""(namespace, service) -> replicas wanted now, None without a fresh plan."""


def _messages() -> dict[str, Any]:
    """Classes of the messages by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="outrider/externalscaler.proto", package="externalscaler", syntax="proto3"
    )

    def add(name: str, *fields: tuple[str, int, int, str, bool]) -> Any:
        made = file.message_type.add(name=name)
        for field, number, kind, of, repeated in fields:
            label: Any = 3 if repeated else 1
            one = made.field.add(name=field, number=number, type=kind, label=label)
            if of:
                one.type_name = f".externalscaler.{of}"
        return made

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
        one.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"externalscaler.{one.name}"))
        for one in file.message_type
    }


MESSAGES = _messages()


class KedaScaler:
    """A gRPC server; ``stop`` it at the end. ``port`` is the one it listens on."""

    def __init__(self, wanted: Wanted, host: str, port: int, *, look_seconds: float = LOOK_SECONDS) -> None:
        """Listen. Raises UnavailableError without grpcio, or when the port is taken."""
        try:
            grpc = import_module("grpc")  # an extra that a site without KEDA does without
        except ImportError as error:
            hint = f"{extras.how('grpc')}; or remove planner.scaling.external_scaler_port"
            raise UnavailableError("the external scaler needs grpcio", hint=hint) from error
        self._grpc, self._wanted, self._look = grpc, wanted, look_seconds
        self._stopped = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(_WORKERS, thread_name_prefix="keda"))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        try:
            self.port = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise UnavailableError(
                f"the external scaler cannot listen on {host}:{port}", hint="is it taken?"
            ) from error
        self._server.start()

    def stop(self) -> None:
        """End every stream and stop listening."""
        self._stopped.set()
        self._server.stop(grace=1.0).wait()

    def _handlers(self) -> Any:
        grpc = self._grpc

        def unary(act: Callable[[Any, Any], Any], asked: str) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                act, request_deserializer=MESSAGES[asked].FromString, response_serializer=_bytes
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

    def _number(self, ref: Any) -> int | None:
        """Of the service that the trigger's metadata names, else of the one with the object's name."""
        told = dict(ref.scalerMetadata)
        return self._wanted(told.get("namespace") or ref.namespace, told.get("service") or ref.name)

    def _is_active(self, ref: Any, context: Any) -> Any:
        found = self._number(ref)
        if found is None:  # an error makes KEDA hold, or fall back as its object says: no number must not scale to zero
            context.abort(self._grpc.StatusCode.UNAVAILABLE, "there is no fresh plan")
        return MESSAGES["IsActiveResponse"](result=bool(found))

    def _stream(self, ref: Any, context: Any) -> Iterator[Any]:
        """Whether it is active, at once and whenever the number changes."""
        last: int | None = None
        while context.is_active() and not self._stopped.is_set():
            found = self._number(ref)
            if found is not None and found != last:
                last = found
                yield MESSAGES["IsActiveResponse"](result=found > 0)
            self._stopped.wait(self._look)

    def _spec(self, _ref: Any, _context: Any) -> Any:
        # KEDA divides the value by the target: one replica each
        spec = MESSAGES["MetricSpec"](metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return MESSAGES["GetMetricSpecResponse"](metricSpecs=[spec])

    def _metrics(self, asked: Any, context: Any) -> Any:
        found = self._number(asked.scaledObjectRef)
        if found is None:
            context.abort(self._grpc.StatusCode.UNAVAILABLE, "there is no fresh plan")
            raise AssertionError
        value = MESSAGES["MetricValue"](metricName=METRIC, metricValue=found, metricValueFloat=float(found))
        return MESSAGES["GetMetricsResponse"](metricValues=[value])


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())
