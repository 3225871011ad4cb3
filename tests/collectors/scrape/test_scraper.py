"""A failing target gives one error message and delays no other target."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from bad_servers import PAGE, serving  # type: ignore[import-not-found]

from collectors.mapping import registry
from collectors.mapping.load_endpoint import load_of_spellings, requests_in_flight
from collectors.mapping.target import target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.engine_health import load_of
from collectors.scrape.scraper import Scraper
from outrider.errors import CollectReason
from outrider.model import CellStatus, SignalKey
from outrider.wire.http_auth import Access

AT = datetime(2026, 3, 1, tzinfo=UTC)


@asynccontextmanager
async def served():
    async with serving() as base, Scraper() as scraper:
        yield scraper, base


def target(base, path, **more):
    document = {"name": path or "x", "adapter": "vllm", "url": f"{base}/{path}", "probe": False, "timeout": 2, **more}
    return target_of("test", document)


async def scrape(path, **more):
    async with served() as (scraper, base):
        return await scraper.scrape_one(target(base, path, **more), at=AT)


def test_a_scraped_page() -> None:
    result = asyncio.run(scrape("good"))
    assert result.body == PAGE
    assert result.error is None
    assert result.at == AT
    assert result.duration_seconds > 0
    assert not result.probed


@pytest.mark.parametrize(
    ("path", "reason", "words"),
    [
        ("html", CollectReason.NOT_METRICS, "text/html instead of metrics"),
        ("load", CollectReason.NOT_METRICS, "application/json instead of metrics"),
        ("redirect", CollectReason.REDIRECT, "redirects to"),
        ("broken", CollectReason.HTTP_STATUS, "HTTP 503"),
        ("nothing", CollectReason.HTTP_STATUS, "HTTP 404"),
        ("half", CollectReason.TRUNCATED, "closed the connection within"),
        ("slam", CollectReason.RESET, "closed the connection"),
    ],
)
def test_failed_responses(path, reason, words) -> None:
    result = asyncio.run(scrape(path))
    assert result.body is None
    assert result.error.reason == reason
    assert words in result.error.message
    assert result.error.message.startswith(f"{path}: ")
    assert "\n" not in result.error.message
    assert result.error.hint


@pytest.mark.parametrize("path", ["hang", "trickle"])
def test_a_deadline_for_the_whole_scrape(path) -> None:
    result = asyncio.run(scrape(path, timeout=0.2))
    assert result.error.reason == CollectReason.TIMEOUT
    assert "no complete page" in result.error.message


def test_an_endless_page_stops_at_the_limit() -> None:
    result = asyncio.run(scrape("endless", limit_bytes=1_000_000, timeout=30))
    assert result.error.reason == CollectReason.TOO_LARGE


def test_the_limit_applies_to_decompressed_bytes() -> None:
    assert asyncio.run(scrape("zipped")).body == PAGE * 10_000
    assert asyncio.run(scrape("zipped", limit_bytes=10_000)).error.reason == CollectReason.TOO_LARGE


def test_openmetrics_is_recognized_by_its_content_type() -> None:
    assert asyncio.run(scrape("openmetrics")).openmetrics is True
    assert asyncio.run(scrape("good")).openmetrics is False


def test_a_closed_port_is_a_refused_connection() -> None:
    async def one():
        async with served() as (_, base):
            closed = base
        async with Scraper() as scraper:
            return await scraper.scrape_one(target(closed, "good", probe=True), at=AT)

    result = asyncio.run(one())
    assert result.error.reason == CollectReason.REFUSED
    assert result.probed
    assert result.health is None


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "not a url", "http://"])
def test_an_invalid_url_is_rejected(url) -> None:
    async def one():
        async with Scraper() as scraper:
            return await scraper.scrape_one(replace(target("", "x"), url=url), at=AT)

    assert asyncio.run(one()).error is not None


def test_https_to_a_plain_port_is_a_tls_failure() -> None:
    async def one():
        async with served() as (scraper, base):
            return await scraper.scrape_one(target(base.replace("http:", "https:"), "good"), at=AT)

    assert asyncio.run(one()).error.reason == CollectReason.TLS


def test_bad_targets_do_not_delay_others() -> None:
    async def round_of_targets():
        async with served() as (scraper, base):
            bad = [
                target(base, path, name=f"{path}-{n}", timeout=30) for path in ("hang", "trickle") for n in range(20)
            ]
            tasks = [asyncio.create_task(scraper.scrape_one(one, at=AT)) for one in bad]
            # Were the good ones to wait for the bad, this would run into the deadline.
            async with asyncio.timeout(15):
                result = await scraper.scrape([target(base, "good", name=f"good-{n}") for n in range(20)], at=AT)
            assert not any(task.done() for task in tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return result

    assert [one.body for one in asyncio.run(round_of_targets())] == [PAGE] * 20


def test_the_health_probe_of_a_scrape() -> None:
    result = asyncio.run(scrape("good", probe=True))
    assert (result.probed, result.health, result.load) == (True, 200, 7.0)


def test_the_health_probe_without_load_tracking() -> None:
    async def one():
        async with served() as (scraper, base):
            probed = target(base, "broken", probe=True, load_url=f"{base}/nothing", health_url=f"{base}/broken")
            return await scraper.scrape_one(probed, at=AT)

    result = asyncio.run(one())
    assert (result.health, result.load) == (503, None)
    assert result.error.reason == CollectReason.HTTP_STATUS


@pytest.mark.slow
def test_a_silent_load_endpoint_delays_neither_health_nor_page() -> None:
    async def one(**endpoints):
        # Long enough for an endpoint on a busy host, and far from the target's minute.
        async with serving() as base, Scraper(health_timeout=timedelta(seconds=2)) as scraper:
            urls = {"health_url": f"{base}/good", "load_url": f"{base}/load"}
            probed = target(
                base, "good", probe=True, timeout=60, **{**urls, **{k: base + v for k, v in endpoints.items()}}
            )
            async with asyncio.timeout(20):  # the page is there at once; the target's own timeout is a minute
                return await scraper.scrape_one(probed, at=AT)

    for path in ("/hang", "/trickle"):
        result = asyncio.run(one(load_url=path))
        assert (result.body, result.health, result.load) == (PAGE, 200, None)
    result = asyncio.run(one(health_url="/hang"))
    assert (result.body, result.health, result.load) == (PAGE, None, 7.0)


@pytest.mark.slow
def test_outside_a_cycle_a_silent_endpoint_uses_the_target_timeout() -> None:
    async def one():
        async with served() as (scraper, base):
            probed = target(base, "good", probe=True, timeout=3, load_url=f"{base}/hang")
            return await scraper.scrape_one(probed, at=AT)

    result = asyncio.run(one())
    assert (result.health, result.load) == (200, None)


ODD = (
    *("[]", "{}", "nonsense", '{"server_load": "many"}', "[" * 16_000, f'{{"server_load": 1{"0" * 400}}}'),
    *('{"server_load": NaN}', '{"server_load": Infinity}', '{"server_load": -1}', "[[]]", '{"loads": []}', "null"),
)


@pytest.mark.parametrize("body", ODD, ids=lambda body: body[:24])
def test_invalid_load_responses_are_none(body) -> None:
    assert load_of("vllm", 200, body.encode()) is None
    assert load_of("sglang", 200, body.encode()) is None
    assert load_of("vllm", 200, json.dumps({"server_load": 0}).encode()) == 0.0


@pytest.mark.parametrize("load", [float("nan"), float("inf"), -1.0])
def test_an_invalid_number_of_requests_is_absent(bench, load) -> None:
    target = bench("vllm")
    target.scrape("vllm:num_requests_running 1\n", probed=True, health=200, load=load)
    assert target.cell("engine_inflight_requests") == CellStatus.UNTRUSTED
    assert target.cell("engine_health_ok") == 1


def test_the_load_of_sglang_is_the_sum_of_its_ranks() -> None:
    now = {"loads": [{"dp_rank": rank, "num_running_reqs": 3, "num_waiting_reqs": rank} for rank in (0, 1)]}
    before = [{"dp_rank": rank, "num_reqs": 4, "num_waiting_reqs": 1} for rank in (0, 1)]
    assert load_of("sglang", 200, json.dumps(now).encode()) == 7.0
    assert load_of("sglang", 200, json.dumps(before).encode()) == 8.0
    assert load_of("sglang", 404, json.dumps(now).encode()) is None


@pytest.mark.parametrize(
    ("spellings", "expected", "load"),
    [
        (("server_load",), {"server_load": 3}, 3.0),
        (("queue.running + queue.waiting",), {"queue": {"running": 2, "waiting": 5}}, 7.0),
        (("queue.running + queue.waiting",), {"queue": {"running": 2}}, None),  # a part of a sum is no sum
        (("new.n", "old"), {"old": 4}, 4.0),
        (("new.n", "old"), {"new": {"n": 1}, "old": 4}, 1.0),
        (("new.n", "old"), {"new": {"n": "many"}, "old": 4}, 4.0),
        (("*.n",), [{"n": 1}, {"n": 2}], 3.0),
        (("*.n",), {"a": {"n": 1}, "b": {"n": 2}}, 3.0),
        (("*.n",), [{"n": 1}, {}], None),
        (("*.n",), [], None),  # nobody is listed: nothing is known
        (("*.ranks.*",), [{"ranks": [1, 2]}, {"ranks": [4]}], 7.0),
        (("*.busy",), [{"busy": True}, {"busy": False}, {"busy": True}], 2.0),
        (("n",), {"n": -1}, None),
        (("a + b",), {"a": -1, "b": 3}, None),
        (("*",), [1e308, 1e308, 1e308], None),
        (("sglang_loads",), {"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 2}]}, 3.0),
        (("sglang_loads",), [{"num_reqs": 5}], 5.0),
    ],
)
def test_paths_into_the_load_response(spellings, expected, load) -> None:
    assert requests_in_flight(load_of_spellings(spellings), expected) == load


OWN = """adapter: acme_load
title: Acme
target: replica
probe: {health: /ready, load: /status, load_as: "*.busy"}
up: engine_up
health: engine_health_ok
load: engine_inflight_requests
entities: {replica: {target: true}}
signals: {engine_requests_running: {gauge: acme_running}}
"""


def test_an_adapter_file_can_describe_a_load_endpoint(tmp_path) -> None:
    (tmp_path / "acme.yaml").write_text(OWN, encoding="utf-8")
    registry.add(tmp_path / "acme.yaml")

    async def page(request):
        return web.Response(text="acme_running 3\n")

    async def status(request):
        return web.json_response([{"busy": True}, {"busy": False}, {"busy": True}])

    async def one():
        async with serving({"page": page, "status": status, "ready": page}) as base, Scraper() as scraper:
            own = target_of("test", {"name": "a", "adapter": "acme_load", "url": f"{base}/page"})
            return await scraper.scrape_one(own, at=AT)

    try:
        result = asyncio.run(one())
        assert (result.health, result.load) == (200, 2.0)
        cells = ScrapeManager([result.target]).absorb([result], AT).batches[0]
        assert cells.values[0, cells.keys.index(SignalKey("engine_inflight_requests"))] == 2
    finally:
        registry.ADAPTERS.pop("acme_load")
        registry.adapter.cache_clear()


@pytest.mark.parametrize(
    ("adapter", "url", "health", "load"),
    [
        ("vllm", "http://a:8000/metrics", "http://a:8000/health", "http://a:8000/load"),
        ("vllm", "http://a:8000/behind/metrics", "http://a:8000/behind/health", "http://a:8000/behind/load"),
        ("sglang", "http://a:30000/metrics", "http://a:30000/health", "http://a:30000/v1/loads?include=core"),
        ("trtllm_serve", "http://a:8000/prometheus/metrics", "http://a:8000/health", ""),
        ("nim", "http://a:8000/v1/metrics", "http://a:8000/v1/health/ready", ""),
        ("nim", "http://a:8000/metrics", "http://a:8000/v1/health/ready", ""),
        ("triton", "http://a:8002/metrics", "http://a:8000/v2/health/ready", ""),
        ("triton", "http://a:9999/metrics", "", ""),
        ("mindie", "http://a:1027/metrics", "http://a:1026/v2/health/ready", ""),
        ("tgi", "http://a/metrics", "http://a/health", ""),
    ],
)
def test_probe_paths_of_engines(adapter, url, health, load) -> None:
    result = target_of("test", {"name": "a", "adapter": adapter, "url": url})
    assert (result.probe, result.health_url, result.load_url) == (True, health, load)


def test_a_default_endpoint_without_response_reports_nothing(bench) -> None:
    for document, wanted in (({}, CellStatus.ABSENT), ({"health_url": "http://a:8000/ready"}, 0.0)):
        target = bench("triton", url="http://a:8002/metrics", **document)
        target.scrape("nv_inference_pending_request_count 1\n", probed=True, health=None)
        assert target.cell("engine_health_ok") == wanted


def test_headers_and_rotating_tokens(tmp_path) -> None:
    token = tmp_path / "token"

    async def twice():
        async with served() as (scraper, base):
            one = target(base, "headers", access=Access(bearer_token_file=token, headers={"X-Own": "mine"}))
            bodies = []
            for text in ("first\n", "second\n"):
                token.write_text(text, encoding="utf-8")
                bodies.append((await scraper.scrape_one(one, at=AT)).body.decode())
            token.unlink()
            return bodies, await scraper.scrape_one(one, at=AT)

    bodies, without = asyncio.run(twice())
    assert 'authorization="Bearer first",own="mine"' in bodies[0]
    assert "Bearer second" in bodies[1]
    assert "token file" in without.error.message


def test_timeouts_are_durations() -> None:
    assert target("http://x", "y", timeout=1.5).timeout == timedelta(seconds=1.5)
