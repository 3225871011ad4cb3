"""The fleet over HTTP on loopback: one port a target, so that a dead one refuses connections, and a control door.

Every target's pages stand at their path on the target's own port; the control door's port serves
all of them too. Fleet time does not move here: call ``Fleet.step`` between requests. Ports open and
close by the end of each step; a step on another thread than the server's takes effect a moment later.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from datetime import timedelta
from typing import Any

from aiohttp import web

from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from simulator.control import Control
from simulator.doors import add_routes
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.targets import Pages, SimulatedTarget, targets

INBOX_MESSAGES, INBOX_CHARACTERS = 500, 20_000
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class FleetServer:
    """A served fleet. ``base_url`` is the control door; ``targets`` lists what to scrape and where."""

    def __init__(self, fleet: Fleet, host: str) -> None:
        self.fleet = fleet
        self.control = Control(fleet)
        self.base_url = ""
        self.inbox: deque[str] = deque(maxlen=INBOX_MESSAGES)
        self._host = host
        self._pages = Pages(fleet)
        self._ports: dict[str, _Port] = {}
        self._by_path: dict[str, SimulatedTarget] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.5)

    async def open(self, port: int) -> None:
        """Start serving; ``port`` is the control door's, 0 for a free one."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, port)
        await site.start()
        self.base_url = f"http://{self._host}:{self._runner.addresses[0][1]}"
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.fleet.after_step.append(self._stepped)
        await self.sync()

    async def sync(self) -> None:
        """Open the ports of targets that answer, close those of targets that do not."""
        self._reconcile()
        if self._opening:
            await asyncio.gather(*self._opening)

    def _stepped(self) -> None:
        """The fleet has moved."""
        if self._loop is None:
            return
        if self._thread == threading.get_ident():
            self._reconcile()
        else:
            self._loop.call_soon_threadsafe(self._reconcile)

    def _reconcile(self) -> None:
        self._by_path = {target.path: target for target in targets(self.fleet)}
        for target in self._by_path.values():
            if target.name not in self._ports:
                self._ports[target.name] = _Port(self._host)
        up = {target.name for target in self._by_path.values() if self._pages.up(target)}
        for name, port in self._ports.items():
            if name not in up:
                port.close()
            elif not port.listening and self._runner.server is not None and self._loop is not None:
                task = self._loop.create_task(port.open(self._runner.server))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)

    def targets(self) -> dict[str, Any]:
        """The cluster and its targets in the shape of a configuration."""
        listed = targets(self.fleet)
        return {
            "cluster": self.fleet.spec.cluster,
            "targets": [target.as_config(self._url(target)) for target in listed],
        }

    async def close(self) -> None:
        """Stop serving and give every port back."""
        self.fleet.after_step.remove(self._stepped)
        if self._opening:
            await asyncio.gather(*self._opening)
        self._loop = None
        for port in self._ports.values():
            port.release()
        await self._runner.cleanup()

    def _url(self, target: SimulatedTarget) -> str:
        port = self._ports.get(target.name)
        return f"http://{self._host}:{port.number}{target.path}" if port else f"{self.base_url}{target.path}"

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/{group:replica|dcgm|node}/{name}/metrics", self._metrics)
        app.router.add_get("/{group:kube-state}/metrics", self._metrics)
        app.router.add_get("/replica/{name}/health", self._health)
        app.router.add_get("/replica/{name}/load", self._load)
        app.router.add_get("/control/targets", self._list)
        app.router.add_post("/control/actions", self._act)
        app.router.add_post("/control/faults", self._break)
        app.router.add_post("/control/inbox", self._receive)
        app.router.add_get("/control/inbox", self._show_inbox)
        add_routes(app, self.fleet)
        return app

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        target = self._wanted(request)
        page = self._pages.page(target)
        if page is None:
            return _reset(request)
        return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})

    async def _health(self, request: web.Request) -> web.StreamResponse:
        health, _ = self._pages.probe(self._wanted(request))
        return _reset(request) if health is None else web.Response(status=health)

    async def _load(self, request: web.Request) -> web.StreamResponse:
        _, load = self._pages.probe(self._wanted(request))
        return _reset(request) if load is None else web.json_response({"server_load": int(load)})

    async def _list(self, _: web.Request) -> web.StreamResponse:
        await self.sync()
        return web.json_response(self.targets())

    async def _act(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = await _body(request)
            answer = self.control.act(
                str(_needed(asked, "id")),
                str(_needed(asked, "kind")),
                _entity(self.fleet.spec.cluster, _needed(asked, "target")),
                asked.get("params") or {},
                dry_run=bool(asked.get("dry_run", False)),
            )
        except UsageError as error:
            return _refusal(error)
        await self.sync()
        return web.json_response(answer.as_json())

    async def _break(self, request: web.Request) -> web.StreamResponse:
        try:
            asked = await _body(request)
            entity = asked.get("entity")
            truth = inject(
                self.fleet,
                str(_needed(asked, "fault")),
                None if entity is None else _entity(self.fleet.spec.cluster, entity),
                duration=_duration(asked.get("seconds")),
                seed=int(asked.get("seed", 0)),
            )
        except UsageError as error:
            return _refusal(error)
        found = {"fault": truth.fault, "entity": str(truth.entity)}
        return web.json_response({**found, "start": rfc3339(truth.start), "end": rfc3339(truth.end)})

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        """A webhook's other end, so that messages of a demo arrive somewhere."""
        self.inbox.append((await request.text())[:INBOX_CHARACTERS])
        return web.Response(status=204)

    async def _show_inbox(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(list(self.inbox))

    def _wanted(self, request: web.Request) -> SimulatedTarget:
        path = request.path.rsplit("/", 1)[0] + "/metrics"
        if path not in self._by_path:
            raise web.HTTPNotFound(text=f"the fleet has no target at {request.path}\n")
        return self._by_path[path]


class _Port:
    """A loopback port that is kept for one target: bound for ever, listening only while it is up."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._keeper = _bound(host, 0)
        self.number = int(self._keeper.getsockname()[1])
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def listening(self) -> bool:
        """True when connections are accepted, or will be as soon as the loop runs."""
        return self._listener is not None

    def open(self, handler: Any) -> Coroutine[Any, Any, None]:
        """Listen from now on; await the result to have the connections handled."""
        listener = _bound(self._host, self.number)
        listener.listen(128)
        self._listener = listener
        return self._handle(listener, handler)

    async def _handle(self, listener: socket.socket, handler: Any) -> None:
        server = await asyncio.get_running_loop().create_server(handler, sock=listener)
        if self._listener is listener:
            self._server = server
        else:
            server.close()

    def close(self) -> None:
        """Refuse connections from now on."""
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()
        self._listener = self._server = None

    def release(self) -> None:
        """Give the port back."""
        self.close()
        self._keeper.close()


async def serve(fleet: Fleet, host: str = "127.0.0.1", port: int = 0) -> FleetServer:
    """Serve a fleet. Close the result when done."""
    server = FleetServer(fleet, host)
    await server.open(port)
    return server


def _bound(host: str, port: int) -> socket.socket:
    # A bound socket that does not listen makes the kernel refuse connections, and keeps the port
    # from being given to somebody else; with SO_REUSEADDR a second one may listen on it.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    return bound


def _reset(request: web.Request) -> web.StreamResponse:
    """What a kept-alive connection to a dead process gets: no answer, the connection is gone."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)


def _refusal(error: UsageError) -> web.Response:
    return web.json_response({"error": {"message": error.message, "hint": error.hint}}, status=400)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        asked = await request.json()
    except ValueError as error:
        raise UsageError("the body is not JSON", hint="send a JSON object") from error
    if not isinstance(asked, dict):
        raise UsageError("the body is not a JSON object", hint='send an object such as {"id": "...", "kind": "cordon"}')
    return asked


def _duration(seconds: Any) -> timedelta | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise UsageError(f"seconds {seconds!r} is not a number", hint="give a number such as 300")
    return timedelta(seconds=seconds)


def _needed(asked: Mapping[str, Any], key: str) -> Any:
    if key not in asked:
        raise UsageError(f"the body has no {key!r}", hint=f"add {key!r} to the JSON object")
    return asked[key]


def _entity(cluster: str, written: Any) -> EntityRef | str:
    """An entity as an object, as its key ``cluster/kind/namespace/name``, or by its bare name."""
    if isinstance(written, Mapping):
        try:
            kind = EntityKind(str(written.get("kind")))
        except ValueError:
            known = ", ".join(kind.value for kind in EntityKind)
            raise UsageError(f"{written.get('kind')!r} is not a kind of entity", hint=f"kinds are: {known}") from None
        return EntityRef(cluster, kind, written.get("namespace"), str(written.get("name")))
    text = str(written)
    if text.count("/") < 3:
        return text.rsplit("/", 1)[-1]
    try:
        return EntityRef.from_key(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an entity", hint="write cluster/kind/namespace/name") from error
