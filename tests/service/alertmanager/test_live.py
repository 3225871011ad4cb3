"""Alertmanager's webhook into the API, loops between both, and our alerts in a real Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client import generate_latest

from collectors.receive.alert_formats.record import AlertRules
from outrider.clock import ManualClock
from outrider.model import Alert, AlertReason, AlertState, CycleRecord, EntityKind, EntityRef, Priority
from outrider.ports import CycleCommit
from outrider.records.heartbeats import Watchdog
from outrider.records.silences import parse_matcher
from outrider.wire.alertmanager import origin_of
from service.alertmanager.client import AlertmanagerClient
from service.alertmanager.emitter import AlertEmitter, EmitOptions
from service.api.dependencies import ApiExtras
from service.config.api_settings import AlertIngestSettings, ApiSettings, IngestSettings
from store.memory import MemoryStateStore
from tests.support import alertmanagers, metric_servers
from tests.support.alertmanagers import Alertmanager
from tests.support.api_server import serving
from tests.support.metric_servers import MetricServer
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = pytest.mark.live
TOKEN = "push token"
MINUTE = timedelta(minutes=1)
NODE = EntityRef("prod", EntityKind.NODE, None, "n1")


class World:
    """The API, and an Alertmanager that notifies it."""

    def __init__(self, state: MemoryStateStore, extras: ApiExtras, server: Alertmanager) -> None:
        self.state, self.extras, self.server = state, extras, server

    def send(self, *names: str, ends: timedelta | None = None, **labels: str) -> None:
        now = datetime.now(UTC)
        alerts = [
            {
                "labels": {"alertname": name, "node": "n1", "severity": "critical", **labels},
                "annotations": {"summary": f"{name} <b>of</b> n1"},
                "startsAt": (now - MINUTE).isoformat(),
                **({"endsAt": (now + ends).isoformat()} if ends is not None else {}),
            }
            for name in names
        ]
        self.server.send("POST", "/alerts", alerts)

    def received(self, state: AlertState) -> dict[str, int]:
        return {alert.name: alert.deliveries for alert in self.state.received_alerts(states=[state])}

    def metrics(self) -> str:
        return generate_latest(self.extras.registry).decode()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    why = metric_servers.missing((alertmanagers.PROGRAM,))
    if why is not None:
        pytest.skip(why)
    watchdog = Watchdog("prometheus", (parse_matcher("alertname=Watchdog"),), 10 * MINUTE)
    alerts = AlertIngestSettings(watchdogs=(watchdog,))
    settings = ApiSettings(token="admin", cluster="here", ingest=IngestSettings(token=TOKEN, alerts=alerts))
    state, extras = MemoryStateStore(), ApiExtras()
    with serving(state, settings, extras) as url:
        webhook = f"{url}/api/v1/received/alertmanager"
        with alertmanagers.alertmanager(tmp_path_factory.mktemp("am"), webhook=webhook, token=TOKEN) as server:
            yield World(state, extras, server)


def test_an_alert_of_a_real_alertmanager_arrives_once_and_ends(world):
    world.send("KubeNodeNotReady")
    until(lambda: "KubeNodeNotReady" in world.received(AlertState.FIRING), "the alert has arrived")
    (alert,) = [item for item in world.state.received_alerts() if item.name == "KubeNodeNotReady"]
    assert (alert.priority, alert.fault, alert.summary) == (Priority.P1, "node-lost", "KubeNodeNotReady <b>of</b> n1")
    world.send("Another")  # the group is notified again, with both
    until(lambda: "Another" in world.received(AlertState.FIRING), "the second alert has arrived")
    world.send("KubeNodeNotReady", ends=-timedelta(seconds=1))
    until(lambda: "KubeNodeNotReady" in world.received(AlertState.RESOLVED), "its end has arrived")
    assert sum(item.name == "KubeNodeNotReady" for item in world.state.received_alerts()) == 1


def test_an_alert_that_we_emitted_and_that_comes_back_is_dropped_and_counted(world):
    own = Alert(
        "f1", "gpu-lost", Priority.P1, NODE, AlertState.FIRING, AlertReason.STILL_TRUE, datetime.now(UTC) - MINUTE,
        datetime.now(UTC),
    )  # fmt: skip
    state = MemoryStateStore()
    state.commit(CycleCommit(CycleRecord("c", datetime.now(UTC), 0.1, 1, 1, 1, 0, 1, 0), alerts=(own,)))
    options = EmitOptions(origin=origin_of("here", world.state.installation()), base_url="", watchdog=False)
    emitter = AlertEmitter(state, [AlertmanagerClient(world.server.url)], options, lambda _now: True)
    emitter.run_due(datetime.now(UTC))
    emitter.close()
    counted = 'outrider_received_alerts_total{outcome="looped",source="alertmanager"}'
    until(lambda: counted in world.metrics(), "the loop is counted")
    assert not [item for item in world.state.received_alerts() if item.name == "gpu-lost"]


def test_the_watchdog_of_a_real_prometheus_is_a_heartbeat_and_no_alert(world):
    world.send("Watchdog", severity="none")
    until(lambda: "watchdog/prometheus" in world.state.heartbeats(), "the heartbeat has arrived")
    assert "Watchdog" not in world.received(AlertState.FIRING)
    assert 'outrider_watchdog_heartbeat_timestamp_seconds{name="prometheus"}' in world.metrics()


def test_alerts_beyond_the_limit_arrive_with_a_later_attempt_of_a_real_alertmanager(tmp_path):
    why = metric_servers.missing((alertmanagers.PROGRAM,))
    if why is not None:
        pytest.skip(why)
    clock, state = ManualClock(datetime.now(UTC)), MemoryStateStore()
    alerts = AlertIngestSettings(rules=AlertRules(), per_minute=1)
    settings, extras = ApiSettings(ingest=IngestSettings(token=TOKEN, alerts=alerts)), ApiExtras(clock=clock)
    with serving(state, settings, extras) as url:
        webhook = f"{url}/api/v1/received/alertmanager"
        with alertmanagers.alertmanager(tmp_path, webhook=webhook, token=TOKEN) as server:
            world = World(state, extras, server)
            world.send("First")
            until(lambda: "First" in world.received(AlertState.FIRING), "the first alert has arrived")
            world.send("Second")
            limited = 'outrider_received_alert_requests_total{outcome="too_fast",source="alertmanager"}'
            until(lambda: limited in world.metrics(), "the second delivery was refused")
            assert set(world.received(AlertState.FIRING)) == {"First"}
            clock.advance(timedelta(minutes=2))
            until(lambda: "Second" in world.received(AlertState.FIRING), "the second alert has arrived")


def test_our_alerts_are_series_in_a_real_prometheus(tmp_path: Path):
    why = metric_servers.missing(("prometheus",))
    if why is not None:
        pytest.skip(why)
    state, at = MemoryStateStore(), datetime.now(UTC)
    alerts = [
        Alert(f"f{number}", rule, priority, NODE, alert_state, AlertReason.STILL_TRUE, at, at, fault=fault)
        for number, (rule, priority, alert_state, fault) in enumerate(
            [
                ("node-lost", Priority.P0, AlertState.FIRING, "node-lost"),
                ("slow", Priority.P2, AlertState.PENDING, None),
            ]
        )
    ]
    state.commit(CycleCommit(CycleRecord("c", at, 0.1, 1, 1, 1, 0, 1, 0), alerts=tuple(alerts)))
    with serving(state, ApiSettings(token="admin", cluster="prod")) as url, scraping(tmp_path, url) as prometheus:
        query = quote('ALERTS{alertstate="firing",severity="critical",job="outrider"}')

        def found() -> list[dict]:
            return json.loads(prometheus.get(f"/api/v1/query?query={query}"))["data"]["result"]

        until(found, "Prometheus has scraped the series")
        (series,) = found()
        names = ("alertname", "priority", "kind", "entity", "outrider_origin")
        assert [series["metric"][name] for name in names] == [
            "node-lost",
            "P0",
            "node",
            "n1",
            f"prod-{state.installation()}",
        ]
        pending = json.loads(prometheus.get("/api/v1/query?query=" + quote('ALERTS{alertstate="pending"}')))
        assert len(pending["data"]["result"]) == 1


@contextmanager
def scraping(folder: Path, url: str) -> Iterator[MetricServer]:
    """Runs a Prometheus that scrapes one address."""
    port, file = free_port(), folder / "prometheus.yml"
    target = {"job_name": "outrider", "static_configs": [{"targets": [url.removeprefix("http://")]}]}
    file.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [target]}), encoding="utf-8")
    options = (f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}")
    server = MetricServer(("prometheus", *options), port, "/-/ready")
    server.start()
    try:
        yield server
    finally:
        server.stop()
