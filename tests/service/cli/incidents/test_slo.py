"""SLOs from the file to the alert: errors, output, priorities."""

import asyncio
import contextlib
import io
import json
import sys
from datetime import UTC, datetime, timedelta
from unittest import mock

import httpx
import numpy as np
import pytest

from collectors.pipeline.scrape_manager import ScrapeManager
from detectors.rules.burn_rate import BurnRateDetector
from outrider.clock import ManualClock
from outrider.documents.summaries import alert_summary
from outrider.errors import ConfigError
from outrider.model import (
    AlertState,
    CellStatus,
    EntityKind,
    EntityRef,
    Finding,
    Priority,
    SampleBatch,
    SignalKey,
    Window,
)
from outrider.ports import Collected
from outrider.testing.names import NOW, SERVICE
from outrider.testing.story import Story
from outrider.topology import Topology
from outrider.vocabulary import catalog
from outrider.vocabulary.tenants import tenant_of
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.api.routers import slos as slos_api
from service.cli import main
from service.config import settings, slo_settings
from service.config.api_settings import ApiSettings
from service.config.slo_settings import SloSettings
from service.wiring import platform
from store.memory import MemoryMetricStore, MemoryStateStore

GOOD = """\
slos:
  - name: answers
    objective: 0.999
  - {name: first-token, service: chat, sli: ttft, limit: 1s, objective: 0.99, ticket: P3}
"""
STEP = timedelta(seconds=15)
CHAT = EntityRef("default", EntityKind.SERVICE, None, "chat")


def load(tmp_path, text):
    path = tmp_path / "outrider.yaml"
    path.write_text(text, encoding="utf-8")
    return settings.load(path)


@pytest.mark.parametrize(
    ("text", "line", "key", "expected"),
    [
        ("- {name: a, sli: ttft}", 2, "limit", "is missing; expected one of 0.001, "),
        ("- {name: a, sli: ttft, limit: 200ms}", 2, "limit", "0.2 s is between two bounds of svc_ttft_seconds"),
        ("- {name: a, limit: 1s}", 2, "limit", "applies to ttft, tpot and latency only"),
        ("- {name: a, sli: abort, limit: 1s}", 2, "limit", "applies to ttft, tpot and latency only"),
        ("- {name: a, objective: 1}", 2, "objective", "less than 1"),
        ("- {name: a, objektive: 0.9}", 2, "objektive", 'did you mean "objective"'),
        ("- {name: Big One}", 2, "name", "lowercase letters"),
        ("- {name: a, window: 1d}", 2, "window", "expected 3d to 90d"),
        ("- {name: a}\n- {name: a}", 3, "name", "duplicate SLO name 'a'"),
        ("- {name: a, namespace: x}", 2, "namespace", "requires service"),
        ("- {name: a, page: P9}", 2, "page", "P0"),
        ("- {name: a, where: {request_class: x}}", 2, "request_class", "vip, online or long"),
        ("- {name: a, where: {tenant: []}}", 2, "tenant", "a text or a list of texts"),
        ("- {name: a, sli: abort, where: {tenant: b}}", 2, "where", "engines do not count abort"),
        ("- {name: a, sli: abort, tenant: b}", 2, "tenant", "abort is not counted by tenant"),
        ("- {name: a, sli: tpot, limit: 100ms, tenant: b}", 2, "tenant", "tpot is not counted by tenant"),
        ("- {name: a, tenant: b, where: {tenant: b}}", 2, "tenant", "cannot be combined with where"),
    ],
)
def test_errors_name_line_and_key(tmp_path, text, line, key, expected):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "slos:\n" + text + "\n")
    (problem,) = caught.value.problems
    assert (problem.line, problem.key.rpartition(".")[2]) == (line, key)
    assert expected in problem.message


@pytest.mark.parametrize(
    ("sli", "bad", "good"),
    [
        ("abort", "svc_abandoned_total", "svc_requests_total"),
        ("validity", "svc_invalid_answers_total", "svc_answers_total"),
        ("feedback", "svc_feedback_down_total", "svc_feedback_up_total"),
    ],
)
def test_aborts_invalid_answers_and_votes_burn_a_budget(tmp_path, sli, bad, good):
    (slo,) = load(tmp_path, f"slos:\n- {{name: a, sli: {sli}, objective: 0.99}}\n").resolved_slos
    assert [key.name for key in slo.bad] == [bad]
    detector, state, found = BurnRateDetector(slo), BurnRateDetector(slo).initial(), []
    for minute in range(1, 70):
        counts = {bad: 0.0 if minute < 60 else 90.0, good: 20.0 if sli == "feedback" else 100.0}
        times = NOW.timestamp() + 60.0 * np.arange(max(0, minute - 10), minute)
        row = [[counts[key.name] for key in slo.keys]] * times.size
        status = np.zeros((1, times.size, len(slo.keys)), dtype=np.uint8)
        window = Window(EntityKind.SERVICE, (CHAT,), times, slo.keys, np.array([row]), status, timedelta(minutes=1))
        state, verdicts = detector.detect(state, window, Topology.build(()), datetime.fromtimestamp(times[-1], tz=UTC))
        found.append(any(isinstance(item, Finding) for item in verdicts))
    assert not any(found[:59])
    assert found[-1]


def test_a_latency_counts_the_buckets_above_its_limit(tmp_path):
    answers, token = load(tmp_path, GOOD).resolved_slos
    assert [key.name for key in (*answers.bad, *answers.total)] == ["svc_failed_total", "svc_requests_total"]
    assert (answers.service, token.service) == (None, CHAT)
    assert token.bad == tuple(key for key in token.total if key.bucket > 11), "bound 11 of the ladder is 1 s"
    assert (token.page, token.ticket) == (Priority.P1, Priority.P3)


def cli(*arguments, cwd):
    out = io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.object(sys, "argv", ["outrider", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return left.value.code, out.getvalue()


def test_validate_and_list_show_burn_rates(tmp_path):
    (tmp_path / "outrider.yaml").write_text(GOOD, encoding="utf-8")
    code, text = cli("slo", "validate", "outrider.yaml", "-o", "json", cwd=tmp_path)
    found = json.loads(text)
    assert (code, found["valid"], len(found["slos"])) == (0, True, 2)
    code, text = cli("slo", "list", "-o", "table", cwd=tmp_path)
    assert code == 0
    assert "P1 from 1.44 %" in text
    assert "P3 from 1 %" in text
    (tmp_path / "outrider.yaml").write_text("slos:\n  - {name: a, sli: ttft}\n", encoding="utf-8")
    code, text = cli("slo", "validate", "outrider.yaml", "-o", "json", cwd=tmp_path)
    assert code == 1
    assert json.loads(text)["errors"][0]["line"] == 2
    code, text = cli("slo", "validate", "outrider.yaml", "-o", "table", "--lang", "zh", cwd=tmp_path)
    assert "1 处错误" in text


class Service:
    """One service through the whole cycle, a look every 15 s."""

    def __init__(self, *slos) -> None:
        self.clock = ManualClock(NOW)
        given = settings.Settings(slos=[SloSettings(**slo) for slo in slos])
        self.cycle = platform.cycle_in_memory(given, ScrapeManager([]), self.clock, interval=STEP)
        self.keys = given.resolved_slos[0].keys

    def minutes(self, count, bad=0.0, total=50.0):
        for _ in range(count * 4):
            now = self.clock.advance(STEP)
            values = np.array([[{"svc_failed_total": bad}.get(key.name, total) for key in self.keys]])
            status = np.full(values.shape, CellStatus.PRESENT, np.uint8)
            batch = SampleBatch("t", now, EntityKind.SERVICE, self.keys, (CHAT,), values, status)
            self.cycle.run_stages(now, Collected((batch,)))
        firing = self.cycle.parts.state.alerts(states=[AlertState.FIRING])
        return {alert.rule: alert for alert in firing}


@pytest.mark.slow
def test_a_burning_budget_fires_marks_the_service_and_ends():
    service = Service({"name": "answers", "objective": 0.999})
    assert service.minutes(2) == {}
    alert = service.minutes(15, bad=5)["slo-answers"]
    assert (alert.priority, alert.entity, alert.labels["service_level"]) == (Priority.P1, CHAT, "true")
    assert alert_summary(alert, "en").startswith("Error budget of answers burning")
    assert "错误预算" in alert_summary(alert, "zh")
    incident = service.cycle.parts.state.incidents(open_only=True)
    assert [one.services for one in incident] == [("chat",)]


def test_an_slo_of_a_class_has_the_bounds_of_the_services_histogram(tmp_path):
    (slo,) = load(
        tmp_path, "slos:\n- {name: a, sli: ttft, limit: 1s, objective: 0.9, where: {request_class: vip}}\n"
    ).resolved_slos
    assert (slo.kind, slo.where) == (EntityKind.REPLICA, {"request_class": ("vip",)})
    assert {key.name for key in slo.keys} == {"engine_ttft_seconds"}
    for name, of_replicas in slo_settings.OF_REPLICAS.items():
        assert catalog.signal(of_replicas).bounds == catalog.signal(slo_settings.LATENCIES[name]).bounds


def test_an_slo_of_tenants_is_about_the_named_ones_of_its_service():
    chat, code = (EntityRef("c", EntityKind.SERVICE, None, name) for name in ("chat", "code"))
    one = SloSettings(name="a", tenant="acme", service="chat").slo("c")
    assert one.kind is EntityKind.TENANT
    assert [one.about(tenant_of(service, name)) for service in (chat, code) for name in ("acme", "other", "b")] == [
        True, False, False, False, False, False,
    ]  # fmt: skip
    each = SloSettings(name="a", tenant="*", sli="ttft", limit="1s").slo("c")
    assert [each.about(tenant_of(code, name)) for name in ("acme", "other", "none")] == [True, False, False]
    assert {key.name for key in each.keys} == {"tenant_ttft_seconds"}
    for name, of_tenant in slo_settings.OF_TENANTS.items():
        assert catalog.signal(of_tenant).bounds == catalog.signal(slo_settings.LATENCIES[name]).bounds


def test_the_events_of_a_class_are_those_of_its_replicas():
    slo = SloSettings(name="vip", where={"tenant": ["acme"]}).slo("c")
    service, other = (EntityRef("c", EntityKind.SERVICE, None, name) for name in ("chat", "code"))
    replicas = [EntityRef("c", EntityKind.REPLICA, None, name) for name in ("a", "b", "c")]
    facts = {replicas[0]: {"tenant": "acme"}, replicas[1]: {"tenant": "other"}, replicas[2]: {"tenant": "acme"}}
    topology = Topology.build([(replica, service) for replica in replicas], [other], facts)
    assert slos_api.parts_of(slo, service, topology) == [replicas[0], replicas[2]]
    assert slos_api.parts_of(slo, other, topology) == []
    assert slos_api.parts_of(SloSettings(name="all").slo("c"), other, topology) == [other]


def test_without_an_slo_there_is_no_burn_rate_alert():
    cycle = platform.cycle_in_memory(settings.Settings(), ScrapeManager([]), ManualClock(NOW), interval=STEP)
    assert not [rule for rule in cycle.parts.rules if rule.name.startswith("slo-")]


@pytest.fixture
def get():
    state, metrics = MemoryStateStore(), MemoryMetricStore()
    Story().fill(state, metrics)
    given = [
        SloSettings(name="answers", objective=0.999),
        SloSettings(name="nobody", service="gone", objective=0.9),
        SloSettings(name="first-token", sli="ttft", limit="2500ms", objective=0.99, window="7d"),
        SloSettings(name="each-tenant", tenant="*", objective=0.99),
    ]
    acme = tenant_of(SERVICE["chat"], "acme")
    keys = tuple(map(SignalKey, ("tenant_requests_total", "tenant_failed_total")))
    counts = np.array([[100.0, 2.0]])
    at = NOW - timedelta(hours=2)
    metrics.write(at, [SampleBatch("t", at, EntityKind.TENANT, keys, (acme,), counts, np.zeros((1, 2), np.uint8))])
    slos = tuple(one.slo(SERVICE["chat"].cluster) for one in given)
    extras = ApiExtras(clock=ManualClock(NOW + timedelta(seconds=5)))
    transport = httpx.ASGITransport(create_app(state, metrics, ApiSettings(slos=slos), extras))

    async def ask(path):
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get(path)).json()

    return lambda path: asyncio.run(ask(path))


@pytest.mark.slow
def test_the_api_returns_the_remaining_error_budget(get):
    rows = get("/api/v1/slos")
    assert {row["name"] for row in rows} == {"answers", "first-token", "each-tenant"}, "nobody keeps the fourth one"
    (tenant,) = [row for row in rows if row["name"] == "each-tenant"]
    assert (tenant["service"]["name"], tenant["tenant"]) == ("chat", "acme")
    assert (tenant["events"], tenant["bad"]) == (100.0, 2.0)
    chat = next(row for row in rows if (row["name"], row["service"]["name"]) == ("answers", "chat"))
    assert chat["events"] > chat["bad"] > 0
    assert chat["kept"] == pytest.approx(1 - chat["bad"] / chat["events"])
    assert chat["budget_left"] == pytest.approx(1 - (1 - chat["kept"]) / 0.001)
    assert chat["burns"] is None
    services = get("/api/v1/overview")["services"]
    assert all({"answers", "first-token"} <= {one["name"] for one in service["slos"]} for service in services)
