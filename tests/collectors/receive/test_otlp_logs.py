"""OTLP logs of the official exporter, and invalid exports."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from collectors.receive import otlp_logs
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
POD = {"k8s.namespace.name": "serving", "k8s.pod.name": "chat-0", "k8s.pod.uid": "u1", "k8s.container.name": "vllm"}


def export(bodies: Sequence[Any], about: dict[str, str] | None = None, **record: Any) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    for name, value in (POD if about is None else about).items():
        resource.resource.attributes.add(key=name).value.string_value = value
    scope = resource.scope_logs.add()
    for body in bodies:
        made = scope.log_records.add(**{"time_unix_nano": int(AT.timestamp()) * 10**9, **record})
        if isinstance(body, dict):
            for name, value in body.items():
                made.body.kvlist_value.values.add(key=name).value.string_value = value
        else:
            made.body.string_value = body
    return request


def test_json_and_protobuf_give_equal_records() -> None:
    request = export(["one\ntwo", {"message": "three", "level": "error"}])
    for body, kind in (
        (request.SerializeToString(), otlp_logs.PROTOBUF),
        (json_format.MessageToJson(request).encode(), otlp_logs.JSON),
    ):
        lines = otlp_logs.decode(body, kind, "c")
        assert [one.text for one in lines] == ["one", "two", "three"]
        assert {one.at for one in lines} == {AT}
        assert lines[0].origin.entity == EntityRef("c", EntityKind.POD, "serving", "chat-0")
        assert (lines[0].origin.uid, lines[0].origin.container) == ("u1", "vllm")


def test_the_log_source_comes_from_resource_or_record() -> None:
    kinds = []
    for about in (
        {"service.name": "chat", "service.namespace": "serving"},
        {"k8s.node.name": "n1"},
        {"service.name": "unknown_service:python"},
        {"k8s.namespace.name": "a/b", "k8s.pod.name": "p", "k8s.cluster.name": "x/y"},
    ):
        (line,) = otlp_logs.decode(export(["x"], about).SerializeToString(), otlp_logs.PROTOBUF, "c")
        kinds.append(str(line.origin.entity))
        assert EntityRef.from_key(line.origin.entity.key) == line.origin.entity
    assert kinds == ["service/serving/chat", "node/n1", "cluster/c", "pod/a-b/p"]


def test_a_missing_or_invalid_time_is_none() -> None:
    for record in ({"time_unix_nano": 0}, {"time_unix_nano": 2**63}):
        (line,) = otlp_logs.decode(export(["x"], **record).SerializeToString(), otlp_logs.PROTOBUF, "c")
        assert line.at is None


def test_an_invalid_export_is_rejected_with_a_message() -> None:
    for body, kind in ((b"\xff\xff\xff", otlp_logs.PROTOBUF), (b"{", otlp_logs.JSON), (b"\xff", otlp_logs.JSON)):
        with pytest.raises(UsageError, match="not an OTLP logs export"):
            otlp_logs.decode(body, kind, "c")
    assert otlp_logs.response_body(otlp_logs.JSON) == b"{}"
    assert otlp_logs.response_body(otlp_logs.PROTOBUF) == b""


@given(st.binary())
def test_arbitrary_bytes_do_not_break_the_decoder(body: bytes) -> None:
    for kind in (otlp_logs.PROTOBUF, otlp_logs.JSON):
        with contextlib.suppress(UsageError):
            assert isinstance(otlp_logs.decode(body, kind, "c"), list)
