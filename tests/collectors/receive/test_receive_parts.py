"""Unit tests of the parts behind the ingest endpoints."""

import math
import re
import struct
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from senders import STALE

from collectors.receive import block, kpi, otlp_metrics, remote_write
from collectors.receive.assembler import LayoutCache, SeriesBuffer
from collectors.receive.histogram import ExponentialHistogram, buckets, cumulative_counts, dense, ladders, le
from collectors.receive.otlp_names import label_name, labels, metric_name
from collectors.receive.protocol import (
    DecodedRequest,
    DropReason,
    IngestProtocol,
    ReceiveError,
    RejectionReason,
    Source,
    Stream,
    unpack,
)
from collectors.receive.routing import AdapterRouter, ReceiveRule, RoutedSeries
from collectors.receive.targets import target_of
from outrider.model import EntityKind
from outrider.vocabulary import catalog
from outrider.wire.remote_write import WriteRequest

AT = datetime(2026, 11, 21, tzinfo=UTC)
SOURCE = Source("vllm", "a:1")
SETTLE = timedelta(seconds=5)


# --- histograms -----------------------------------------------------------------------------------


@given(
    st.integers(-4, 8),
    st.integers(-60, 60),
    st.lists(st.integers(0, 1000), max_size=80),
    st.integers(0, 50),
)
def test_an_exponential_histogram_keeps_all_values_in_order(scale, offset, counts, below):
    total = float(sum(counts) + below)
    lines = buckets(
        ExponentialHistogram(scale, offset, tuple(map(float, counts)), float(below), total, 0.0), (0.1, 0.5, 1.0, 10.0)
    )
    values = [value for _, value in lines]
    assert values == sorted(values)
    assert values[0] >= below
    assert values[-1] == total
    assert values[-2] <= total + 1e-9


@given(st.lists(st.floats(0.002, 500.0), min_size=1, max_size=200), st.integers(0, 6))
def test_counts_at_a_bound_differ_by_one_bucket_at_most(values, scale):
    places = np.ceil(np.log2(values) * 2**scale).astype(int) - 1
    first = int(places.min())
    counts = np.bincount(places - first)
    histogram = ExponentialHistogram(scale, first, tuple(map(float, counts)), 0.0, float(len(values)), 0.0)
    for bound, result in zip(
        (0.01, 0.3, 1.0, 7.0, 100.0), cumulative_counts(histogram, (0.01, 0.3, 1.0, 7.0, 100.0)), strict=True
    ):
        width = 2.0 ** (1 / 2**scale)
        assert sum(value <= bound / width for value in values) - 1e-6 <= result
        assert result <= sum(value <= bound * width for value in values) + 1e-6


def test_spans_are_merged_and_invalid_ones_rejected():
    assert dense([(2, 2), (1, 1)], [5.0, 6.0, 7.0]) == (2, [5.0, 6.0, 0.0, 7.0])
    assert dense([], []) == (0, [])
    for spans, counts in (([(0, 2)], [1.0]), ([(0, 1), (-1, 1)], [1.0, 2.0]), ([(0, 1 << 30)], [1.0])):
        with pytest.raises(ValueError, match="histogram"):
            dense(spans, counts)


def test_bounds_survive_a_round_trip():
    for signal in catalog.signals().values():
        assert [float(le(bound)) for bound in signal.bounds] == list(signal.bounds)
    assert le(math.inf) == "+Inf"
    assert ladders()["vllm:time_to_first_token_seconds"] == catalog.signal("engine_ttft_seconds").bounds


def native(name, **parts):
    request = WriteRequest()
    one = request.timeseries.add()
    for label, value in {"__name__": name, "job": "vllm", "instance": "a:1"}.items():
        one.labels.add(name=label, value=value)
    one.histograms.add(timestamp=1000, **parts)
    return remote_write.decode(request.SerializeToString(), 1)


def test_native_histograms_are_read_for_known_metrics():
    parts = {
        "count_int": 10, "sum": 9.0, "schema": 0, "zero_count_int": 1, "positive_spans": [{"offset": 0, "length": 2}],
        "positive_deltas": [4, 1],
    }  # fmt: skip
    result = native("vllm:time_to_first_token_seconds", **parts)
    lines = {(one.name.rpartition("_")[2], one.labels.get("le")): one.values[0] for one in result.streams}
    assert lines["bucket", "0.5"] == 1  # bucket 0 of a native histogram is (.5, 1]
    assert lines["bucket", "1"] == 5
    assert lines["bucket", "2.5"] == 10
    assert lines["bucket", "+Inf"] == lines["count", None] == 10
    assert lines["sum", None] == 9
    unknown = native("db_seconds", **parts)
    assert not unknown.streams
    assert unknown.left_out == {DropReason.UNSUPPORTED: 1}


def test_custom_buckets_are_classic_ones():
    result = native(
        "vllm:time_to_first_token_seconds", count_float=6.0, schema=-53, custom_values=[0.1, 0.5],
        positive_spans=[{"offset": 0, "length": 3}], positive_counts=[1.0, 2.0, 3.0],
    )  # fmt: skip
    lines = {one.labels["le"]: one.values[0] for one in result.streams if "le" in one.labels}
    assert lines == {"0.1": 1.0, "0.5": 3.0, "+Inf": 6.0}


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "unit", "monotonic", "gauge", "spelled"),
    [
        ("http.server.request.duration", "s", False, False, "http_server_request_duration_seconds"),
        ("system.memory.usage", "By", False, True, "system_memory_usage_bytes"),
        ("system.network.io", "By/s", False, True, "system_network_io_bytes_per_second"),
        ("vllm:request_success_total", "", True, False, "vllm:request_success_total"),
        ("vllm:iteration_tokens_total", "", False, False, "vllm:iteration_tokens_total"),
        ("requests", "{request}", True, False, "requests_total"),
        ("system.cpu.utilization", "1", False, True, "system_cpu_utilization_ratio"),
        ("process.total.time", "s", True, False, "process_time_seconds_total"),
        ("2nd", "", False, True, "_2nd"),
    ],
)
def test_metrics_have_prometheus_names(name, unit, monotonic, gauge, spelled):
    assert metric_name(name, unit, monotonic_sum=monotonic, gauge=gauge) == spelled


def test_labels_have_prometheus_names():
    assert [label_name(one) for one in ("k8s.pod.name", "0day", "_x", "__x", "ok")] == [
        "k8s_pod_name", "key_0day", "key_x", "__x", "ok",
    ]  # fmt: skip
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

    listed = [
        KeyValue(key="a.b", value=AnyValue(string_value="two")),
        KeyValue(key="a_b", value=AnyValue(string_value="one")),
        KeyValue(key="n", value=AnyValue(int_value=3)),
        KeyValue(key="t", value=AnyValue(bool_value=True)),
        KeyValue(key="l", value=AnyValue(array_value=ArrayValue(values=[AnyValue(string_value="x")]))),
        KeyValue(key="gone", value=AnyValue()),
    ]
    assert labels(listed) == {"a_b": "two;one", "n": "3", "t": "true", "l": '["x"]'}


def test_a_resource_without_a_service_is_still_one_target():
    body = (
        b'{"resourceMetrics":[{"resource":{"attributes":[{"key":"cloud.zone","value":{"stringValue":"%s"}}]},'
        b'"scopeMetrics":[{"metrics":[{"name":"x","gauge":{"dataPoints":[{"asInt":"1"}]}}]}]}]}'
    )
    one, other = (otlp_metrics.decode(body % zone, otlp_metrics.JSON).streams[0].source for zone in (b"a", b"b"))
    assert one != other
    assert one.instance


# --- blocks, bodies -------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.floats()), min_size=1, max_size=20), st.booleans())
def test_a_block_is_bit_exact(samples, delta):
    stamps, values = zip(*samples, strict=True)
    stream = Stream(Source("j", "ü", "/m"), "n", {"a": "b\n\"'"}, stamps, (*values[:-1], STALE), delta)
    (assigned,) = [RoutedSeries(stream, "vllm", 3)]
    (group,) = block.decode(block.encode([assigned], {stream.source: {"x": "y"}}))
    assert (group.source, group.adapter, group.rule, group.about) == (stream.source, "vllm", 3, {"x": "y"})
    (back,) = group.streams
    assert (back.name, back.labels, back.stamps, back.delta) == (stream.name, stream.labels, stream.stamps, delta)
    pack = struct.Struct(f"<{len(values)}d").pack
    assert pack(*back.values) == pack(*stream.values)


@pytest.mark.parametrize("payload", [b"", b"nonsense", block.zstandard.compress(b"\x09\0\0\0\0\0\0\0")])
def test_an_invalid_block_is_reported(payload):
    with pytest.raises(ValueError, match="block"):
        block.decode(payload)
    with pytest.raises(ValueError, match="block of KPIs"):
        kpi.decode(b'[{"color": "red"}]')


def test_a_decompression_bomb_is_rejected():
    import gzip

    import zstandard

    bomb = b"\0" * 50_000_000
    for name, packed in (("gzip", gzip.compress(bomb)), ("zstd", zstandard.compress(bomb))):
        assert len(packed) < 100_000
        with pytest.raises(ReceiveError) as caught:
            unpack(packed, name, 1_000_000)
        assert caught.value.reason is RejectionReason.TOO_LARGE
    assert unpack(gzip.compress(b"a") + gzip.compress(b"b"), "gzip", 100) == b"ab"


# --- pages ----------------------------------------------------------------------------------------


def test_a_page_without_up_has_the_newest_sample_of_each_series():
    buffer, layouts = SeriesBuffer(100), LayoutCache()
    slow = Stream(SOURCE, "slow", {}, (1_000,), (1.0,))
    buffer.add([slow, Stream(SOURCE, "fast", {}, (1_000, 16_000), (1.0, 2.0))], {}, AT)
    assert not buffer.due(AT + timedelta(seconds=4), SETTLE)
    assert buffer.due(AT + SETTLE, SETTLE)
    pushed = buffer.take(layouts)
    rows = {
        one.name: (value, stamp)
        for one, value, stamp in zip(pushed.page.series, pushed.page.values, pushed.page.timestamps, strict=True)
    }
    assert pushed.at_ms == 16_000
    assert rows["slow"] == (1.0, 1.0)
    assert rows["fast"][0] == 2.0
    assert not buffer.due(AT + timedelta(hours=1), SETTLE)


def test_a_target_without_pauses_is_delivered():
    buffer = SeriesBuffer(100)
    for second in range(0, 24, 3):
        buffer.add([Stream(SOURCE, "x", {}, (second * 1000 + 1,), (1.0,))], {}, AT + timedelta(seconds=second))
    assert buffer.due(AT + timedelta(seconds=21), SETTLE)


def test_layouts_are_shared_by_similar_targets():
    layouts, pages = LayoutCache(), []
    for instance in ("a:1", "b:1"):
        buffer, source = SeriesBuffer(100), Source("vllm", instance)
        about = {"job": "vllm", "instance": instance}
        streams = [Stream(source, name, {**about, "engine": "0"}, (1_000,), (1.0,)) for name in ("x", "y")]
        buffer.add([Stream(source, "up", about, (1_000,), (1.0,)), *streams], about, AT)
        pages.append(buffer.take(layouts).page)
    assert pages[0].layout is pages[1].layout
    assert [dict(one.labels) for one in pages[0].series] == [{"engine": "0"}] * 2


def test_a_sample_of_a_delivered_page_is_counted_as_late():
    buffer = SeriesBuffer(100)
    buffer.add([Stream(SOURCE, "x", {}, (2_000,), (1.0,))], {}, AT)
    buffer.take(LayoutCache())
    assert buffer.add([Stream(SOURCE, "y", {}, (1_000,), (1.0,))], {}, AT) == {DropReason.LATE: 1}
    assert buffer.add([Stream(SOURCE, "x", {}, (1_500, 2_000), (1.0, 1.0))], {}, AT) == {DropReason.LATE: 1}


def test_series_and_memory_stay_bounded():
    buffer, layouts = SeriesBuffer(10), LayoutCache(most=50)
    for number in range(200):
        stamp = (number + 1) * 400_000  # every series of before is too old by now
        buffer.add([Stream(SOURCE, f"x{number}", {}, tuple(range(stamp, stamp + 500)), (1.0,) * 500)], {}, AT)
        layouts.tidy()
        assert buffer.take(layouts).page.samples == 1
    assert buffer.series <= 2
    assert len(layouts._series) <= 52


# --- matching and targets -------------------------------------------------------------------------


def test_remembered_sources_are_bounded():
    matcher = AdapterRouter(most_sources=3)
    for number in range(10):
        decoded = DecodedRequest(
            IngestProtocol.REMOTE_WRITE, [Stream(Source("j", str(number)), "DCGM_FI_DEV_GPU_TEMP", {}, (1,), (1.0,))]
        )
        assert [one.adapter for one in matcher.assign(decoded)] == ["dcgm"]
    assert len(matcher._known) == 3


def test_one_source_can_be_two_targets():
    decoded = DecodedRequest(
        IngestProtocol.REMOTE_WRITE,
        [Stream(SOURCE, name, {}, (1,), (1.0,)) for name in ("node_cpu_seconds_total", "DCGM_FI_DEV_GPU_TEMP", "up")],
    )
    result = AdapterRouter().assign(decoded)
    assert {(one.stream.name, one.adapter) for one in result} >= {
        ("node_cpu_seconds_total", "node_exporter"),
        ("DCGM_FI_DEV_GPU_TEMP", "dcgm"),
        ("up", "dcgm"),
        ("up", "node_exporter"),
    }


@pytest.mark.parametrize(
    ("adapter", "about", "kind", "namespace", "name"),
    [
        ("vllm", {"pod": "p-0", "namespace": "s"}, EntityKind.REPLICA, "s", "p-0"),
        ("vllm", {}, EntityKind.REPLICA, "default", "a:1"),
        ("node_exporter", {"node": "n-1"}, EntityKind.NODE, None, "n-1"),
        ("node_exporter", {}, EntityKind.NODE, None, "a"),
        ("kube_state_metrics", {}, EntityKind.CLUSTER, None, "c"),
        ("sdk", {"service_name": "chat", "k8s_namespace_name": "s"}, EntityKind.SERVICE, "s", "chat"),
        ("sdk", {}, EntityKind.SERVICE, None, "vllm"),
    ],
)
def test_a_target_is_identified_by_its_labels(adapter, about, kind, namespace, name):
    entity = target_of("c", SOURCE, adapter, about).entity
    assert (entity.kind, entity.namespace, entity.name) == (kind, namespace, name)


def test_a_rule_fills_the_labels_of_its_target():
    rule = ReceiveRule({"job": re.compile("v.*")}, "vllm", None, {"service": "{app}", "node": "{gone}", "model": "m"})
    target = target_of("c", SOURCE, "vllm", {"app": "chat"}, rule)
    assert target.labels == {"service": "chat", "model": "m"}
    assert target.service.name == "chat"
