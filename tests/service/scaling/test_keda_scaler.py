"""External scaler of KEDA: a real gRPC client against the real server."""

from __future__ import annotations

import pytest

from service.scaling.keda_scaler import MESSAGES, METRIC, SERVICE, KedaScaler

grpc = pytest.importorskip("grpc", reason="missing: grpcio is not installed")


@pytest.fixture
def scaler():
    numbers = {("prod", "chat"): 5}
    server = KedaScaler(lambda namespace, name: numbers.get((namespace, name)), "127.0.0.1", 0, poll_seconds=0.02)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield channel, numbers
    server.stop()


def _call(channel, method, request, answer):
    call = channel.unary_unary(
        f"/{SERVICE}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=MESSAGES[answer].FromString,
    )
    return call(request, timeout=5)


def _ref(**metadata):
    return MESSAGES["ScaledObjectRef"](name="chat", namespace="prod", scalerMetadata=metadata)


def test_the_wire_format_is_keda_s():
    # externalscaler.proto: name = 1, namespace = 2, map<string, string> scalerMetadata = 3
    assert _ref(a="b").SerializeToString() == b"\x0a\x04chat\x12\x04prod\x1a\x06\x0a\x01a\x12\x01b"
    assert MESSAGES["MetricValue"](metricName="m", metricValue=3).SerializeToString() == b"\x0a\x01m\x10\x03"


def test_the_planned_replicas_are_returned(scaler):
    channel, _ = scaler
    (spec,) = _call(channel, "GetMetricSpec", _ref(), "GetMetricSpecResponse").metricSpecs
    assert (spec.metricName, spec.targetSize) == (METRIC, 1)
    request = MESSAGES["GetMetricsRequest"](scaledObjectRef=_ref(), metricName=METRIC)
    (value,) = _call(channel, "GetMetrics", request, "GetMetricsResponse").metricValues
    assert (value.metricValue, value.metricValueFloat) == (5, 5.0)
    assert _call(channel, "IsActive", _ref(), "IsActiveResponse").result is True
    named = MESSAGES["ScaledObjectRef"](
        name="other", namespace="x", scalerMetadata={"service": "chat", "namespace": "prod"}
    )
    assert _call(channel, "IsActive", named, "IsActiveResponse").result is True


def test_a_change_is_pushed(scaler):
    channel, numbers = scaler
    follow = channel.unary_stream(
        f"/{SERVICE}/StreamIsActive",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=MESSAGES["IsActiveResponse"].FromString,
    )
    stream = follow(_ref(), timeout=10)
    assert next(stream).result is True
    numbers["prod", "chat"] = 0
    assert next(stream).result is False
    stream.cancel()


def test_without_a_fresh_plan_the_scaler_is_unavailable(scaler):
    channel, numbers = scaler
    numbers.clear()
    with pytest.raises(grpc.RpcError) as refused:
        _call(channel, "IsActive", _ref(), "IsActiveResponse")
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
