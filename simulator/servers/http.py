"""The fleet over loopback HTTP: one port per target, so that a dead target refuses connections, plus control.

Every target's pages are served at their path on the target's own port. The control port serves all of them as well,
and the logs and the Kubernetes API of each cluster. With several clusters, paths start with the cluster name. Fleet
time does not advance here: call ``step`` between requests. Ports open and close at the end of each step; a step on
another thread than the server's takes effect a moment later.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from simulator.exporters.responses import Status, transfer_seconds
from simulator.exporters.targets import Pages, SimulatedTarget, every_target, targets
from simulator.fleet import Fleet
from simulator.servers.control import Control
from simulator.servers.control_routes import ControlRoutes
from simulator.servers.log_and_api_endpoints import add_routes
from simulator.servers.ports import Port
from simulator.world import World

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SILENT_SECONDS = 60.0  # how long a request without a response is kept open; clients time out long before


@dataclass(frozen=True, slots=True)
class _ServedTarget:
    """A served target and the writer of its page."""

    target: SimulatedTarget
    pages: Pages


class FleetServer:
    """A served fleet or world. ``base_url`` is the control endpoint; ``targets`` lists the scrape targets."""

    def __init__(self, served: Fleet | World, host: str) -> None:
        self._world = served if isinstance(served, World) else None
        self.fleets: tuple[Fleet, ...] = served.fleets if isinstance(served, World) else (served,)
        self.base_url = ""
        self._host = host
        self._control = ControlRoutes(self.fleets, self._world, self.targets, self.sync)
        self._pages = [Pages(fleet) for fleet in self.fleets]
        self._ports: dict[str, Port] = {}
        self._by_path: dict[str, _ServedTarget] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closing = asyncio.Event()
        # Cancel requests whose client has disconnected.
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.5, handler_cancellation=True)

    @property
    def fleet(self) -> Fleet:
        """The fleet; in a world, the home fleet."""
        return self.fleets[0]

    @property
    def control(self) -> Control:
        """Control of the fleet, or of the home fleet."""
        return self._control.controls[self.fleet.spec.cluster]

    @property
    def inbox(self) -> deque[str]:
        """Received webhook messages."""
        return self._control.inbox

    async def open(self, port: int) -> None:
        """Starts serving; ``port`` is the control port, 0 for a free one."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, port)
        await site.start()
        self.base_url = f"http://{self._host}:{self._runner.addresses[0][1]}"
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.fleets[-1].after_step.append(self._stepped)
        await self.sync()

    async def sync(self) -> None:
        """Opens the ports of targets that respond, closes those of targets that do not."""
        self._reconcile()
        if self._opening:
            await asyncio.gather(*self._opening)

    def _stepped(self) -> None:
        """Updates the server after a step of the fleets."""
        if self._loop is None:
            return
        if self._thread == threading.get_ident():
            self._reconcile()
        else:
            self._loop.call_soon_threadsafe(self._reconcile)

    def _reconcile(self) -> None:
        self._control.faults.update()
        self._by_path = {
            self._prefix(number) + target.path: _ServedTarget(target, self._pages[number])
            for number, fleet in enumerate(self.fleets)
            for target in every_target(fleet)
        }
        up = {path for path, served in self._by_path.items() if served.pages.up(served.target)}
        for path in self._by_path:
            if path not in self._ports:
                self._ports[path] = Port(self._host)
        for path, port in self._ports.items():
            if path not in up:
                port.close()
            elif not port.listening and self._runner.server is not None and self._loop is not None:
                task = self._loop.create_task(port.open(self._runner.server))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)

    def targets(self) -> dict[str, Any]:
        """The cluster and its targets in configuration format; the home cluster if there are several."""
        if self._world is None:
            listed = [target.as_config(self._url(target.path)) for target in targets(self.fleet)]
        else:
            place = {id(fleet): number for number, fleet in enumerate(self.fleets)}
            listed = [
                target.as_config(self._url(self._prefix(place[id(target.fleet)]) + target.target.path))
                for target in self._world.targets()
            ]
        return {"cluster": self.fleet.spec.cluster, "targets": listed}

    async def close(self) -> None:
        """Stops serving and releases all ports."""
        self.fleets[-1].after_step.remove(self._stepped)
        self._closing.set()
        if self._opening:
            await asyncio.gather(*self._opening)
        self._loop = None
        for port in self._ports.values():
            port.release()
        await self._runner.cleanup()

    def _prefix(self, number: int) -> str:
        return "" if len(self.fleets) == 1 else f"/{self.fleets[number].spec.cluster}"

    def _url(self, path: str) -> str:
        port = self._ports.get(path)
        return f"http://{self._host}:{port.number}{path}" if port else f"{self.base_url}{path}"

    def _app(self) -> web.Application:
        app = web.Application()
        self._control.add(app)
        for number, fleet in enumerate(self.fleets):
            add_routes(app, fleet, self._prefix(number))
        app.router.add_get("/{path:.+}/metrics", self._metrics)
        app.router.add_get("/{path:.+}/health", self._health)
        app.router.add_get("/{path:.+}/load", self._load)
        return app

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        served = self._wanted(request)
        answer = served.pages.answer(served.target)
        if answer.body is None:
            return await self._without_page(request, answer.status)
        late = answer.seconds - transfer_seconds(len(answer.body))
        if late > 0:
            await asyncio.sleep(late)
        return web.Response(body=answer.body, headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        served = self._wanted(request)
        health, _ = served.pages.probe(served.target)
        if health is None:
            return await self._without_page(request, served.pages.status(served.target))
        return web.Response(status=health)

    async def _load(self, request: web.Request) -> web.StreamResponse:
        served = self._wanted(request)
        _, load = served.pages.probe(served.target)
        if load is None:
            return await self._without_page(request, served.pages.status(served.target))
        return web.json_response({"server_load": int(load)})

    async def _without_page(self, request: web.Request, status: Status) -> web.StreamResponse:
        if status is Status.OK:
            raise web.HTTPNotFound(text=f"no page at {request.path}\n")
        if status is Status.HTTP_503:
            return web.Response(status=503)
        if status is Status.TIMEOUT:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), SILENT_SECONDS)
        return _reset(request)

    def _wanted(self, request: web.Request) -> _ServedTarget:
        path = request.path.rsplit("/", 1)[0] + "/metrics"
        if path not in self._by_path:
            raise web.HTTPNotFound(text=f"the fleet has no target at {request.path}\n")
        return self._by_path[path]


async def serve(served: Fleet | World, host: str = "127.0.0.1", port: int = 0) -> FleetServer:
    """Serves a fleet, or every cluster of a world. The caller must close the result."""
    server = FleetServer(served, host)
    await server.open(port)
    return server


def _reset(request: web.Request) -> web.StreamResponse:
    """Closes a kept-alive connection to a dead process without a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)
