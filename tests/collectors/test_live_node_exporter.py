"""A real node_exporter, scraped live."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from collectors.mapping.target import target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.scraper import Scraper
from outrider.model import CellStatus, EntityKind, SignalKey
from tests.support.waiting import until

BINARY = shutil.which("prometheus-node-exporter")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(BINARY is None, reason="missing: prometheus-node-exporter (Debian package of that name)"),
]


@pytest.fixture
def url():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    process = subprocess.Popen(
        [BINARY, f"--web.listen-address={address}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: listens(address), "node_exporter listens")
        yield f"http://{address}/metrics"
    finally:
        process.kill()
        process.wait()


def listens(address):
    host, port = address.split(":")
    with socket.socket() as tried:
        return tried.connect_ex((host, int(port))) == 0


def test_a_real_node_exporter(url) -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    target = target_of("test", {"name": "n", "adapter": "node_exporter", "url": url, "timeout": 20})

    async def twice():
        async with Scraper() as scraper:
            collector = ScrapeManager([target], scraper)
            await collector.collect(at)
            return await collector.collect(at + timedelta(seconds=15)), collector.health

    found, health = asyncio.run(twice())
    assert health[0].error is None
    assert health[0].samples > 100
    batch = next(one for one in found.batches if one.kind is EntityKind.NODE)
    cells = {
        key.name: (value, CellStatus(int(status)))
        for key, value, status in zip(batch.keys, batch.values[0], batch.status[0], strict=True)
    }
    for name in ("node_cpu_utilization_ratio", "node_memory_available_ratio"):
        value, status = cells[name]
        assert status is CellStatus.PRESENT
        assert 0 <= value <= 1
    assert cells["node_boot_time_seconds"][0] > 1e9
    assert cells["target_up"] == (1.0, CellStatus.PRESENT)
    assert SignalKey("node_oom_kills_per_second") in batch.keys
