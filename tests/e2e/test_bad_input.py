"""Whatever comes in: one clear sentence, nobody delayed, nothing lost, and the cycle never raises."""

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
# what each of them does, and what its sentence must say beside its name
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
    """An engine of our own: what it says next is set by the test."""

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
            nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/metrics"
        documents = [
            {
                "name": name,
                "adapter": "vllm",
                "url": nobody if name == "refused" else f"{base}/{name}",
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
        """What the last round said of the good engine: a value, else the status that says why there is none."""
        now = self.clock.now()
        good = self.collector.targets[0].entity
        window = self.cycle.parts.metrics.read_windows(EntityKind.REPLICA, [key], now, now + STEP, STEP, [good])
        (value,), (status,) = window.values.ravel(), window.status.ravel()
        return float(value) if status == CellStatus.PRESENT else CellStatus(int(status))


@asynccontextmanager
async def world(*others):
    engine = Engine()
    more = {GOOD: engine.page, "cut": cut, "failing": failing, "garbage": garbage}
    async with serving(more) as base:
        made = World(base, (GOOD, *others))
        try:
            yield made, engine
        finally:
            await made.cycle.parts.source.close()


def play(scene, *others):
    async def whole():
        async with world(*others) as (made, engine):
            await scene(made, engine)

    asyncio.run(whole())


def test_each_bad_target_costs_one_sentence_and_the_good_one_nothing():
    async def scene(made, engine):
        for number in range(3):
            engine.tokens += 500.0
            record = await made.step()
            assert (record.targets, record.targets_up) == (1 + len(BAD), 1)
            assert made.cell(RUNNING) == 3.0
            assert made.cell(KV) == 0.25
            assert made.cell(TOKENS) == (500.0 if number else CellStatus.ABSENT)
        errors = made.errors()
        assert errors[GOOD] is None
        for name, said in BAD.items():
            assert errors[name].startswith(f"{name}: "), errors[name]
            assert said in errors[name], errors[name]
            assert "\n" not in errors[name]
            assert len(errors[name]) < 250

    play(scene, *BAD)


def test_a_value_that_is_no_number_is_never_a_value():
    async def scene(made, engine):
        await made.step()
        engine.running, engine.kv, engine.tokens = "NaN", "NaN", 1500.0
        await made.step()
        assert made.errors() == {GOOD: None}
        assert made.cell(RUNNING) not in (0.0, 3.0)
        assert isinstance(made.cell(RUNNING), CellStatus)
        assert isinstance(made.cell(KV), CellStatus)
        assert made.cell(TOKENS) == 500.0
        engine.running, engine.kv = "4.0", "0.5"
        await made.step()
        assert (made.cell(RUNNING), made.cell(KV)) == (4.0, 0.5)

    play(scene)


def test_a_counter_that_starts_again_gives_no_negative_and_no_leap():
    async def scene(made, engine):
        for tokens in (1000.0, 1500.0):
            engine.tokens = tokens
            await made.step()
        engine.tokens = 40.0
        await made.step()
        assert made.cell(TOKENS) is CellStatus.RESET
        engine.tokens = 240.0
        await made.step()
        assert made.cell(TOKENS) == 200.0
        window = made.cycle.parts.metrics.read_windows(EntityKind.REPLICA, [TOKENS], START, START + 9 * STEP, STEP)
        values = window.values[~np.isnan(window.values)]
        assert sorted(values) == [200.0, 500.0]

    play(scene)


def test_a_clock_that_jumps_back_decides_nothing_and_goes_on():
    async def scene(made, engine):
        for _ in range(3):
            engine.tokens += 500.0
            await made.step()
        made.clock.set(START - timedelta(hours=1))
        engine.tokens += 500.0
        held = await made.step()
        assert (held.targets_up, held.findings, held.incidents_open) == (1, 0, 0)
        assert held.signals_written > 0
        assert "clock_stepped_back" in [entry.event for entry in made.cycle.parts.state.audit()]
        for _ in range(3):
            engine.tokens += 500.0
            record = await made.step()
        assert (record.targets_up, record.incidents_open) == (1, 0)
        kept = made.cycle.parts.metrics.read_windows(EntityKind.REPLICA, [RUNNING], START, START + 9 * STEP, STEP)
        assert np.count_nonzero(kept.values == 3.0) == 3, "what was known before the jump is still there"

    play(scene)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("collect:\n  interval: [15s\n", "outrider.yaml:"),
        ("collect:\n  intervall: 15s\n", "intervall"),
        ("collect:\n  interval: soon\n", "soon"),
    ],
)
def test_a_broken_configuration_is_one_sentence_with_its_line(tmp_path, text, said):
    (tmp_path / "outrider.yaml").write_text(text)
    command = [sys.executable, "-m", "service.cli", "run-engine", "-o", "json"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert said in error["message"]
    assert "outrider.yaml" in error["message"]
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".outrider").exists()
