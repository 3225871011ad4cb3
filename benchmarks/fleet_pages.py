"""Exposition pages of 1,000 replicas and 125 device exporters that change every cycle, and a server for them.

The simulated fleet publishes the pages of real exporters. A replica's page is padded to 600 samples with HTTP series of
additional handlers, as on servers with more routes. The server is a separate process, so that it uses the other core.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import multiprocessing
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from aiohttp import web

from collectors.mapping.target import Target, target_of
from simulator.exporters.targets import Pages, targets
from simulator.fleet import Fleet
from simulator.spec.fleets import FleetSpec, PoolSpec, default_spec

REPLICAS, SERVICES, NODES, SAMPLES = 1000, 20, 125, 600
HANDLERS = ("/v1/embeddings", "/v1/responses", "/tokenize", "/detokenize", "/pooling", "/score", "/rerank")
_HANDLER = re.compile(rb'handler="[^"]*"')
Bodies = dict[str, tuple[bytes, float]]  # by path: the page, and the requests in flight


def filled(page: bytes, samples: int = SAMPLES) -> bytes:
    """Returns the page padded to ``samples`` samples with HTTP series of additional handlers."""
    lines = page.splitlines(keepends=True)
    missing = samples - sum(not line.startswith(b"#") for line in lines)
    known = [line for line in lines if b'handler="' in line]
    first = _HANDLER.search(known[0])
    own = [line for line in known if first is not None and first[0] in line]
    names = (f"{name}{'' if turn == 0 else turn}" for turn in range(missing) for name in HANDLERS)
    more: list[bytes] = []
    for name in names:
        if len(more) >= missing:
            break
        more += [_HANDLER.sub(f'handler="{name}"'.encode(), line) for line in own]
    return page + b"".join(more[: max(0, missing)])


def fleet(replicas: int = REPLICAS, services: int = SERVICES, nodes: int = NODES) -> Fleet:
    """Returns a fleet of replicas with one GPU each, spread over services, on nodes with eight GPUs."""
    gpu_type, service = default_spec().pools[0].gpu_type, default_spec().services[0]
    size = replicas // services
    spec = FleetSpec(
        cluster="bench",
        pools=(PoolSpec("pool", gpu_type, nodes),),
        services=tuple(
            replace(service, name=f"service-{number:02}", tensor_parallel=1, replicas=size, ceiling=size)
            for number in range(services)
        ),
    )
    return Fleet(spec)


class FleetPages:
    """The targets of a fleet and their current exposition pages."""

    def __init__(self, world: Fleet) -> None:
        """Omits node exporters: the figure is about devices and replicas."""
        self._pages = Pages(world)
        self._targets = [target for target in targets(world) if target.adapter in {"vllm", "dcgm"}]

    def targets(self, base: str) -> list[Target]:
        """Returns the scrape targets; replicas are also probed."""
        return [target_of("bench", target.as_config(base + target.path)) for target in self._targets]

    def bodies(self) -> Bodies:
        """Returns every page by path."""
        result: Bodies = {}
        for target in self._targets:
            page = self._pages.page(target) or b""
            body = filled(page) if target.adapter == "vllm" else page
            result[target.path] = (body, self._pages.probe(target)[1] or 0.0)
        return result


@contextmanager
def server(folder: Path) -> Iterator[PageServer]:
    """Runs a page server in a separate process."""
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    child = context.Process(target=_serve, args=(child_end,), daemon=True)
    child.start()
    child_end.close()  # so that a failed child raises EOFError
    try:
        yield PageServer(parent_end.recv(), folder)
    finally:
        child.terminate()
        child.join()


class PageServer:
    """Serves the configured ``/x/metrics``, ``/x/health``, ``/x/load``, and misbehaving targets."""

    def __init__(self, port: int, folder: Path) -> None:
        """Pages reach the server through a file in ``folder``."""
        self.port, self._file = port, folder / "pages.pickle"
        self.base = f"http://127.0.0.1:{port}"

    def show(self, bodies: Bodies) -> None:
        """Serves these pages from now on."""
        self._file.write_bytes(pickle.dumps(bodies))
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/pages", json.dumps(str(self._file)))
        assert connection.getresponse().status == 200
        connection.close()


def _serve(pipe: Connection) -> None:
    asyncio.run(_serving(pipe))


async def _serving(pipe: Connection) -> None:
    bodies: Bodies = {}

    async def take(request: web.Request) -> web.Response:
        path = Path(json.loads(await request.text()))
        bodies.clear()
        bodies.update(pickle.loads(await asyncio.to_thread(path.read_bytes)))
        return web.Response()

    async def answer(request: web.Request) -> web.Response:
        path, _, endpoint = request.path.rpartition("/")
        body, load = bodies[f"{path}/metrics"]
        if endpoint == "health":
            return web.Response()
        if endpoint == "load":
            return web.json_response({"server_load": int(load)})
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.router.add_post("/pages", take)
    app.router.add_get("/bad/{how}/metrics", _misbehave)
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    pipe.send(runner.addresses[0][1])
    await asyncio.Event().wait()


async def _misbehave(request: web.Request) -> web.StreamResponse:
    """Hangs forever, sends a byte at a time, or never ends."""
    how = request.match_info["how"]
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    if how == "hang":
        await asyncio.Event().wait()
    await response.prepare(request)
    part = b"x" if how == "trickle" else b"endless_total 1\n" * 4096
    with suppress(ConnectionError):  # the scraper disconnected
        while True:
            await response.write(part)
            await asyncio.sleep(0.05 if how == "trickle" else 0.001)
    return response
