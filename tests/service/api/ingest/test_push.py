"""Pushed samples reach the store, or the sender gets the reason in one sentence."""

import asyncio
import gzip
import json
import re
import zlib
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import senders
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from senders import START, STEP, V2, PushWorld, ms, request_v2, series, snappy, vllm_page, write_request

from alerts.rules import files as rule_files
from collectors.receive.consumer import ReceiveLimits
from collectors.receive.kpi import KpiValues
from collectors.receive.routing import EntityTemplate, ReceiveRule
from detectors.rules.threshold import compile_rules
from outrider.errors import StoreError
from outrider.model import CellStatus, CycleRecord, EntityKind, EntityRef, SignalKey, TrustVerdict
from outrider.ports import CycleCommit
from outrider.topology import Topology
from outrider.wire.remote_write import Status
from service.api.routers import signals

PROTO = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
OTLP = {"Content-Type": "application/x-protobuf"}


def cell(collected, kind, signal, name=None):
    """(value, status, batch) of a signal in the last batch that has it."""
    for batch in reversed(collected.batches):
        if batch.kind is kind and SignalKey(signal) in batch.keys:
            for row, entity in enumerate(batch.entities):
                if name in {None, entity.name}:
                    column = batch.keys.index(SignalKey(signal))
                    return batch.values[row, column], batch.status[row, column], batch
    raise AssertionError(f"no {signal} of {name}")


# --- remote write ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_remote_write_samples_are_mapped_by_the_matching_adapter(version):
    world = PushWorld()
    labels = {"pod": "chat-0", "namespace": "serving", "node": "node-1", "service": "chat"}
    for number in range(3):
        at = START + number * STEP
        found = vllm_page(at, 1000.0 + 300 * number, **labels)
        if version == 1:
            answer = world.write(found)
        else:
            answer = world.post("/write", snappy(request_v2(found)), {**PROTO, "Content-Type": V2})
            assert answer.headers["X-Prometheus-Remote-Write-Samples-Written"] == "7"
            assert answer.headers["X-Prometheus-Remote-Write-Histograms-Written"] == "0"
            assert answer.headers["X-Prometheus-Remote-Write-Exemplars-Written"] == "0"
        assert answer.status_code == 204, answer.text
        collected = world.cycle()
    value, status, batch = cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")
    assert (value, status) == (300.0, CellStatus.PRESENT)
    assert batch.entities == (EntityRef("c", EntityKind.REPLICA, "serving", "chat-0"),)
    assert batch.scraped_at == START + 2 * STEP
    assert batch.interval_seconds == 15.0
    assert cell(collected, EntityKind.REPLICA, "target_scrape_seconds")[0] == 0.02
    assert cell(collected, EntityKind.REPLICA, "target_samples")[0] == 90.0
    assert cell(collected, EntityKind.SERVICE, "svc_generation_tokens_total", "chat")[0] == 300.0
    latest = world.metrics.latest(EntityKind.REPLICA, [SignalKey("engine_requests_running")])
    assert latest.values[0, 0, 0] == 2.0
    assert [one.adapter for one in world.collector.health] == ["vllm"]


def test_requests_of_one_scrape_are_assembled_into_one_page():
    world = PushWorld()
    first, second = vllm_page(START, 1000.0), vllm_page(START + STEP, 1300.0)
    world.write(first)
    world.cycle()
    world.write(second[:4])
    world.clock.advance(timedelta(seconds=4))
    world.write(second[4:])
    early = world.cycle(timedelta(seconds=1))  # the rest came a second ago: more may come
    assert {one.scraped_at for one in early.batches if one.kind is EntityKind.REPLICA} == {START}  # what held before
    collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")[0] == 300.0
    assert cell(collected, EntityKind.REPLICA, "engine_requests_waiting")[0] == 1.0


def test_a_page_that_is_read_between_two_rounds_counts_once_and_stays_in_the_buffer_until_it_is_written():
    world, sent_on = PushWorld(), []
    world.collector.on_early(sent_on.append)
    world.write(vllm_page(START, 1000.0))
    world.cycle()
    world.write(vllm_page(START + STEP, 1300.0))
    world.clock.advance(timedelta(seconds=6))
    asyncio.run(world.collector.read_pushed_early(world.clock.now()))
    asyncio.run(world.collector.read_pushed_early(world.clock.now()))
    (page,) = sent_on
    assert cell(page, EntityKind.REPLICA, "engine_generation_tokens_total")[0] == 300.0
    assert world.spool.waiting().blocks == 2, "a kill before the next round must not lose it"
    assert cell(world.cycle(), EntityKind.REPLICA, "engine_generation_tokens_total")[0] == 300.0
    held = cell(world.cycle(), EntityKind.REPLICA, "engine_generation_tokens_total")
    assert held[0] != 300.0, "the next round does not count it again"
    assert world.spool.waiting().blocks == 0


def test_a_backlog_becomes_one_page_with_all_of_its_increases():
    world = PushWorld()
    world.write(vllm_page(START, 1000.0))
    world.cycle()
    for number in range(1, 6):
        world.write(vllm_page(START + number * STEP, 1000.0 + 300 * number))
    value, _, batch = cell(world.cycle(), EntityKind.REPLICA, "engine_generation_tokens_total")
    assert (value, batch.interval_seconds) == (1500.0, 75.0)


def test_between_two_pages_gauges_hold_and_increases_count_once():
    world = PushWorld()
    tokens, running, ready = [], [], []
    for number in range(9):
        if number % 2 == 0:  # a sender that scrapes every 30 s, under cycles of 15 s
            world.write(vllm_page(START + number * STEP, 1000.0 + 300 * number, service="chat"))
        collected = world.cycle()
        tokens.append(cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")[0])
        value, status, batch = cell(collected, EntityKind.REPLICA, "engine_requests_running")
        running.append((value, status))
        ready.append(cell(collected, EntityKind.SERVICE, "svc_ready_backends")[0])
        assert batch.scraped_at == START + (number - number % 2) * STEP
    assert running == [(2.0, CellStatus.PRESENT)] * 9
    assert ready == [1.0] * 9
    assert np.nansum(tokens) == 4 * 600.0
    assert np.isnan(tokens).tolist() == [True, True] + [False, True] * 3 + [False]
    for _ in range(5):  # two of its intervals and the way
        held = world.cycle()
    assert not [one for one in held.batches if one.kind is EntityKind.REPLICA]


def test_a_request_that_is_repeated_counts_once():
    world = PushWorld()
    for number in range(2):
        at = START + number * STEP
        world.write(vllm_page(at, 1000.0 + 300 * number))
        world.write(vllm_page(at, 1000.0 + 300 * number))
        collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")[0] == 300.0
    assert world.spool.counted() == {}


def test_a_pair_of_prometheus_is_one_sender_of_each_series():
    world = PushWorld()
    for number in range(3):
        at = START + number * STEP
        world.write(vllm_page(at, 1000.0 + 300 * number, prometheus_replica="a"))
        world.write(vllm_page(at + timedelta(seconds=3), 1060.0 + 300 * number, prometheus_replica="b"))
        collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "engine_requests_running")[0] == 2.0
    assert cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")[0] == 300.0


def test_a_scrape_that_failed_at_the_sender_is_a_failed_scrape_here():
    world = PushWorld()
    world.write(vllm_page(START, 1000.0))
    world.cycle()
    gone = [(labels, [(ms(START + STEP), senders.STALE)]) for labels, _ in vllm_page(START, 0.0)[3:]]
    world.write([series("up", START + STEP, 0.0), *gone])
    collected = world.cycle()
    value, status, batch = cell(collected, EntityKind.REPLICA, "target_up")
    assert (value, status, batch.trust) == (0.0, CellStatus.PRESENT, TrustVerdict.FAILED)
    assert "scrape by its sender failed" in world.collector.health[0].error


def test_a_target_dropped_by_its_sender_is_removed_without_an_alert():
    world = PushWorld()
    world.write(vllm_page(START, 1000.0))
    world.cycle()
    world.write([(labels, [(ms(START + STEP), senders.STALE)]) for labels, _ in vllm_page(START, 0.0)])
    collected = world.cycle()
    assert not [one for one in collected.batches if one.kind is EntityKind.REPLICA]
    assert world.collector.health == []


def test_an_ended_series_is_removed_from_the_page():
    world = PushWorld()
    world.write(vllm_page(START, 1000.0))
    world.cycle()
    second = vllm_page(START + STEP, 1300.0)
    second[3] = (second[3][0], [(ms(START + STEP), senders.STALE)])
    world.write(second)
    collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "engine_requests_running")[1] == CellStatus.ABSENT
    assert cell(collected, EntityKind.REPLICA, "engine_requests_waiting")[1] == CellStatus.PRESENT


def test_one_silent_target_is_down_and_a_silent_sender_leaves_its_targets_unknown():
    world = PushWorld(limits=ReceiveLimits(silent_after=timedelta(minutes=1)))
    other = {"instance": "10.0.0.2:8000"}
    for number in range(2):
        at = START + number * STEP
        world.write(vllm_page(at, 1000.0))
        world.write([({**labels, **other}, samples) for labels, samples in vllm_page(at, 1000.0)])
        world.cycle()
    for number in range(2, 8):
        world.write(vllm_page(START + number * STEP, 1000.0))
        collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "target_up", "10.0.0.2:8000")[0] == 0.0
    assert cell(collected, EntityKind.REPLICA, "target_up", "10.0.0.1:8000")[0] == 1.0
    assert cell(collected, EntityKind.WORKLOAD, "target_up", "sender/remote_write/127.0.0.1")[0] == 1.0
    for _ in range(6):
        collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "target_up", "10.0.0.1:8000")[1] == CellStatus.ABSENT
    assert cell(collected, EntityKind.WORKLOAD, "target_up", "sender/remote_write/127.0.0.1")[0] == 0.0


def test_unread_metrics_are_counted_logged_once_and_dropped(capsys):
    world = PushWorld()
    foreign = [({"__name__": "mysql_up", "job": "db", "instance": "i"}, [(ms(START), 1.0)])]
    for _ in range(2):
        assert world.write(foreign).status_code == 204
    assert world.spool.waiting().blocks == 0
    reply = capsys.readouterr()
    assert (reply.out + reply.err).count("mysql_up") == 1
    page = world.page()
    assert 'outrider_received_left_out_samples_total{door="remote_write",reason="no_adapter"} 2.0' in page
    world.write([*vllm_page(START, 1.0), series("python_gc_objects_collected_total", START, 1.0)])
    assert 'left_out_samples_total{door="remote_write",reason="not_read"} 1.0' in world.page()
    assert "outrider_received_waiting_samples 7.0" in world.page()


def test_common_metric_names_follow_the_adapter_of_their_target():
    world = PushWorld()
    started = series("process_start_time_seconds", START, 5.0)
    world.write([started])  # whose is it? nobody knows yet
    assert world.spool.waiting().blocks == 0
    world.write([started, *vllm_page(START, 1.0)])
    assert world.spool.waiting().samples == 8


def test_a_rule_sets_adapter_and_component():
    entity = EntityTemplate(EntityKind.REPLICA, "{pod}-engine", "{k8s_ns}")
    rules = (
        ReceiveRule({"job": re.compile("secret.*")}, None),
        ReceiveRule({"job": re.compile("vllm")}, "vllm", entity, {"service": "{app}", "model": "llama"}),
    )
    world = PushWorld(rules=rules)
    world.write(vllm_page(START, 1.0, pod="p-0", k8s_ns="prod", app="chat"))
    world.write([({**labels, "job": "secret-vllm"}, samples) for labels, samples in vllm_page(START, 1.0)])
    collected = world.cycle()
    (target,) = world.received.targets
    assert target.entity == EntityRef("c", EntityKind.REPLICA, "prod", "p-0-engine")
    assert target.labels["service"] == "chat"
    assert cell(collected, EntityKind.SERVICE, "svc_ready_backends")[2].entities[0].name == "chat"
    assert 'reason="by_rule"} 7.0' in world.page()


@pytest.mark.parametrize(
    ("body", "headers", "status", "expected_text"),
    [
        (snappy(b"\xff\xff\xff"), PROTO, 400, "not a valid remote-write 1.0 request"),
        (b"not snappy at all", PROTO, 400, "not a snappy block"),
        (snappy(b"\xff\xff\xff"), {**PROTO, "Content-Type": V2}, 400, "not a valid remote-write 2.0 request"),
        (b"{}", {"Content-Type": "application/json"}, 415, "not application/x-protobuf"),
        (b"", {**PROTO, "Content-Type": "application/x-protobuf;proto=a.B"}, 415, "unknown message type"),
        (b"", {**PROTO, "Content-Encoding": "gzip"}, 415, "Content-Encoding"),
        (b"x" * 2001, PROTO, 413, "larger than 2000 bytes"),
        (snappy(b"\x00" * 20_000), PROTO, 413, "larger than 10000 bytes"),
    ],
)
def test_an_invalid_request_is_rejected_with_a_message(body, headers, status, expected_text):
    world = PushWorld(body_bytes=2000, unpacked_bytes=10_000)
    answer = world.post("/write", body, headers)
    assert answer.status_code == status
    assert expected_text in answer.text
    assert answer.text.count("\n") == 1
    assert world.spool.waiting().blocks == 0


def test_invalid_label_references_are_rejected():
    from outrider.wire.remote_write import Request

    request = Request(symbols=["", "a"])
    request.timeseries.add(labels_refs=[1, 9]).samples.add(value=1.0, timestamp=1)
    answer = PushWorld().post("/write", snappy(request.SerializeToString()), {**PROTO, "Content-Type": V2})
    assert answer.status_code == 400
    assert "symbol 9 of 2" in answer.text


def test_a_full_buffer_returns_503_and_keeps_its_blocks():
    world = PushWorld(buffer_bytes=600)
    answers = [world.write(vllm_page(START + number * STEP, 1.0)) for number in range(4)]
    assert answers[0].status_code == 204
    assert answers[-1].status_code == 503
    assert int(answers[-1].headers["Retry-After"]) > 0
    assert "the buffer is full" in answers[-1].text
    kept = world.spool.waiting().blocks
    world.cycle()
    world.cycle()
    assert world.spool.waiting().blocks == 0
    assert kept >= 1
    assert world.write(vllm_page(START + 9 * STEP, 1.0)).status_code == 204


def test_an_unwritable_store_returns_503():
    class Broken(senders.MemoryIngestBuffer):
        def put(self, *_):
            raise StoreError("The disk is full.", hint="Free space.")

    answer = PushWorld(spool=Broken()).write(vllm_page(START, 1.0))
    assert answer.status_code == 503
    assert "The disk is full" in answer.text


def test_the_rate_limit_applies_per_sender():
    world = PushWorld(samples_per_minute=14)
    other = {"X-Scope-OrgID": "team-b"}
    assert [world.write(vllm_page(START + n * STEP, 1.0)).status_code for n in range(3)] == [204, 204, 429]
    assert world.write(vllm_page(START, 1.0), **other).status_code == 204
    world.clock.advance(timedelta(minutes=1))
    assert world.write(vllm_page(START + 9 * STEP, 1.0)).status_code == 204


def test_a_request_with_too_many_samples_is_refused():
    answer = PushWorld(samples_per_request=3).write(vllm_page(START, 1.0))
    assert answer.status_code == 413
    assert "7 samples" in answer.text


def test_ingest_endpoints_require_a_token_and_may_have_their_own():
    world = PushWorld(token="push only")
    body = snappy(write_request(vllm_page(START, 1.0)))
    assert world.post("/write", body, PROTO, token="").status_code == 401
    assert world.post("/write", body, PROTO, token="guessed").status_code == 401
    assert world.post("/write", body, PROTO, token="push only").status_code == 204
    assert world.post("/remediation/pause", b"", token="push only").status_code == 401
    logs = {"Content-Type": "application/json"}
    assert world.post("/otlp/v1/logs", b'{"resourceLogs":[]}', logs, token="push only").status_code != 401
    refused = world.post("/otlp/v1/logs", b'{"resourceLogs":[]}', logs, token="guessed")
    assert refused.status_code == 401
    assert refused.json()["error"]["message"] == "Ingestion requires the push token or the admin token."
    assert "admin" in world.post("/changes", b"[]", token="push only").json()["error"]["message"]
    assert not world.state.paused()


def test_series_per_target_are_limited():
    world = PushWorld(limits=ReceiveLimits(series_per_target=2))
    world.write(vllm_page(START, 1.0))
    world.cycle()
    assert world.spool.counted() == {"too_many_series": 2}
    assert 'outrider_received_engine_left_out_samples_total{reason="too_many_series"} 2.0' in world.page()


def test_series_of_all_targets_are_limited():
    world = PushWorld(limits=ReceiveLimits(series=6))
    world.write([*vllm_page(START, 1.0), *[({**one, "instance": "b"}, two) for one, two in vllm_page(START, 1.0)]])
    world.cycle()
    assert world.spool.counted() == {"too_many_series": 2}


@pytest.mark.parametrize("stamp", [ms(START) * 1000, 2**62, -5, ms(START + timedelta(minutes=6))])
def test_a_wrong_timestamp_does_not_affect_other_senders(stamp):
    world = PushWorld()
    wrong = [(labels, [(stamp, 1.0)]) for labels, _ in vllm_page(START, 1.0)]
    assert world.write(wrong).status_code == 204
    assert 'reason="future"} 7.0' in world.page()
    for number in range(2):
        world.write(vllm_page(START + number * STEP, 1000.0 + 300 * number))
        collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")[0] == 300.0


def test_a_missing_otlp_timestamp_is_now():
    world = PushWorld()
    running = gauge("vllm:num_requests_running", START, 3)
    del running["gauge"]["dataPoints"][0]["timeUnixNano"]
    assert send(world, export(START, running)).json() == {}
    assert cell(world.cycle(), EntityKind.REPLICA, "engine_requests_running")[2].scraped_at == START


def test_an_old_page_is_not_current():
    world = PushWorld()
    world.write(vllm_page(START, 1000.0))
    world.cycle()
    world.clock.advance(timedelta(minutes=20))
    world.write(vllm_page(START + timedelta(minutes=5), 2000.0))  # the sender catches up
    assert not [one for one in world.cycle().batches if one.kind is EntityKind.REPLICA]
    assert world.spool.counted() == {"too_old": 4}
    world.write(vllm_page(world.clock.now(), 5000.0))
    value, _, batch = cell(world.cycle(), EntityKind.REPLICA, "engine_generation_tokens_total")
    assert value == 4000.0
    assert batch.interval_seconds > 1200


def test_pushing_targets_are_limited():
    world = PushWorld(limits=ReceiveLimits(most_targets=1))
    world.write([*vllm_page(START, 1.0), *[({**one, "instance": "b"}, two) for one, two in vllm_page(START, 1.0)]])
    world.cycle()
    assert len(world.received.targets) == 1
    assert world.spool.counted() == {"too_many_targets": 7}


@pytest.mark.slow
def test_buffered_blocks_survive_a_restart_and_are_released_once_written():
    world = PushWorld()
    world.write(vllm_page(START, 1000.0))
    world.cycle()
    assert world.spool.waiting().blocks == 1  # taken, but only the next round knows that it was written
    world.cycle()
    assert world.spool.waiting().blocks == 0


def test_a_killed_engine_reads_unwritten_blocks_again():
    world = PushWorld()
    world.write(vllm_page(START, 1000.0))
    world.cycle()
    world.write(vllm_page(START + STEP, 1300.0))
    world.cycle()  # taken; killed before the next round
    after = senders.PushReceiver(world.spool, "c", world.clock)
    world.collector = senders.ScrapeManager((), pushed=after)
    assert cell(world.cycle(), EntityKind.REPLICA, "engine_generation_tokens_total")[1] == CellStatus.ABSENT
    world.write(vllm_page(START + 2 * STEP, 1600.0))
    assert cell(world.cycle(), EntityKind.REPLICA, "engine_generation_tokens_total")[0] == 300.0


# --- OTLP -----------------------------------------------------------------------------------------


def export(at, *metrics, **resource):
    """An export in the JSON of OTLP."""
    attributes = {"service.name": "vllm", "service.instance.id": "r-0", **resource}
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    return {
        "resourceMetrics": [
            {"resource": {"attributes": listed}, "scopeMetrics": [{"scope": {"name": "s"}, "metrics": list(metrics)}]}
        ]
    }


def point(at, **parts):
    return {"timeUnixNano": str(ms(at) * 1_000_000), **parts}


def total(name, at, value, temporality=2, **attributes):
    listed = [{"key": key, "value": {"stringValue": text}} for key, text in attributes.items()]
    points = [point(at, asDouble=value, attributes=listed)]
    return {"name": name, "sum": {"aggregationTemporality": temporality, "isMonotonic": True, "dataPoints": points}}


def gauge(name, at, value, **parts):
    return {"name": name, "gauge": {"dataPoints": [point(at, asInt=str(value))]}, **parts}


def send(world, document, kind="json", encoding=""):
    headers = {"Content-Type": "application/json"}
    body = json.dumps(document).encode()
    if kind == "protobuf":
        from google.protobuf import json_format

        body = json_format.ParseDict(document, ExportMetricsServiceRequest()).SerializeToString()
        headers = dict(OTLP)
    if encoding:
        headers["Content-Encoding"] = encoding
        body = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    return world.post("/otlp/v1/metrics", body, headers)


@pytest.mark.parametrize(("kind", "encoding"), [("json", ""), ("json", "gzip"), ("protobuf", ""), ("protobuf", "gzip")])
def test_an_otlp_export_is_read_by_the_adapter_of_its_names(kind, encoding):
    world = PushWorld()
    resource = {
        "k8s.pod.name": "chat-0",
        "k8s.namespace.name": "prod",
        "k8s.node.name": "n-1",
        "service.namespace": "x",
    }
    for number in range(2):
        at = START + number * STEP
        metrics = (
            gauge("vllm:num_requests_running", at, 3),
            total("vllm:generation_tokens_total", at, 1000.0 + 300 * number),
        )
        answer = send(world, export(at, *metrics, **resource), kind, encoding)
        assert answer.status_code == 200, answer.text
        reply = ExportMetricsServiceResponse()
        if kind == "protobuf":
            reply.ParseFromString(answer.content)
            assert not reply.HasField("partial_success")
        else:
            assert answer.json() == {}
        collected = world.cycle()
    value, _, batch = cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")
    assert value == 300.0
    assert batch.entities == (EntityRef("c", EntityKind.REPLICA, "prod", "chat-0"),)
    assert cell(collected, EntityKind.REPLICA, "engine_requests_running")[0] == 3.0
    assert world.received.targets[0].labels["node"] == "n-1"


def test_deltas_are_added_up_and_a_repeated_one_is_not():
    world = PushWorld()
    for number in range(4):
        at = START + number * STEP
        document = export(
            at,
            gauge("vllm:num_requests_running", at, 3),
            *([total("vllm:generation_tokens_total", at, 70.0, temporality=1)] if number != 2 else []),
        )
        send(world, document)
        send(world, document)
        collected = world.cycle()
        if number:
            expected = 0.0 if number == 2 else 70.0
            value, status, _ = cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")
            assert (value, status) == (expected, CellStatus.PRESENT)


def test_two_deltas_between_cycles_both_count():
    world = PushWorld()
    for number in range(3):
        at = START + number * STEP
        send(world, export(at, total("vllm:generation_tokens_total", at, 70.0, temporality=1)))
        later = at + timedelta(seconds=7)
        send(world, export(later, total("vllm:generation_tokens_total", later, 30.0, temporality=1)))
        collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "engine_generation_tokens_total")[0] == 100.0


def histogram(name, at, counts, bounds, temporality):
    count, summed = sum(counts), 0.5 * sum(counts)
    found = point(at, bucketCounts=[str(one) for one in counts], explicitBounds=bounds, count=str(count), sum=summed)
    return {"name": name, "histogram": {"aggregationTemporality": temporality, "dataPoints": [found]}}


@pytest.mark.parametrize("temporality", [1, 2])
def test_histograms_of_both_temporalities_give_the_same_buckets(temporality):
    world = PushWorld()
    name, bounds = "vllm:time_to_first_token_seconds", [0.1, 0.5, 1.0]
    for number in range(3):
        at = START + number * STEP
        counts = [4, 3, 2, 1] if temporality == 1 else [one * (number + 1) for one in (4, 3, 2, 1)]
        send(world, export(at, histogram(name, at, counts, bounds, temporality)))
        collected = world.cycle()
    batch = next(one for one in collected.batches if one.kind is EntityKind.REPLICA)
    columns = [at for at, key in enumerate(batch.keys) if key.name == "engine_ttft_seconds"]
    found = batch.values[0, columns]
    assert found[:-1].sum() == pytest.approx(10.0)
    assert found[-1] == pytest.approx(5.0)


@pytest.mark.parametrize("temporality", [1, 2])
def test_exponential_histograms_land_on_the_ladder(temporality):
    world = PushWorld()
    for number in range(3):
        at = START + number * STEP
        many = 1 if temporality == 1 else number + 1
        found = point(
            at, scale=1, count=str(12 * many), sum=9.0 * many, zeroCount=str(2 * many),
            positive={"offset": -4, "bucketCounts": [str(one * many) for one in (4, 3, 2, 1)]},
        )  # fmt: skip
        kind = {"aggregationTemporality": temporality, "dataPoints": [found]}
        name = "vllm:time_to_first_token_seconds"
        assert send(world, export(at, {"name": name, "exponentialHistogram": kind})).json() == {}
        collected = world.cycle()
    batch = next(one for one in collected.batches if one.kind is EntityKind.REPLICA)
    buckets = {
        key.bucket: batch.values[0, at] for at, key in enumerate(batch.keys) if key.name == "engine_ttft_seconds"
    }
    assert buckets[-1] == pytest.approx(9.0)
    assert sum(value for bucket, value in buckets.items() if bucket != -1) == pytest.approx(12.0)
    # (.25, .5] are two buckets of scale 1, and both bounds stand on the ladder
    assert buckets[9] == pytest.approx(7.0)
    assert buckets[0] == pytest.approx(2.0)


def test_unusable_points_give_a_partial_success():
    world = PushWorld()
    summary = {"name": "vllm:x", "summary": {"dataPoints": [point(START, count="1")]}}
    document = export(START, gauge("vllm:num_requests_running", START, 3), summary)
    reply = send(world, document).json()["partialSuccess"]
    assert reply["rejectedDataPoints"] == "1"
    assert "vllm:x" in reply["errorMessage"]
    foreign = send(world, export(START, gauge("db.size", START, 3, unit="By"), **{"service.name": "db"}), "protobuf")
    response = ExportMetricsServiceResponse.FromString(foreign.content)
    assert response.partial_success.rejected_data_points == 1
    assert "db_size_bytes" in response.partial_success.error_message


def test_a_point_without_a_value_ends_its_series():
    world = PushWorld()
    for number in range(2):
        at = START + number * STEP
        running = gauge("vllm:num_requests_running", at, 3)
        if number:
            running["gauge"]["dataPoints"][0]["flags"] = 1
        send(world, export(at, running, total("vllm:generation_tokens_total", at, 1.0)))
        collected = world.cycle()
    assert cell(collected, EntityKind.REPLICA, "engine_requests_running")[1] == CellStatus.ABSENT


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xff", OTLP, 400),
        (b"{", {"Content-Type": "application/json"}, 400),
        (b"", {"Content-Type": "text/plain"}, 415),
        (b"", {**OTLP, "Content-Encoding": "br"}, 415),
        (b"not gzip", {**OTLP, "Content-Encoding": "gzip"}, 400),
        (gzip.compress(b"\x00" * 1_000_000, mtime=0), {**OTLP, "Content-Encoding": "gzip"}, 413),
        (gzip.compress(b"\x00" * 40, mtime=0)[:-9], {**OTLP, "Content-Encoding": "gzip"}, 400),
    ],
)
def test_an_invalid_export_is_rejected_with_an_otlp_status(body, headers, status):
    answer = PushWorld(unpacked_bytes=100_000).post("/otlp/v1/metrics", body, headers)
    assert answer.status_code == status
    if headers["Content-Type"] == "application/json":
        assert answer.json()["message"]
    else:
        assert Status.FromString(answer.content).message


# --- KPIs -----------------------------------------------------------------------------------------


def push(world, *entries):
    return world.post("/kpis", json.dumps(list(entries)).encode(), {"Content-Type": "application/json"})


def test_a_kpi_is_a_signal_of_its_service_until_the_next_one():
    world = PushWorld(kpis=KpiValues(timedelta(minutes=1), {}))
    answer = push(world, {"name": "orders", "service": "shop", "value": 12, "unit": "orders", "labels": {"team": "a"}})
    assert (answer.status_code, answer.json()) == (200, {"accepted": 1, "refused": []})
    collected = world.cycle()
    shop = EntityRef("c", EntityKind.SERVICE, None, "shop")
    for signal in ("kpi_orders", "svc_kpi_value"):
        value, status, batch = cell(collected, EntityKind.SERVICE, signal)
        assert (value, status, batch.entities) == (12.0, CellStatus.PRESENT, (shop,))
    assert world.collector.topology(world.clock.now()).label(shop, "team") == "a"
    assert world.collector.topology(world.clock.now()).label(shop, "kpi_orders_unit") == "orders"
    topology, other = world.collector.topology(world.clock.now()), replace(shop, name="another")
    assert signals.kpi_unit(topology, "kpi_orders", [shop]) == "orders"
    assert signals.kpi_unit(topology, "kpi_orders", [shop, other]) == ""
    assert cell(world.cycle(), EntityKind.SERVICE, "kpi_orders")[0] == 12.0
    world.cycle(timedelta(minutes=1))
    assert not [one for one in world.cycle().batches if one.source == "kpi"]


@pytest.mark.slow
def test_of_several_kpis_the_configured_one_is_the_main_one():
    both = [{"name": name, "service": "shop", "value": value} for name, value in (("orders", 1), ("carts", 2))]
    world = PushWorld()
    push(world, *both)
    collected = world.cycle()
    assert cell(collected, EntityKind.SERVICE, "kpi_carts")[0] == 2.0
    with pytest.raises(AssertionError):
        cell(collected, EntityKind.SERVICE, "svc_kpi_value")
    world = PushWorld(kpis=KpiValues(timedelta(minutes=5), {"shop": "carts"}))
    push(world, *both)
    assert cell(world.cycle(), EntityKind.SERVICE, "svc_kpi_value")[0] == 2.0


def test_invalid_kpis_are_named_and_the_others_accepted():
    world = PushWorld()
    good = {"name": "orders", "service": "shop", "value": 1.5, "at": "2026-11-21T07:59:00Z"}
    wrong = [
        ({**good, "at": "2026-11-21T09:00:00Z"}, "in the future"),
        ({**good, "at": "2026-11-21T07:00:00Z"}, "older than 10m"),
        ({**good, "at": "yesterday"}, "not a timestamp"),
        ({**good, "at": "2026-11-21T07:59:00"}, "not a timestamp"),
        ({**good, "value": float("nan")}, "not finite"),
        ({**good, "value": "1"}, "not a number"),
        ({**good, "value": True}, "not a number"),
        ({**good, "name": "two words"}, "not a valid KPI name"),
        ({**good, "service": "a/b"}, "not a valid service name"),
        ({**good, "service": "chop"}, "unknown service 'chop'"),
        ({**good, "color": "red"}, "unknown key 'color'"),
        ({**good, "labels": {"team": 3}}, "not a mapping of strings"),
        (good, "duplicate value"),
        ({**good, "at": "2026-11-21T07:58:00Z"}, "the same or a later time"),
        (7, "expected an object"),
    ]
    answer = push(world, good, *[entry for entry, _ in wrong])
    assert answer.status_code == 207
    assert answer.json()["accepted"] == 1
    refused = answer.json()["refused"]
    assert [one["index"] for one in refused] == list(range(1, len(wrong) + 1))
    for one, (_, expected_text) in zip(refused, wrong, strict=True):
        assert expected_text in one["error"]
        assert one["hint"]
    again = push(world, good)
    assert again.status_code == 400
    assert "the same or a later time" in again.json()["refused"][0]["error"]
    assert cell(world.cycle(), EntityKind.SERVICE, "kpi_orders")[0] == 1.5


def test_a_kpi_goes_to_a_known_service_and_an_ambiguous_name_is_rejected():
    world = PushWorld()
    services = [EntityRef("c", EntityKind.SERVICE, space, "chat") for space in ("prod", "test")]
    record = CycleRecord("1", START, 0.1, 0, 0, 0, 0, 0, 0)
    world.state.commit(CycleCommit(cycle=record, topology=Topology.build((), services[:1], at=START)))
    kpi = {"name": "orders", "service": "chat", "value": 1}
    assert push(world, kpi).json()["accepted"] == 1
    assert cell(world.cycle(), EntityKind.SERVICE, "kpi_orders")[2].entities == (services[0],)
    world.state.commit(CycleCommit(cycle=replace(record, id="2"), topology=Topology.build((), services, at=START)))
    assert "several services are named 'chat'" in push(world, kpi).json()["refused"][0]["error"]
    assert push(world, {**kpi, "labels": {"namespace": "test"}}).json()["accepted"] == 1


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b"{}", 400), (b"[" * 100_000, 400)])
def test_a_body_that_is_not_a_list_is_rejected(body, status):
    answer = PushWorld().post("/kpis", body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_single_kpi_is_rejected_with_a_hint():
    answer = PushWorld().post("/kpis", b'{"name": "orders", "service": "shop", "value": 1}')
    assert answer.status_code == 400
    assert answer.json()["error"]["hint"] == "wrap it in [ ]"


def test_a_rule_file_can_name_a_kpi(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(
        'version: 1\nrules:\n  - name: few-orders\n    kind: service\n    expr: max(kpi_orders, "5m") < 5\n'
        "    priority: P3\n    default_action_text: alerts.anomaly.action\n    runbook: docs/runbooks/anomaly.md\n"
    )
    (detector,) = compile_rules([rule for rule in rule_files.load_rules([file]) if rule.name == "few-orders"])
    world = PushWorld()
    for _ in range(3):
        push(world, {"name": "orders", "service": "shop", "value": 2})
        world.cycle()
    window = world.metrics.read_windows(
        EntityKind.SERVICE, detector.keys, START, world.clock.now() + timedelta(seconds=1), STEP
    )
    _, found = detector.detect(detector.initial(), replace(window), world.collector.topology(START), world.clock.now())
    assert [one.observed for one in found] == [2.0]
