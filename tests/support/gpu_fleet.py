"""Nodes with dcgm-exporter pages over HTTP, and faults that a test sets at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

GPUS = 8
_FAMILIES = {
    "DCGM_FI_DEV_GPU_TEMP": "gauge",
    "DCGM_FI_DEV_GPU_UTIL": "gauge",
    "DCGM_FI_DEV_FB_USED": "gauge",
    "DCGM_FI_DEV_POWER_USAGE": "gauge",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "counter",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "counter",
    "DCGM_FI_DEV_XID_ERRORS": "gauge",
}


@dataclass(slots=True)
class GpuNode:
    """The devices of one node. ``delay`` is the time in seconds that its exporter takes to answer."""

    name: str
    xid: list[int] = field(default_factory=lambda: [0] * GPUS)
    ecc: list[int] = field(default_factory=lambda: [0] * GPUS)
    gone: set[int] = field(default_factory=set)
    delay: float = 0.0
    pages: int = 0

    def page(self) -> bytes:
        """The page of its exporter now."""
        self.pages += 1
        lines = []
        for family, kind in _FAMILIES.items():
            lines.append(f"# TYPE {family} {kind}")
            lines += [f"{family}{{{self._labels(gpu)}}} {self._value(family, gpu)}" for gpu in self._shown()]
        return ("\n".join(lines) + "\n").encode()

    def uuid(self, gpu: int) -> str:
        """The UUID of a device."""
        return f"GPU-{self.name}-{gpu}"

    def _shown(self) -> list[int]:
        return [gpu for gpu in range(GPUS) if gpu not in self.gone]

    def _labels(self, gpu: int) -> str:
        return (
            f'gpu="{gpu}",UUID="{self.uuid(gpu)}",pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}",'
            f'modelName="NVIDIA H100 80GB HBM3",Hostname="{self.name}",DCGM_FI_DRIVER_VERSION="570.124.06"'
        )

    def _value(self, family: str, gpu: int) -> float:
        values = {
            "DCGM_FI_DEV_GPU_TEMP": 55 + (self.pages + gpu) % 4,
            "DCGM_FI_DEV_GPU_UTIL": 70 + (self.pages + gpu) % 9,
            "DCGM_FI_DEV_FB_USED": 60_000,
            "DCGM_FI_DEV_POWER_USAGE": 500 + (self.pages + gpu) % 13,
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1_000_000 + self.pages * 7_500_000,
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": self.ecc[gpu],
            "DCGM_FI_DEV_XID_ERRORS": self.xid[gpu],
        }
        return values[family]


@dataclass(slots=True)
class GpuFleet:
    """Nodes by name, behind one port."""

    nodes: dict[str, GpuNode]
    port: int = 0

    def targets(self) -> list[dict[str, Any]]:
        """The targets as a configuration lists them."""
        return [
            {
                "name": name,
                "adapter": "dcgm",
                "url": f"http://127.0.0.1:{self.port}/{name}/metrics",
                "entity": {"kind": "node", "name": name},
            }
            for name in self.nodes
        ]


@contextmanager
def gpu_fleet(names: list[str]) -> Iterator[GpuFleet]:
    """Serves the pages of these nodes until the block ends."""
    fleet = GpuFleet({name: GpuNode(name) for name in names})
    ready, ends = threading.Event(), list[Callable[[], None]]()

    async def answer(request: web.Request) -> web.Response:
        node = fleet.nodes[request.match_info["node"]]
        body = node.page()
        if node.delay:
            await asyncio.sleep(node.delay)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/{node}/metrics", answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        fleet.port = runner.addresses[0][1]
        ends.append(lambda: loop.call_soon_threadsafe(over.set))
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield fleet
    finally:
        ends[0]()
        thread.join(30)
