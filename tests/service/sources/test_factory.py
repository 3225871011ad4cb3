"""Targets from a configuration: an endpoint that hangs never delays a scrape into the next cycle."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from aiohttp import web

from collectors.pipeline.scrape_manager import ScrapeManager
from outrider.clock import SystemClock
from service.config.settings import Settings
from service.sources import factory

PAGE = 'vllm:num_requests_running{engine="0"} 3\n'


async def _hang(_: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def _page(_: web.Request) -> web.Response:
    return web.Response(text=PAGE)


def test_a_hanging_load_endpoint_does_not_delay_scrape_and_health() -> None:
    async def one_round() -> tuple[ScrapeManager, float]:
        app = web.Application()
        app.add_routes([web.get("/metrics", _page), web.get("/health", _page), web.get("/load", _hang)])
        runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
        # a round closes after 4 s; by itself the target would be waited for as long as its own 60 s
        one = {"name": "a", "adapter": "vllm", "url": url, "timeout": "60s", "entity": {"kind": "replica", "name": "a"}}
        settings = Settings.model_validate({"collect": {"interval": "16s", "targets": [one]}})
        source = factory.source(settings, SystemClock())
        assert isinstance(source.pages, ScrapeManager)
        begun = time.monotonic()
        try:
            await source.collect(SystemClock().now())
            return source, time.monotonic() - begun
        finally:
            await source.close()
            await runner.cleanup()

    source, seconds = asyncio.run(one_round())
    (health,) = source.health
    assert (health.up, health.late, health.error) == (True, False, None)
    assert seconds < 4


@pytest.mark.parametrize(("interval", "spread"), [(15, 1), (15, 0), (4, 1), (1, 1), (1, 30)])
def test_the_endpoint_timeout_leaves_time_for_the_last_scrape_of_a_cycle(interval: int, spread: int) -> None:
    deadline, later = timedelta(seconds=interval) / 4, timedelta(seconds=spread)
    timeout_ = factory.endpoint_timeout(deadline, later)
    assert timedelta(0) < timeout_ < deadline
    assert later >= deadline / 2 or later + timeout_ < deadline
