"""Bad input: one clear error per target, no delay for others, no lost values, and the cycle never raises."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from bad_servers import serving  # type: ignore[import-not-found]

from collectors.mapping.target import targets_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.scraper import Scraper
from outrider.clock import ManualClock
from outrider.model import CellStatus, EntityKind, SignalKey
from service.config.settings import Settings
from service.wiring import platform

ROOT = Path(__file__).parents[2]
START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
GOOD = "good-engine"
# behavior of each server: text of its error
BAD = {
    "refused": "refuses connections",
    "hang": "gave no complete page within 400ms",
    "trickle": "gave no complete page within 400ms",
    "html": "text/html instead of metrics",
    "half": "closed the connection within the page",
    "cut": "is truncated before the end of its last line",
    "endless": "the page exceeds 200000 bytes",
    "failing": "returned HTTP 500",
    "slam": "closed the connection without a response",
    "garbage": "binary instead of text",
}
TOKENS = SignalKey("engine_generation_tokens_total")
RUNNING = SignalKey("engine_requests_running")
KV = SignalKey("engine_kv_cache_usage_ratio")


class Engine:
    """An engine whose metrics are set by the test."""

    def __init__(self) -> None:
        self.tokens, self.running, self.kv = 1000.0, "3.0", "0.25"

    async def page(self, request):
        labels = '{engine="0",model_name="m"}'
        lines = [
            f"vllm:num_requests_running{labels} {self.running}",
            f"vllm:num_requests_waiting{labels} 0.0",
            f"vllm:kv_cache_usage_perc{labels} {self.kv}",
            f"vllm:generation_tokens_total{labels} {self.tokens}",
        ]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")


async def cut(request):
    return web.Response(text="vllm:num_requests_running 3\nvllm:num_requests_wait", content_type="text/plain")


async def failing(request):
    return web.Response(status=500, text="out of memory")


async def garbage(request):
    return web.Response(body=bytes(range(256)) + b"\n", content_type="text/plain")


class World:
    """The whole loop over HTTP, one good engine among others."""

    def __init__(self, base, names) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            unused = f"http://127.0.0.1:{closed.getsockname()[1]}/metrics"
        documents = [
            {
                "name": name,
                "adapter": "vllm",
                "url": unused if name == "refused" else f"{base}/{name}",
                "labels": {"service": "s"},
                "timeout": 20 if name == GOOD else 3 if name == "endless" else 0.4,
                "limit_bytes": 200_000,
            }
            for name in names
        ]
        self.clock = ManualClock(START)
        self.collector = ScrapeManager(targets_of("c", documents), Scraper())
        self.cycle = platform.cycle_in_memory(Settings(), self.collector, self.clock, interval=STEP)

    async def step(self):
        self.clock.advance(STEP)
        return await self.cycle.run()

    def errors(self):
        return {health.target: health.error for health in self.collector.health}

    def cell(self, key):
        """Returns the last value of the good engine, otherwise its cell status."""
        now = self.clock.now()
        good = self.collector.targets[0].entity
        window = self.cycle.parts.metrics.read_windows(EntityKind.REPLICA, [key], now, now + STEP, STEP, [good])
        (value,), (status,) = window.values.ravel(), window.status.ravel()
        return float(value) if status == CellStatus.PRESENT else CellStatus(int(status))


@asynccontextmanager
async def world(*others):
    engine = Engine()
    pages = {GOOD: engine.page, "cut": cut, "failing": failing, "garbage": garbage}
    async with serving(pages) as base:
        loop = World(base, (GOOD, *others))
        try:
            yield loop, engine
        finally:
            await loop.cycle.parts.source.close()


def play(scene, *others):
    async def whole():
        async with world(*others) as (loop, engine):
            await scene(loop, engine)

    asyncio.run(whole())


def test_each_bad_target_has_an_error_and_does_not_affect_the_good_one():
    async def scene(loop, engine):
        for number in range(3):
            engine.tokens += 500.0
            record = await loop.step()
            assert (record.targets, record.targets_up) == (1 + len(BAD), 1)
            assert loop.cell(RUNNING) == 3.0
            assert loop.cell(KV) == 0.25
            assert loop.cell(TOKENS) == (500.0 if number else CellStatus.ABSENT)
        errors = loop.errors()
        assert errors[GOOD] is None
        for name, message in BAD.items():
            assert errors[name].startswith(f"{name}: "), errors[name]
            assert message in errors[name], errors[name]
            assert "\n" not in errors[name]
            assert len(errors[name]) < 250

    play(scene, *BAD)


def test_nan_is_never_a_value():
    async def scene(loop, engine):
        await loop.step()
        engine.running, engine.kv, engine.tokens = "NaN", "NaN", 1500.0
        await loop.step()
        assert loop.errors() == {GOOD: None}
        assert loop.cell(RUNNING) not in (0.0, 3.0)
        assert isinstance(loop.cell(RUNNING), CellStatus)
        assert isinstance(loop.cell(KV), CellStatus)
        assert loop.cell(TOKENS) == 500.0
        engine.running, engine.kv = "4.0", "0.5"
        await loop.step()
        assert (loop.cell(RUNNING), loop.cell(KV)) == (4.0, 0.5)

    play(scene)


def test_a_counter_reset_gives_no_negative_and_no_excessive_increase():
    async def scene(loop, engine):
        for tokens in (1000.0, 1500.0):
            engine.tokens = tokens
            await loop.step()
        engine.tokens = 40.0
        await loop.step()
        assert loop.cell(TOKENS) is CellStatus.RESET
        engine.tokens = 240.0
        await loop.step()
        assert loop.cell(TOKENS) == 200.0
        window = loop.cycle.parts.metrics.read_windows(EntityKind.REPLICA, [TOKENS], START, START + 9 * STEP, STEP)
        values = window.values[~np.isnan(window.values)]
        assert sorted(values) == [200.0, 500.0]

    play(scene)


def test_a_clock_that_steps_back_suspends_decisions_and_the_cycle_continues():
    async def scene(loop, engine):
        for _ in range(3):
            engine.tokens += 500.0
            await loop.step()
        loop.clock.set(START - timedelta(hours=1))
        engine.tokens += 500.0
        suspended = await loop.step()
        assert (suspended.targets_up, suspended.findings, suspended.incidents_open) == (1, 0, 0)
        assert suspended.signals_written > 0
        assert "clock_stepped_back" in [entry.event for entry in loop.cycle.parts.state.audit()]
        for _ in range(3):
            engine.tokens += 500.0
            record = await loop.step()
        assert (record.targets_up, record.incidents_open) == (1, 0)
        window = loop.cycle.parts.metrics.read_windows(EntityKind.REPLICA, [RUNNING], START, START + 9 * STEP, STEP)
        assert np.count_nonzero(window.values == 3.0) == 3, "values before the step remain"

    play(scene)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("collect:\n  interval: [15s\n", "outrider.yaml:"),
        ("collect:\n  intervall: 15s\n", "intervall"),
        ("collect:\n  interval: soon\n", "soon"),
    ],
)
def test_a_broken_configuration_is_an_error_with_its_line(tmp_path, text, message):
    (tmp_path / "outrider.yaml").write_text(text)
    command = [sys.executable, "-m", "service.cli", "run-engine", "-o", "json"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert message in error["message"]
    assert "outrider.yaml" in error["message"]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".outrider").exists()
