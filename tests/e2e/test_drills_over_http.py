"""In-process pages and pages scraped over HTTP give the same incidents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from collectors.mapping import target as configured
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.scraper import Scraper
from collectors.scrape.target_health import TargetHealth
from outrider.ports import Collected
from service.config.settings import Settings
from service.drills import runner
from service.drills.private_platform import PrivatePlatform, open_platform
from service.sources.composite_source import CompositeSource
from service.sources.event_source import EventContributor, event_sources
from simulator.scenarios import PlannedFault, Scenario
from simulator.scoring.run import Run
from simulator.servers import http
from simulator.servers.log_and_api_endpoints import event_settings
from simulator.world import World

MINUTE = timedelta(minutes=1)
SCENARIOS = {
    "engine-hung": Scenario("engine-hung", (PlannedFault("engine-hung", MINUTE, 4 * MINUTE),), load="bursty"),
    "engine-dead": Scenario("engine-dead", (PlannedFault("engine-dead", MINUTE, 4 * MINUTE),)),
    "gpu-lost": Scenario("gpu-lost", (PlannedFault("gpu-lost", MINUTE, 4 * MINUTE),)),
    "exporter-down": Scenario("exporter-down", (PlannedFault("exporter-down", MINUTE, 4 * MINUTE),)),
    "two at once": Scenario(
        "two-at-once",
        (
            PlannedFault("gpu-thermal-throttle", MINUTE, 5 * MINUTE),
            PlannedFault("engine-core-dead", 2 * MINUTE, 4 * MINUTE),
        ),
    ),
}


class OverHttp:
    """A world served over HTTP: pages by the real scraper, events by the HTTP endpoints, in step with the cycle."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._on_loop(http.serve(world))
        self._collector = ScrapeManager([], Scraper())
        written = {"cluster": world.home.spec.cluster, "events": event_settings(self._server.base_url)}
        events = EventContributor(event_sources(Settings.model_validate(written)), self._collector)
        self._source = CompositeSource(self._collector, (events,))
        self.scrapes = self.events = 0

    def _on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    @property
    def health(self) -> list[TargetHealth]:
        return self._collector.health

    async def collect(self, at: datetime) -> Collected:
        return self.collect_now(at)

    def collect_now(self, at: datetime) -> Collected:
        self._on_loop(self._server.sync())
        listed = self._server.targets()
        targets = configured.targets_of(listed["cluster"], listed["targets"])
        if targets != self._collector.targets:
            self._collector.set_targets(targets)
        collected: Collected = self._on_loop(self._source.collect(at))
        self.scrapes += sum(health.up is True for health in self._collector.health)
        self.events += len(collected.events)
        return collected

    async def close(self) -> None:
        """Closed by ``shut``, on its own loop."""

    def shut(self) -> None:
        self._on_loop(self._source.close())
        self._on_loop(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def over_http(patched: pytest.MonkeyPatch) -> Iterator[list[OverHttp]]:
    opened: list[OverHttp] = []

    def private(world: World, **more: Any) -> PrivatePlatform:
        platform = open_platform(world, **more)
        source = OverHttp(world)
        opened.append(source)
        platform.source = source  # type: ignore[assignment]
        platform.cycle.parts.source = source
        return platform

    try:
        with patched.context() as patch:
            patch.setattr(runner, "open_platform", private)
            yield opened
    finally:
        for source in opened:
            source.shut()


def incidents_of(run: Run) -> list[Any]:
    return [(i.opened_at, i.resolved_at, i.priority, i.hypotheses, i.paged_at) for i in run.incidents]


@pytest.mark.fleet
@pytest.mark.parametrize(
    "name", [name if name == "gpu-lost" else pytest.param(name, marks=pytest.mark.slow) for name in SCENARIOS]
)
def test_pages_over_http_give_the_same_incidents(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job = runner.Job(SCENARIOS[name], 5)
    in_process = runner.run(job)
    with over_http(monkeypatch) as sources:
        scraped = runner.run(job)
    assert sources[0].scrapes > 30 * 25, "pages were scraped over HTTP"
    assert sources[0].events or name != "gpu-lost", "and a kernel-log line"
    assert incidents_of(scraped) == incidents_of(in_process)
    assert [fault.entity for fault in scraped.injected] == [fault.entity for fault in in_process.injected]
    assert in_process.incidents or name == "exporter-down"
