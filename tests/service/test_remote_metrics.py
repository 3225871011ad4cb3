"""A whole platform with its values in a real VictoriaMetrics, and the migration from a database."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from outrider.clock import ManualClock, rfc3339
from outrider.errors import UsageError
from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey
from service.api.app import create_app
from service.cli.tree import app
from service.config.settings import Settings
from service.ops import history_copy
from service.ops.demo import settings_of
from service.wiring import api as wiring_api
from service.wiring import platform as wiring_platform
from service.wiring import stores as wiring_stores
from simulator.fleet import Fleet
from simulator.servers import http
from simulator.spec.fleets import default_spec
from store.factory import open_metrics, open_state, urls_of
from store.remote import backfill
from store.remote.metric_store import PrometheusMetricStore
from tests.support import metric_servers
from tests.support.metric_servers import MetricServer

START = datetime(2026, 3, 4, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)
BUSY, ENERGY = SignalKey("hw_accel_utilization_ratio"), SignalKey("hw_accel_energy_joules_total")
UP, P99 = SignalKey("target_up"), SignalKey("engine_ttft_seconds", quantile=0.99)
Round = Callable[[], Awaitable[None]]
Story = Callable[[wiring_platform.Platform, Round], Awaitable[None]]


def with_server(server: MetricServer) -> dict[str, Any]:
    return {"url_write": f"{server.url}/api/v1/write", "url_read": server.url, "retry_for": "500ms"}


def got(api: Any, path: str) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app=api)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8600") as client:
            return await client.get(f"/api/v1/{path}")

    return asyncio.run(run())


async def watching(
    folder: Path, metrics: dict[str, Any], story: Callable[[wiring_platform.Platform, Round], Awaitable[None]]
) -> Settings:
    """A small fleet under load and the platform that watches it; ``story`` sets when a cycle runs."""
    spec = default_spec()
    fleet = Fleet(replace(spec, services=tuple(replace(one, replicas=2) for one in spec.services)), seed=5, start=START)
    server = await http.serve(fleet)
    written = settings_of(fleet.spec, server.base_url, server.targets()["targets"], 8501, 8600)
    store = {"url": f"sqlite:///{folder}/o.db", "metrics": metrics, "spool": {"folder": str(folder / "spool")}}
    settings = Settings.model_validate({**written, "store": store})
    clock = ManualClock(fleet.now)
    platform = wiring_platform.platform(settings, clock, lockstep=True)

    async def round_() -> None:
        fleet.step(STEP)
        clock.set(fleet.now)
        await server.sync()
        await platform.cycle.run()

    try:
        await story(platform, round_)
    finally:
        await platform.close()
        await server.close()
    return settings


@pytest.mark.slow
def test_a_platform_keeps_its_values_over_an_outage_of_the_server(tmp_path: Path) -> None:
    why = metric_servers.missing(("victoria-metrics",))
    if why is not None:
        pytest.skip(why)
    with metric_servers.victoria(tmp_path) as server:

        async def story(platform: wiring_platform.Platform, cycle: Round) -> None:
            assert isinstance(platform.metrics, PrometheusMetricStore)
            for _ in range(3):
                await cycle()
            server.stop()
            for _ in range(2):
                await cycle()
            assert platform.spool.status().cycles == 2
            server.start()
            for _ in range(2):
                await cycle()
            assert platform.spool.status().cycles == 0

        settings = asyncio.run(watching(tmp_path, with_server(server), story))
        server.flush()
        state_url, metrics_url = urls_of(settings.store.url)
        state, metrics = open_state(state_url), open_metrics(metrics_url, wiring_stores.remote_of(settings))
        window = metrics.read_windows(EntityKind.GPU, [BUSY], START, START + 8 * STEP, STEP)
        assert len(window.entities) == 64
        found = (window.status == CellStatus.PRESENT).all(axis=(0, 2))
        assert found.tolist() == [False, *[True] * 7], "every cycle came over, those of the outage too"
        assert len(state.cycles()) == 7
        api = create_app(state, metrics, wiring_api.api_settings(settings))
        shown = got(api, f"signals/{P99.name}/series?step=15s").json()["series"]
        assert len(shown) >= 4
        assert any(value is not None for one in shown for value in one["values"])
        assert {one["up"] for one in got(api, "health/targets").json()["targets"]} == {True}
        server.stop()
        refused = got(api, f"signals/{P99.name}/series")
        assert refused.status_code == 503
        assert "does not answer" in refused.text
        state.close()
        metrics.close()


# --- from a database to a server ------------------------------------------------------------------

GPUS = tuple(EntityRef("prod", EntityKind.GPU, None, f"gpu-{index}") for index in range(3))
REPLICAS = tuple(EntityRef("prod", EntityKind.REPLICA, "llm", name) for name in ("vllm", "triton"))
TTFT = "engine_ttft_seconds"


def filled(settings: Settings) -> None:
    """Two hours and a half in the database: a gap, statuses, a histogram, and quantiles without one."""
    store = open_metrics(urls_of(settings.store.url)[1])
    buckets = tuple(SignalKey(TTFT, bucket=index) for index in (-1, *range(23)))
    keys = (*buckets, SignalKey(TTFT, quantile=0.99))
    random = np.random.default_rng(1)
    for number in range(0, 600, 4):
        if 200 <= number < 280:
            continue
        at = START + number * STEP
        gpus = random.integers(0, 100, (3, 2)).astype(float)
        status = np.where(random.random((3, 2)) < 0.1, CellStatus.STALE, CellStatus.PRESENT).astype(np.uint8)
        gpus[status == CellStatus.STALE] = np.nan
        cells = random.integers(0, 9, (2, len(keys))).astype(float)
        marks = np.zeros(cells.shape, dtype=np.uint8)
        marks[0, -1], marks[1, :-1] = CellStatus.ABSENT, CellStatus.ABSENT
        cells[marks != CellStatus.PRESENT] = np.nan
        event = Event(str(number), EventKind.XID, GPUS[0], at, "dcgm", "79", {})
        store.write(
            at,
            [
                SampleBatch("d", at, EntityKind.GPU, (BUSY, ENERGY), GPUS, gpus, status),
                SampleBatch("r", at, EntityKind.REPLICA, keys, REPLICAS, cells, marks),
            ],
            [event],
        )
    store.close()


def settings_with(folder: Path, metrics: dict[str, Any] | None) -> Settings:
    store = {"url": f"sqlite:///{folder}/o.db", **({"metrics": metrics} if metrics else {})}
    return Settings.model_validate({"cluster": folder.name, "store": store, "collect": {"interval": "15s"}})


@pytest.mark.slow
def test_history_is_copied_and_reads_the_same(victoria_server: MetricServer, tmp_path: Path) -> None:
    settings = settings_with(tmp_path, with_server(victoria_server))
    filled(settings)
    end = START + timedelta(hours=3)
    written = yaml.safe_dump(
        {
            "cluster": settings.cluster,
            "store": {"url": settings.store.url, "metrics": with_server(victoria_server)},
        }
    )
    (tmp_path / "outrider.yaml").write_text(written)
    arguments = ["db", "copy", "--since", rfc3339(START), "--until", rfc3339(end), "-o", "json"]
    shares: list[float] = []
    with mock.patch.object(backfill, "_CELLS", 1000):
        first = history_copy.run(settings, START, end, lambda _, share: shares.append(share))
        done = CliRunner().invoke(app, [*arguments, "--config", str(tmp_path / "outrider.yaml")])
    assert json.loads(done.stdout) == first, "again, it is the same"
    assert (first["events"], first["refused"], shares[-1]) == (130, {}, 1.0)
    assert first["values"] > 130 * 24
    victoria_server.flush()
    _, metrics_url = urls_of(settings.store.url)
    before, after = open_metrics(metrics_url), open_metrics(metrics_url, wiring_stores.remote_of(settings))
    for kind, keys in ((EntityKind.GPU, [BUSY, ENERGY]), (EntityKind.REPLICA, [P99, SignalKey(TTFT, bucket=4)])):
        for step in (STEP, timedelta(minutes=10)):
            one = before.read_windows(kind, keys, START, end, step)
            other = after.read_windows(kind, keys, START, end, step)
            assert one.entities == other.entities
            np.testing.assert_array_equal(one.status, other.status)
            np.testing.assert_allclose(one.values, other.values)
            assert one.events == other.events
    before.close()
    after.close()


def test_a_copy_needs_a_server_and_a_span(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no server is configured to copy to"):
        history_copy.run(settings_with(tmp_path, None), START, START + STEP, lambda *_: None)
    nowhere = {"url_write": "http://127.0.0.1:9/w", "url_read": "http://127.0.0.1:9"}
    with pytest.raises(UsageError, match="empty"):
        history_copy.run(settings_with(tmp_path, nowhere), START, START, lambda *_: None)


def test_missing_keys_have_defaults_and_wrong_ones_are_reported(tmp_path: Path) -> None:
    assert wiring_stores.remote_of(settings_with(tmp_path, None)) is None
    found = wiring_stores.remote_of(
        settings_with(tmp_path, {"url_write": "https://m/api/v1/push", "url_read": "https://m/p"})
    )
    assert found is not None
    assert (found.owner, found.samples, found.connections) == (tmp_path.name, 10_000, 4)
    file = tmp_path / "wrong.yaml"
    file.write_text("store:\n  metrics:\n    url_write: victoria:8428\n")
    done = CliRunner().invoke(app, ["config", "check", str(file), "-o", "json"])
    problems = {(error["line"], error["key"]) for error in json.loads(done.stdout)["errors"]}
    assert problems == {(2, "store.metrics.url_read"), (3, "store.metrics.url_write")}
