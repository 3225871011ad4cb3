"""Changes, start-ups and audits from the cluster through the change log to the API, and announced changes."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from collectors.scrape.target_health import TargetHealth
from outrider.clock import ManualClock, rfc3339
from outrider.model import EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey
from outrider.ports import Collected
from outrider.records.change_log import ActorKind, ChangeEnd, ChangeStatus, Startup
from outrider.testing.names import NOW
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from outrider.topology import Topology
from reports.inputs.history import read_history
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config.api_settings import ApiSettings, Webhooks
from service.config.settings import Settings, load
from service.sources.change_log_source import ChangeLogContributor
from service.sources.composite_source import CompositeSource
from service.sources.event_source import event_sources
from service.sources.kube_view import KubeView
from store.memory import MemoryChangeLog, MemoryMetricStore, MemoryStateStore
from tests.collectors.receive.test_webhooks import DEPLOYMENT, GITLAB

TOKEN = "correct horse"
ADMIN = {"Authorization": f"Bearer {TOKEN}", "X-Outrider-User": "ada"}
SERVICE = EntityRef("prod", EntityKind.SERVICE, "serving", "chat")


class Api:
    """An application over stores in memory, with a ledger."""

    def __init__(self, **webhooks: Any) -> None:
        self.state, self.metrics, self.ledger = MemoryStateStore(), MemoryMetricStore(), MemoryChangeLog()
        Story().fill(self.state, self.metrics)
        settings = ApiSettings(token=TOKEN, cluster="prod", webhooks=Webhooks(**webhooks))
        self.clock = ManualClock(NOW + timedelta(seconds=5))
        extras = ApiExtras(clock=self.clock, change_log=self.ledger)
        app = create_app(self.state, self.metrics, settings, extras)
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("testclient", 50000))

    def ask(self, method: str, path: str, **parts: Any) -> httpx.Response:
        async def whole() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, f"/api/v1{path}", **parts)

        return asyncio.run(whole())

    def announce(self, body: Any, **headers: str) -> httpx.Response:
        return self.ask("POST", "/changes", json=body, headers={**ADMIN, **headers})

    def changes(self, **query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/changes", params=query).json()["changes"]
        return found


@pytest.fixture
def api() -> Api:
    return Api()


# --- announcements --------------------------------------------------------------------------------


def test_an_announced_change_is_stored_until_the_engine_reads_it(api: Api) -> None:
    body = {"code": "deploy", "service": "chat", "actor": "grace", "before": "v1", "after": "v2", "id": "build-7"}
    response = api.announce(body).json()
    assert response == {
        "taken": 1,
        "known": 0,
        "ended": 0,
        "unknown": ["service chat"],
    }  # no engine has spoken of it yet
    assert api.announce({**body, "outcome": "succeeded"}).json().items() >= {"taken": 0, "known": 1, "ended": 1}.items()
    (row,) = api.changes()
    assert (row["id"], row["code"], row["service"], row["source"]) == ("api/build-7", "deploy", "chat", "api")
    assert (row["actor"], row["actor_kind"], row["before"], row["after"]) == ("grace", "person", "v1", "v2")
    assert row["outcome"] == "succeeded"
    assert row["entity"]["kind"] == "service"
    ((_, waiting),) = api.ledger.posted(0, NOW - timedelta(days=1))
    assert (waiting.kind, waiting.code, waiting.attributes["actor"]) == (EventKind.CHANGE, "deploy", "grace")
    assert api.changes(service="chat", code="deploy") == [row]
    assert api.changes(service="code") == []


def test_secrets_in_announcements_are_redacted(api: Api) -> None:
    api.announce(
        {"code": "flags", "node": "n1", "after": "--api-key=sk-abcdefghijklmnopqrst", "text": "for bob@mail.x.org"}
    )
    assert "sk-abc" not in str(api.changes())
    assert "bob" not in str(api.changes())


@pytest.mark.parametrize(
    ("body", "expected_text"),
    [
        (b"{", "is not valid JSON"),
        (b"payload=%7B%7D", "is not valid JSON"),
        (b'{"service": "chat"}', "0.code"),
        (b'{"code": "Deploy!", "service": "chat"}', "0.code"),
        (b'{"code": "deploi", "service": "chat"}', 'did you mean "deploy"?'),
        (b'{"code": "deploy"}', "one of service, workload and node"),
        (b'{"code": "deploy", "service": "a", "node": "b"}', "one of service, workload and node"),
        (b'{"code": "deploy", "service": "a", "who": "b"}', "0.who"),
        (b'[{"code": "deploy", "service": "a"}, 7]', "change 1"),
        (b'{"code": "deploy", "service": "a", "at": "2026-11-18T12:00:00"}', "0.at"),
        (b'{"code": "deploy", "service": "a", "namespace": "x/y"}', "0.namespace"),
    ],
)
def test_a_malformed_body_is_rejected_with_one_sentence(api: Api, body: bytes, expected_text: str) -> None:
    answer = api.ask("POST", "/changes", content=body, headers=ADMIN)
    assert answer.status_code == 400
    assert expected_text in answer.json()["error"]["message"]
    assert answer.json()["error"]["hint"]
    assert api.changes() == []


def test_announcements_require_a_token_or_a_signature(api: Api) -> None:
    body = {"code": "deploy", "service": "chat"}
    assert api.ask("POST", "/changes", json=body).status_code == 401
    assert api.ask("POST", "/changes", json=body, headers={"Authorization": "Bearer wrong"}).status_code == 401
    signed = Api(secrets={"github": "s3cret", "gitlab": "t0ken"}, services={"acme/chat-70b": "chat"})
    raw = json.dumps(DEPLOYMENT).encode()

    def send(signature: str) -> httpx.Response:
        headers = {"X-GitHub-Event": "deployment", "X-Hub-Signature-256": signature}
        return signed.ask("POST", "/changes", content=raw, headers=headers)

    right = "sha256=" + hmac.new(b"s3cret", raw, hashlib.sha256).hexdigest()
    refused = send("sha256=" + "0" * 64)
    assert refused.status_code == 401
    assert "X-Hub-Signature-256" in refused.json()["error"]["message"]
    assert send(right).json() == {"taken": 1, "known": 0, "ended": 0}
    headers = {"X-Gitlab-Event": "Deployment Hook"}
    wrong = signed.ask("POST", "/changes", json=GITLAB, headers={**headers, "X-Gitlab-Token": "no"})
    assert wrong.status_code == 401
    taken = signed.ask("POST", "/changes", json=GITLAB, headers={**headers, "X-Gitlab-Token": "t0ken"})
    assert taken.json() == {"taken": 1, "known": 0, "ended": 1}
    rows = signed.changes()
    assert {(row["source"], row["service"]) for row in rows} == {("github", "chat"), ("gitlab", "chat")}
    assert {row["outcome"] for row in rows} == {"open", "succeeded"}
    # Without a secret of ours a signature opens nothing.
    assert api.ask("POST", "/changes", content=raw, headers={"X-Hub-Signature-256": right}).status_code == 401


@pytest.mark.slow
def test_a_repository_without_a_service_is_a_change_of_the_cluster(api: Api) -> None:
    api.announce(DEPLOYMENT, **{"X-GitHub-Event": "deployment"})
    assert api.changes()[0]["entity"]["kind"] == "cluster"
    assert api.announce({"zen": "x"}, **{"X-GitHub-Event": "ping"}).json() == {"taken": 0, "known": 0, "ended": 0}


# --- pushed logs ----------------------------------------------------------------------------------


def logs(line: str) -> bytes:
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    for name, value in (("k8s.namespace.name", "serving"), ("k8s.pod.name", "chat-0")):
        resource.resource.attributes.add(key=name).value.string_value = value
    record = resource.scope_logs.add().log_records.add(time_unix_nano=int(NOW.timestamp()) * 10**9)
    record.body.string_value = line
    return request.SerializeToString()


def test_pushed_logs_are_matched_redacted_and_stored_for_the_engine(api: Api) -> None:
    kind = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}
    body = gzip.compress(logs("CUDA out of memory for bob@mail.example.org\nINFO prompt: 'my salary'"))
    answer = api.ask("POST", "/otlp/v1/logs", content=body, headers={**ADMIN, **kind})
    assert (answer.status_code, answer.content) == (200, b"")
    ((_, event),) = api.ledger.posted(0, NOW - timedelta(days=1))
    assert (event.kind, event.code, event.entity.name) == (EventKind.LOG, "cuda_oom", "chat-0")
    assert "bob" not in str(event)
    again = api.ask("POST", "/otlp/v1/logs", content=body, headers={**ADMIN, **kind})
    assert again.status_code == 200
    assert len(api.ledger.posted(0, NOW - timedelta(days=1))) == 1


def test_a_body_that_is_not_a_log_export_is_refused(api: Api) -> None:
    kind = {"Content-Type": "application/x-protobuf"}
    for content, headers, expected_text in (
        (b"\xff\xff", kind, "not an OTLP logs export"),
        (logs("x"), {"Content-Type": "text/plain"}, "Content-Type"),
        (b"nope", {**kind, "Content-Encoding": "gzip"}, "not valid gzip"),
        (logs("x"), {**kind, "Content-Encoding": "br"}, "Content-Encoding"),
    ):
        answer = api.ask("POST", "/otlp/v1/logs", content=content, headers={**ADMIN, **headers})
        assert answer.status_code == 400
        assert expected_text in answer.json()["error"]["message"]
    assert api.ask("POST", "/otlp/v1/logs", content=logs("x"), headers=kind).status_code == 401


# --- reads ----------------------------------------------------------------------------------------


def test_startups_placements_and_audits_are_read(api: Api) -> None:
    pod = EntityRef("prod", EntityKind.POD, "serving", "chat-0")
    began = NOW - timedelta(minutes=10)
    started = Startup("s", pod, began, service="chat", node="n1", ready_at=began + timedelta(minutes=4))
    api.ledger.save_startups([started])
    response = api.ask("GET", "/startups", params={"service": "chat"}).json()
    assert response["lead_time_seconds"] == {"p50": 240.0, "p95": 240.0}
    assert (response["startups"][0]["node"], response["startups"][0]["ready_at"]) == (
        "n1",
        rfc3339(began + timedelta(minutes=4)),
    )
    there = api.ask("GET", "/placements", params={"at": rfc3339(NOW)}).json()
    assert [one["pod"]["name"] for one in there["placements"]] == ["chat-0"]
    before = api.ask("GET", "/placements", params={"at": rfc3339(began - timedelta(minutes=1))}).json()
    assert before["placements"] == []
    assert api.ask("GET", "/audit/workloads").json() == {"at": None, "findings": []}
    finding = {"rule": "x", "found": {"en": "bad", "zh": "坏"}, "do": {"en": "mend", "zh": "修"}}
    api.ledger.put_document("workload_audit", {"findings": [finding]}, NOW)
    assert api.ask("GET", "/audit/workloads", params={"lang": "zh"}).json()["findings"][0]["found"] == "坏"


def test_evidence_of_an_incident_includes_deploy_markers(api: Api) -> None:
    opened = api.state.incident(INCIDENT)
    assert opened is not None
    cause = opened.suspected_cause
    assert cause is not None
    at = rfc3339(opened.opened_at - timedelta(minutes=2))
    near = next(one for one in api.state.topology().causes_of(cause.entity) if one.kind is EntityKind.NODE)
    api.announce({"code": "driver", "node": near.name, "cluster": near.cluster, "at": at, "actor": "grace"})
    api.announce({"code": "flags", "node": "another-node", "at": at})
    response = api.ask("GET", f"/incidents/{INCIDENT}/evidence").json()
    assert [(one["code"], one["actor"]) for one in response["changes"]] == [("driver", "grace")]


def test_an_api_without_a_change_log_reports_it() -> None:
    app = create_app(MemoryStateStore(), MemoryMetricStore(), ApiSettings(token=TOKEN))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("testclient", 1))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/api/v1/changes")

    answer = asyncio.run(ask())
    assert answer.status_code == 409
    assert "change log" in answer.json()["error"]["message"]


# --- the engine's side ----------------------------------------------------------------------------


class Pages:
    """A source of pages in the hands of a test."""

    def __init__(self) -> None:
        pod, node = (
            EntityRef("prod", EntityKind.POD, "serving", "chat-0"),
            EntityRef("prod", EntityKind.NODE, None, "n1"),
        )
        replica = EntityRef("prod", EntityKind.REPLICA, "serving", "chat-0")
        self.graph = Topology.build([(node, pod), (pod, replica), (replica, SERVICE)])
        self.next = Collected()
        self.health: list[TargetHealth] = []

    watched = ()

    async def collect(self, at: Any) -> Collected:
        return replace(self.next, topology=self.graph)

    async def close(self) -> None:
        """Nothing to release."""


def test_a_posted_event_reaches_the_cycle_once_for_its_component() -> None:
    pages, ledger = Pages(), MemoryChangeLog()
    source = CompositeSource(pages, (ChangeLogContributor(ledger),))
    pod = EntityRef("prod", EntityKind.POD, "serving", "chat-0")
    nameless = EntityRef("prod", EntityKind.SERVICE, None, "chat")
    ledger.post(
        [
            Event("l", EventKind.LOG, pod, NOW, "otlp_logs", "cuda_oom", {}, "l"),
            Event("c", EventKind.CHANGE, nameless, NOW, "github", "deploy", {"actor": "ada"}, "c"),
        ],
        NOW,
    )
    first = asyncio.run(source.collect(NOW))
    assert [(one.code, one.entity.kind, one.entity.namespace) for one in first.events] == [
        ("cuda_oom", EntityKind.REPLICA, "serving"),
        ("deploy", EntityKind.SERVICE, "serving"),
    ]
    assert asyncio.run(source.collect(NOW)).events == ()
    assert [one.actor for one in ledger.changes()] == ["ada"]


def test_changes_of_the_cluster_are_stored_once() -> None:
    pages, ledger = Pages(), MemoryChangeLog()
    response = {"actor": "kubectl-edit", "actor_kind": "person", "from": "3", "to": "4"}
    pages.next = Collected(events=(Event("s", EventKind.CHANGE, SERVICE, NOW, "kubernetes", "scale", response, "s"),))
    source = CompositeSource(pages, (ChangeLogContributor(ledger),))
    for _ in range(2):
        asyncio.run(source.collect(NOW))
    ledger.append_ends([ChangeEnd("s", ChangeStatus.SUCCEEDED, NOW)])
    (change,) = ledger.changes()
    assert (change.actor_kind, change.before, change.after, change.ended) == (
        ActorKind.PERSON, "3", "4", ChangeStatus.SUCCEEDED,
    )  # fmt: skip


def test_the_automation_share_counts_the_actor_of_each_change() -> None:
    metrics = MemoryMetricStore()
    kinds = ("person", "system", "system", "", "system")
    codes = ("flags", "scale", "sync", "image", "push")
    events = [
        Event(str(n), EventKind.CHANGE, SERVICE, NOW, "x", code, {"actor_kind": kind} if kind else {}, str(n))
        for n, (code, kind) in enumerate(zip(codes, kinds, strict=True))
    ]
    metrics.write(NOW, [], events)
    response = read_history(MemoryStateStore(), metrics, NOW - timedelta(hours=1), NOW + timedelta(hours=1))
    assert (response.changes, response.changes_automatic) == (4, 2)  # a push puts nothing into service


# --- one of two sources ---------------------------------------------------------------------------


class FakeCluster:
    """A cluster whose signals are counted."""

    name, cluster = "kubernetes", "prod"

    def batches(self, at: Any) -> tuple[SampleBatch, ...]:
        key = SignalKey("node_ready")
        node = EntityRef("prod", EntityKind.NODE, None, "n1")
        one = np.ones((1, 1))
        return (SampleBatch("kubernetes", NOW, EntityKind.NODE, (key,), (node,), one, np.zeros((1, 1), np.uint8)),)


def test_signals_come_from_the_api_or_from_kube_state_metrics_and_never_from_both() -> None:
    exporter = TargetHealth("ksm", "kube_state_metrics", True, None, None, None, NOW, cluster="prod")
    other = TargetHealth("n1", "node_exporter", True, None, None, None, None)
    for wanted, health, count in (
        ("auto", [other], 1),
        ("auto", [other, exporter], 0),
        ("auto", [replace(exporter, up=None)], 0),
        # values must not jump between sources during a short outage of the exporter
        ("auto", [replace(exporter, up=False, last_success=NOW - timedelta(minutes=1))], 0),
        ("auto", [replace(exporter, up=False, last_success=NOW - timedelta(minutes=3))], 1),
        ("auto", [replace(exporter, up=False, last_success=None)], 1),
        ("auto", [replace(exporter, cluster="elsewhere")], 1),
        ("auto", [replace(exporter, cluster="elsewhere"), exporter], 0),
        ("always", [exporter], 1),
        ("never", [other], 0),
    ):
        view = KubeView([FakeCluster()], {"kubernetes": wanted})  # type: ignore[list-item]
        assert len(view.batches(health, NOW)) == count


# --- settings -------------------------------------------------------------------------------------


def test_sources_of_logs_and_changes_are_configured(tmp_path: Path) -> None:
    file = tmp_path / "outrider.yaml"
    file.write_text(
        "events:\n"
        "  - {type: loki, url: 'http://loki:3100', query: '{namespace=\"serving\"}', headers: {X-Scope-OrgID: a}}\n"
        "  - {type: kubernetes, url: 'https://k8s', signals: never}\n"
        "changes:\n  github_secret_file: /run/secrets/hook\n  services: {acme/chat: chat}\n",
        encoding="utf-8",
    )
    found = load(file)
    assert found.changes.services == {"acme/chat": "chat"}
    assert [one.name for one in event_sources(found).sources] == ["loki", "kubernetes"]
    file.write_text("events:\n  - {type: loki, url: 'http://loki:3100', query: 'sum(rate(x))'}\n", encoding="utf-8")
    with pytest.raises(Exception, match="LogQL selector"):
        load(file)
    assert Settings().changes.services == {}


def test_an_announcement_has_the_time_of_a_fleet_clock_that_is_ahead() -> None:
    ahead = Api()
    ahead.clock.set(NOW - timedelta(days=3))
    ahead.announce({"code": "deploy", "service": "chat"})
    assert ahead.changes()[0]["at"] == rfc3339(NOW)
    behind = Api()
    behind.clock.set(NOW + timedelta(days=3))  # no cycle has come for days: the engine is away
    behind.announce({"code": "deploy", "service": "chat"})
    assert behind.changes()[0]["at"] == rfc3339(NOW + timedelta(days=3))
