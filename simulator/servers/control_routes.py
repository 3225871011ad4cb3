"""Control endpoints over HTTP: actions, faults, and an inbox for the webhooks of a demo.

GET  /control/targets        the clusters' targets in configuration format
POST /control/actions        {id, kind, target, params?, dry_run?}
GET  /control/faults         {known, ordered}: known faults, and injected ones with their ground truth
POST /control/faults         {fault, entity?, cluster?, seconds?, after_seconds?, seed?}
POST /control/faults/stop    {id}
POST /control/inbox, GET /control/inbox

One port serves all endpoints without a token: use it only on loopback, because the responses contain the ground truth.
Of the platform only drills may request it, which a test checks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from aiohttp import web

from outrider.errors import UsageError
from outrider.model import EntityRef
from simulator.fleet import Fleet
from simulator.servers.control import Control
from simulator.servers.fault_endpoint import FaultEndpoint
from simulator.servers.request_parsing import body_of, duration, entity, needed, refusal, seed
from simulator.world import World

INBOX_MESSAGES, INBOX_CHARACTERS = 500, 20_000


class ControlRoutes:
    """HTTP handlers of the control endpoints of one or more clusters."""

    def __init__(
        self,
        fleets: Sequence[Fleet],
        world: World | None,
        listed: Callable[[], dict[str, Any]],
        sync: Callable[[], Awaitable[None]],
    ) -> None:
        """``world`` has the fleets, if several. ``listed`` returns targets; ``sync`` updates ports after an action."""
        self.controls = {fleet.spec.cluster: Control(fleet, world) for fleet in fleets}
        self.faults = FaultEndpoint(fleets)
        self.inbox: deque[str] = deque(maxlen=INBOX_MESSAGES)
        self._home = fleets[0].spec.cluster
        self._listed, self._sync = listed, sync

    def add(self, app: web.Application) -> None:
        """Adds the routes."""
        app.router.add_get("/control/targets", self._list)
        app.router.add_post("/control/actions", self._act)
        app.router.add_get("/control/faults", self._show_faults)
        app.router.add_post("/control/faults", self._inject)
        app.router.add_post("/control/faults/stop", self._stop_fault)
        app.router.add_post("/control/inbox", self._receive)
        app.router.add_get("/control/inbox", self._show_inbox)

    async def _list(self, _: web.Request) -> web.StreamResponse:
        await self._sync()
        return web.json_response(self._listed())

    async def _act(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await body_of(request)
            number, kind = str(needed(body, "id")), str(needed(body, "kind"))
            target = entity(self._home, needed(body, "target"))
            answer = self._control(target).act(
                number, kind, target, body.get("params") or {}, dry_run=bool(body.get("dry_run", False))
            )
        except UsageError as error:
            return refusal(error)
        await self._sync()
        return web.json_response(answer.as_json())

    def _control(self, target: EntityRef | str) -> Control:
        if isinstance(target, str) or len(self.controls) == 1:
            return self.controls[self._home]
        if target.cluster not in self.controls:
            raise UsageError(f"no cluster is named {target.cluster!r}", hint=f"clusters: {', '.join(self.controls)}")
        return self.controls[target.cluster]

    async def _show_faults(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"known": self.faults.known(), "ordered": self.faults.listed()})

    async def _inject(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await body_of(request)
            cluster = body.get("cluster")
            wanted = body.get("entity")
            described = self.faults.start(
                str(needed(body, "fault")),
                None if wanted is None else entity(cluster or self._home, wanted),
                lasts=duration(body, "seconds"),
                after=duration(body, "after_seconds") or timedelta(0),
                seed=seed(body),
                cluster=None if cluster is None else str(cluster),
            )
        except UsageError as error:
            return refusal(error)
        return web.json_response(described)

    async def _stop_fault(self, request: web.Request) -> web.StreamResponse:
        try:
            described = self.faults.stop(str(needed(await body_of(request), "id")))
        except UsageError as error:
            return refusal(error)
        await self._sync()
        return web.json_response(described)

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        """Receives webhook messages of a demo."""
        self.inbox.append((await request.text())[:INBOX_CHARACTERS])
        return web.Response(status=204)

    async def _show_inbox(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(list(self.inbox))
