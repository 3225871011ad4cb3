"""Discovered targets, from the configuration to the cycle and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
from aiohttp import web
from typer.testing import CliRunner

from collectors.kubernetes.api import KubeApi
from collectors.kubernetes.watch import SharedWatches
from collectors.pipeline.scrape_manager import ScrapeManager
from outrider.clock import ManualClock
from outrider.errors import ConfigError, UnavailableError
from outrider.model import EntityKind, EntityRef, SignalKey
from service.cli.tree import app
from service.config import settings
from service.sources import factory
from service.sources.discovery import DiscoveryContributor
from service.sources.kube_clients import KubeClientPool
from tests.support.waiting import until_async

START = datetime(2026, 11, 21, 18, 0, tzinfo=UTC)
STEP = timedelta(seconds=60)
VLLM = 'vllm:num_requests_running{engine="0",model_name="m"} 3\nvllm:generation_tokens_total{engine="0"} 7\n'


class Pages:
    """A web server in a thread of its own, with two engines and a list of targets."""

    def __init__(self) -> None:
        self.listed: list[dict] = []
        self.status = 200
        self.base = ""

    async def page(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=VLLM, content_type="text/plain")

    async def sd(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(self.listed, status=self.status)

    async def odd(self, _request: web.Request) -> web.StreamResponse:
        return web.Response(text="something_else 1\n", content_type="text/plain")

    @property
    def address(self) -> str:
        return self.base.removeprefix("http://")


@pytest.fixture
def pages() -> Iterator[Pages]:
    made, loop = Pages(), asyncio.new_event_loop()

    async def serve() -> web.AppRunner:
        server = web.Application()
        server.router.add_get("/one/metrics", made.page)
        server.router.add_get("/two/metrics", made.page)
        server.router.add_get("/odd", made.odd)
        server.router.add_get("/sd", made.sd)
        runner = web.AppRunner(server, access_log=None, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.base = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    runner = loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield made
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def written(tmp_path: Path, discover: str, more: str = "") -> Path:
    file = tmp_path / "outrider.yaml"
    store = f"store: {{url: 'sqlite:///{tmp_path}/x.db'}}\n"
    file.write_text(f"{store}collect:\n  discover:\n{discover}{more}", encoding="utf-8")
    return file


def group(pages: Pages, *paths: str, **labels: str) -> list[dict]:
    return [{"targets": [pages.address], "labels": {**labels, "__metrics_path__": path}} for path in paths]


def write(path: Path, groups: list[dict], at: int = 1) -> None:
    path.write_text(json.dumps(groups))
    os.utime(path, ns=(at * 10**9, at * 10**9))


def test_targets_are_discovered_scraped_and_removed(tmp_path: Path, pages: Pages) -> None:
    listed = tmp_path / "list.json"
    write(listed, group(pages, "/one/metrics", pod="a", service="chat"))
    file = written(tmp_path, f"    - {{type: file, files: ['{listed}'], adapter: vllm}}\n")
    up = SignalKey("target_up")

    async def whole() -> None:
        source = factory.source(settings.load(file), ManualClock(START))
        assert isinstance(source.contributors[0], DiscoveryContributor)
        assert isinstance(source.pages, ScrapeManager)
        try:
            collected = await source.collect(START)
            samples = {
                entity.name: float(batch.values[row, batch.keys.index(up)])
                for batch in collected.batches
                if batch.kind is EntityKind.WORKLOAD
                for row, entity in enumerate(batch.entities)
            }
            assert samples == {f"file-{pages.address}_one_metrics": 1, "discover/file": 1}
            service = EntityRef("default", EntityKind.SERVICE, "default", "chat")
            assert collected.topology.rests_on(service)
            assert (await source.collect(START)).topology.shares_graph(collected.topology)
            write(listed, group(pages, "/one/metrics", "/two/metrics", service="chat"), at=2)

            async def three_up() -> bool:
                await source.collect(START + STEP)  # does not wait for the reading that it starts
                return [one.up for one in source.health] == [True, True, True]

            await until_async(three_up, "both targets and the list are up")
            listed.write_text("[{")
            os.utime(listed, ns=(3, 3))
            with structlog.testing.capture_logs() as logs:

                async def failed() -> bool:
                    await source.collect(START + 2 * STEP)
                    return bool(logs)

                await until_async(failed, "the list has failed")
                await source.collect(START + 2 * STEP)
            assert [line["event"] for line in logs] == ["discovery_failed"]
            assert len(source.health) == 3, "a list that breaks takes no target away"
        finally:
            await source.close()

    asyncio.run(whole())


def run(*arguments: str) -> dict:
    result = CliRunner().invoke(app, [*arguments, "-o", "json"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    found: dict = json.loads(result.stdout)
    return found


def test_discovered_targets_are_listed_like_configured_ones(tmp_path: Path, pages: Pages) -> None:
    pages.listed = [*group(pages, "/one/metrics", pod="a"), *group(pages, "/odd")]
    own = f"    - {{name: mine, adapter: vllm, url: '{pages.base}/two/metrics', entity: {{kind: replica, name: x}}}}\n"
    more = f"  targets:\n{own}"
    file = written(tmp_path, f"    - {{type: http, url: '{pages.base}/sd'}}\n", more)
    with structlog.testing.capture_logs():
        found = run("collect", "once", "--config", str(file))
        seen = run("doctor", "--config", str(file))
    rows = {row["target"]: row for row in found["targets"]}
    assert set(rows) == {"mine", f"http-{pages.address}_one_metrics", "http"}
    assert [rows[name]["adapter"] for name in rows] == ["vllm", "vllm", "discovery"]
    assert all(row["up"] for row in rows.values())
    assert rows["http"]["samples"] == 1
    assert "no adapter detected for" in rows["http"]["error"]
    running = [row for row in found["signals"] if row["signal"] == "engine_requests_running"]
    assert {row["entity"]["name"] for row in running} == {"x", "a"}
    assert [row["target"] for row in seen["targets"]] == list(rows)
    with structlog.testing.capture_logs():
        table = CliRunner().invoke(app, ["doctor", "--config", str(file), "-o", "table"], standalone_mode=False).stdout
    assert "http (discovery): no adapter detected for" in table


def test_an_unavailable_source_is_listed_with_its_error(tmp_path: Path, pages: Pages) -> None:
    pages.status = 503
    file = written(tmp_path, f"    - {{type: http, name: cmdb, url: '{pages.base}/sd', adapter: vllm}}\n")
    with structlog.testing.capture_logs(), pytest.raises(UnavailableError, match=r"cmdb: .*/sd returned 503"):
        run("collect", "once", "--config", str(file))
    pages.status = 200
    more = "    - {type: http, name: gone, url: 'http://127.0.0.1:9/sd', adapter: vllm}\n"
    file = written(tmp_path, f"    - {{type: http, name: cmdb, url: '{pages.base}/sd', adapter: vllm}}\n{more}")
    with structlog.testing.capture_logs():
        rows = {row["target"]: row for row in run("collect", "once", "--config", str(file))["targets"]}
    assert rows["gone"]["up"] is False
    assert "127.0.0.1:9/sd" in rows["gone"]["error"]


@pytest.mark.parametrize(
    ("line", "key", "message"),
    [
        ("{type: file}", "files", "is required by a source of type file"),
        ("{type: file, files: [x], url: 'http://x'}", "url", "is for sources of type http, kubernetes, not file"),
        ("{type: static, targets: ['http://x/y']}", "targets", "expected host:port, not 'http://x/y'"),
        ("{type: static, targets: [a], adapter: vlm}", "adapter", 'did you mean "vllm"?'),
        ("{type: static, targets: [a], adapters: {j: vlm}}", "adapters", 'did you mean "vllm"?'),
        ("{type: static, targets: [a], keep: {job: '('}}", "keep", "is not a regular expression"),
        ("{type: static, targets: [a], labels: {nod: host}}", "labels", 'did you mean "node"?'),
        ("{type: dns, names: [a], record: A}", "scrape", "set scrape.port"),
        ("{type: dns, names: [a], name_servers: [b]}", "name_servers", "expected an IP address"),
        ("{type: kubernetes}", "url", "is required by a source of type kubernetes"),
        ("{type: consul}", "type", "expected "),
    ],
)
def test_an_unusable_source_is_reported(tmp_path: Path, line: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as fault:
        settings.load(written(tmp_path, f"    - {line}\n"))
    (problem,) = fault.value.problems
    assert problem.line == 4
    assert problem.key == f"collect.discover[0].{key}"
    assert message in problem.message


def test_duplicate_sources_and_discovery_with_a_prometheus_are_refused(tmp_path: Path) -> None:
    twice = "    - {type: static, targets: [a]}\n    - {type: static, targets: [b]}\n"
    with pytest.raises(ConfigError, match="duplicate source name 'static'"):
        settings.load(written(tmp_path, twice))
    one = "    - {type: static, targets: [a]}\n"
    with pytest.raises(ConfigError, match="cannot be combined with"):
        settings.load(written(tmp_path, one, "  prometheus: {url: 'http://x'}\n"))


def test_every_source_type_is_built_from_its_settings(tmp_path: Path) -> None:
    lines = (
        "    - {type: static, targets: ['127.0.0.1:1'], adapter: vllm, add_labels: {service: chat}}\n"
        "    - {type: dns, names: [localhost], record: A, scrape: {port: 1}, adapter: vllm, every: 5m}\n"
        "    - {type: kubernetes, url: 'http://127.0.0.1:1', namespaces: [a, b], label_selector: app=x}\n"
    )
    source = factory.source(settings.load(written(tmp_path, lines)), ManualClock(START))

    async def whole() -> None:
        with structlog.testing.capture_logs():
            await source.collect(START)
        health = {one.target: one for one in source.health}
        assert (health["static"].up, health["static"].samples) == (True, 1)
        assert (health["dns"].up, health["dns"].samples) == (True, 1)
        assert "refuses connections" in (health["kubernetes"].error or "")
        names = {one.name: one.labels["service"] for one in source.pages.targets}
        assert names == {"static-127.0.0.1:1": "chat"}, "one page, one target"
        await source.close()

    asyncio.run(whole())


def test_sources_that_read_one_api_server_with_one_account_share_its_lists() -> None:
    api = "https://k8s.example"
    given = settings.Settings.model_validate(
        {
            "collect": {"discover": [{"type": "kubernetes", "url": api, "timeout": "20s"}]},
            "events": [
                {"type": "kubernetes", "url": f"{api}/"},
                {"type": "engine_log", "name": "other", "url": api, "headers": {"X-Account": "another"}},
            ],
        }
    )
    clients = KubeClientPool((*given.collect.discover, *given.events))
    targets_of, events, logs = (clients.of(one, "k") for one in (*given.collect.discover, *given.events))
    assert isinstance(events, SharedWatches)
    assert targets_of is events
    assert events.api.client.timeout == timedelta(seconds=20)
    assert isinstance(logs, KubeApi)
    alone = KubeClientPool(given.collect.discover)
    assert isinstance(alone.of(given.collect.discover[0], "k"), KubeApi)
