"""Probes from a configuration to the store, and by command."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from typer.testing import CliRunner

from alerts.rules import files as rule_files
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.probes.result import Outcome
from detectors.rules import threshold
from outrider.clock import ManualClock
from outrider.errors import ConfigError
from outrider.model import EntityKind, EntityRef, Finding, SampleBatch, SignalKey
from outrider.text import i18n
from outrider.topology import Topology
from service.cli.tree import app
from service.config import settings
from service.engine.window_cache import WindowCache
from service.sources import factory
from service.sources.probe_source import ProbeContributor
from service.wiring import platform as wiring_platform

START = datetime(2026, 11, 21, 18, 0, tzinfo=UTC)
CHAT = EntityRef("default", EntityKind.SERVICE, "serving", "chat")
CHUNK = b'data: {"choices":[{"delta":{"content":"January, February"}}]}\n\n'


async def _generate(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": hello\n\n")
    if body["model"] != "hung":
        await response.write(CHUNK + b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
        return response
    await asyncio.Event().wait()
    raise AssertionError


async def _hello(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="hello")


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """A server in a thread of its own: the command line has a loop of its own, too."""
    loop, found = asyncio.new_event_loop(), []

    async def serve() -> web.AppRunner:
        server = web.Application()
        server.router.add_post("/v1/chat/completions", _generate)
        server.router.add_get("/", _hello)
        runner = web.AppRunner(server, access_log=None, shutdown_timeout=0.01, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return runner

    runner = loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield found[0]
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def written(tmp_path: Path, probes: str) -> Path:
    file = tmp_path / "outrider.yaml"
    file.write_text(f"store: {{url: 'sqlite:///{tmp_path}/x.db'}}\nprobes:\n{probes}", encoding="utf-8")
    return file


def test_a_configured_probe_reaches_the_store(tmp_path, base_url) -> None:
    file = written(
        tmp_path,
        f"  - {{type: generation, service: chat, namespace: serving, url: '{base_url}/v1', model: m}}\n"
        f"  - {{type: http, service: chat, namespace: serving, url: '{base_url}/', matches: hello}}\n",
    )
    clock = ManualClock(START)

    async def whole() -> None:
        platform = wiring_platform.platform(settings.load(file), clock, lockstep=True)
        try:
            assert any(isinstance(each, ProbeContributor) for each in platform.collector.contributors)
            assert isinstance(platform.collector.pages, ScrapeManager)
            await platform.cycle.run()
            clock.advance(timedelta(seconds=15))
            record = await platform.cycle.run()
            assert (record.targets, record.targets_up) == (2, 2)
            assert CHAT in platform.state.topology().entities
            keys = [SignalKey("probe_success"), SignalKey("probe_outcome_code"), SignalKey("probe_ttft_seconds")]
            end = clock.now() + timedelta(seconds=1)
            window = platform.metrics.read_windows(EntityKind.SERVICE, keys, START, end, timedelta(seconds=1), [CHAT])
            newest = window.values[0, np.flatnonzero(np.isfinite(window.column("probe_success")[0]))[-1]]
            assert newest[:2].tolist() == [1, 0]
            assert newest[2] > 0
            assert [one.target for one in platform.collector.health] == ["generation-chat", "http-chat"]
        finally:
            await platform.close()

    asyncio.run(whole())


def test_the_topology_is_reused_while_that_of_the_metrics_pages_is_unchanged(tmp_path, base_url) -> None:
    given = settings.load(written(tmp_path, f"  - {{type: http, service: chat, url: '{base_url}/'}}\n"))

    async def whole() -> None:
        source = factory.source(given, ManualClock(START))
        first = (await source.collect(START)).topology
        second = (await source.collect(START + timedelta(seconds=15))).topology
        assert second.shares_graph(first)
        assert second.at == START + timedelta(seconds=15)
        await source.close()

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("line", "place", "message"),
    [
        ("{type: http, service: chat}", "probes[0].url", "is required by a probe of type http"),
        ("{type: dns, service: chat, host: a, model: x}", "probes[0].model", "is for probes of type generation"),
        ("{type: http, service: chat, url: 'ftp://x'}", "probes[0].url", "expected an http:// or https:// address"),
        ("{type: grpc, service: chat, url: 'http://x:1'}", "probes[0].url", "expected grpc://host:port"),
        ("{type: grpc, service: chat, url: 'grpc://x'}", "probes[0].url", "expected grpc://host:port"),
        (
            "{type: http, service: chat, url: 'http://x', matches: '('}",
            "probes[0].matches",
            "is not a regular expression",
        ),
        ("{type: dns, service: c, host: a, name_servers: [x]}", "probes[0].name_servers", "expected an IP address"),
        (
            "{type: generation, service: c, url: 'http://x', max_tokens: 99999}",
            "probes[0].max_tokens",
            "expected at most",
        ),
        ("{type: http, service: c, url: 'http://x', every: 0s}", "probes[0].every", "expected more than 0s"),
        ("{type: grpc, service: c, url: 'grpcs://x:1', tls: {insecure_skip_verify: true}}", "probes[0].tls", "ca_file"),
        ("{type: htp, service: chat, url: 'http://x'}", "probes[0].type", "expected "),
    ],
)
def test_an_unusable_probe_is_reported(tmp_path, line, place, message) -> None:
    with pytest.raises(ConfigError) as fault:
        settings.load(written(tmp_path, f"  - {line}\n"))
    (problem,) = fault.value.problems
    assert (problem.line, problem.key) == (3, place)
    assert message in problem.message


def test_duplicate_probe_names_are_refused(tmp_path) -> None:
    twice = "  - {type: tls, service: a, host: x}\n  - {type: tls, service: a, host: y}\n"
    with pytest.raises(ConfigError, match="duplicate probe name 'tls-a'"):
        settings.load(written(tmp_path, twice))


# --- by hand --------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, dict]:
    result = CliRunner().invoke(app, [*arguments, "-o", "json"], standalone_mode=False)
    code = result.return_value if result.exception is None else 99
    return code, json.loads(result.stdout) if result.stdout.startswith("{") else {"error": result.exception}


def test_an_endpoint_is_probed_by_command(base_url) -> None:
    code, found = run("probe", "--url", f"{base_url}/v1", "--model", "m")
    (row,) = found["probes"]
    assert (code, row["success"], row["outcome"], row["type"], row["tokens"]) == (0, True, "ok", "generation", 1)
    assert row["address"] == f"{base_url}/v1/chat/completions"
    assert row["ttft_seconds"] > 0
    code, found = run("probe", "--url", f"{base_url}/v1", "--model", "hung", "--timeout", "300ms", "--lang", "zh")
    (row,) = found["probes"]
    assert (code, row["success"], row["outcome"]) == (1, False, "no_generation")
    assert (row["means"], row["status"], row["tokens"]) == ("返回 HTTP 200 但未生成 token", 200, 0)
    code, found = run("probe", "--url", f"{base_url}/", "--timeout", "5s")
    assert (code, found["probes"][0]["type"]) == (0, "http")


def test_configured_probes_are_run_by_command(tmp_path, base_url) -> None:
    lines = (
        f"  - {{type: http, name: page, service: chat, url: '{base_url}/'}}\n"
        f"  - {{type: http, name: gone, service: chat, url: '{base_url}/gone'}}\n"
    )
    config = ("--config", str(written(tmp_path, lines)))
    code, found = run("probe", *config)
    assert (code, [row["outcome"] for row in found["probes"]]) == (1, ["ok", "http_status"])
    code, found = run("probe", "page", *config)
    assert (code, len(found["probes"])) == (0, 1)
    _, found = run("probe", "pge", *config)
    assert 'did you mean "page"?' in str(found["error"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "chat.example"), "cannot be probed"),
        (("--url", "http://x", "--type", "telnet"), "--type"),
        (("--url", "http://x", "--max-tokens", "0"), "--max-tokens"),
        (("--url", "http://x", "--timeout", "soon"), "--timeout"),
        (("--url", "grpc://x"), "expected grpc://host:port"),
        (("--url", "http://[x"), "is not a URL"),
    ],
)
def test_endpoints_that_cannot_be_probed_are_reported(arguments, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, found = run("probe", *arguments)
    assert message in str(found["error"])


def test_without_probes_the_command_hints_at_an_endpoint(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, found = run("probe")
    assert "no probes are configured" in str(found["error"])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_outcome_has_a_text(language) -> None:
    assert [one for one in Outcome if f"collect.probe.{one.value}" not in i18n.texts(language)] == []


def test_the_rules_of_the_how_to_are_valid(tmp_path) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/probe-a-service.md").read_text(encoding="utf-8")
    (block,) = [one for one in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if one.startswith("version")]
    file = tmp_path / "rules.yaml"
    file.write_text(block, encoding="utf-8")
    packaged = {rule.name for rule in rule_files.load_rules([])}
    rules = [rule for rule in rule_files.load_rules([file]) if rule.name not in packaged]
    assert [rule.name for rule in rules] == ["probe-failed", "does-not-generate", "certificate-expires"]
    keys = [SignalKey(name) for name in ("probe_success", "probe_outcome_code", "probe_cert_expiry_seconds")]
    values = np.array([[0, Outcome.NO_GENERATION.code, 1e6]])
    batch = SampleBatch("probes", START, EntityKind.SERVICE, tuple(keys), (CHAT,), values, np.zeros((1, 3), np.uint8))
    cache = WindowCache({EntityKind.SERVICE: keys}, 4)
    cache.push(START, [batch])
    found = set()
    for detector in threshold.compile_rules(rules):
        window = cache.window(EntityKind.SERVICE, detector.keys, timedelta(minutes=1), timedelta(seconds=15))
        _, seen = detector.detect(detector.initial(), window, Topology(), START)
        found |= {one.detector for one in seen if isinstance(one, Finding)}
    assert len(found) == 3
