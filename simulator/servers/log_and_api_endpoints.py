"""Kernel logs, container logs and the Kubernetes API of a fleet, served as by a real cluster.

    GET /klog/NODE?after=SEQUENCE                                   records of /dev/kmsg, one per line
    GET /k8s/api/v1/{events,nodes,pods}                             lists; ?limit, ?continue, ?labelSelector,
    GET /k8s/apis/apps/v1/{deployments,replicasets,statefulsets}      ?fieldSelector; ?watch=true streams changes
    GET /k8s/api/v1/namespaces/NS/pods/POD/log                      ?sinceTime, ?timestamps, ?previous, ?tailLines

Responses and errors have the shapes of the API server. An unreachable node does not respond.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

from aiohttp import web

from outrider.clock import from_unix, parse_rfc3339, rfc3339
from simulator.exporters.responses import Status, host_status
from simulator.fleet import Fleet
from simulator.kubernetes.api_view import KINDS, ExpiredError, KubernetesView, ObjectSelection, SelectorError, selector
from simulator.servers.engine_log import EngineLogs, LogQuery
from simulator.servers.kernel_log import KernelLogs

WATCH_SECONDS = 300.0  # default length of a watch
_CORE, _APPS = ("events", "nodes", "pods"), ("deployments", "replicasets", "statefulsets")


def add_routes(app: web.Application, fleet: Fleet, prefix: str = "") -> None:
    """Adds the endpoints of a fleet to an application that is not running yet, under ``prefix``."""
    endpoints = _Endpoints(fleet)
    app.on_startup.append(endpoints.opened)
    app.on_shutdown.append(endpoints.closing)
    add, base = app.router.add_get, f"{prefix}/k8s"
    add(f"{prefix}/klog/{{node}}", endpoints.kernel_log)
    add(f"{base}/version", endpoints.version)
    add(f"{base}/api/v1/namespaces/{{namespace}}/pods/{{name}}/log", endpoints.container_log)
    for group, names in (("api/v1", _CORE), ("apis/apps/v1", _APPS)):
        resource = f"{{resource:{'|'.join(names)}}}"
        add(f"{base}/{group}/{resource}", endpoints.objects)
        add(f"{base}/{group}/namespaces/{{namespace}}/{resource}", endpoints.objects)
        add(f"{base}/{group}/namespaces/{{namespace}}/{resource}/{{name}}", endpoints.one)
    add(f"{base}/api/v1/{{resource:nodes}}/{{name}}", endpoints.one)


def event_settings(base_url: str, *, cluster: str | None = None) -> list[dict[str, Any]]:
    """Returns the ``events:`` of a configuration that reads everything served at ``base_url`` (with prefix).

    ``cluster`` is required if the fleet is not the platform's own cluster.
    """
    of = {} if cluster is None else {"cluster": cluster}
    name = "" if cluster is None else f"{cluster}-"
    return [
        {"type": "kernel_log", "name": f"{name}kernel-log", "url": f"{base_url}/klog/{{node}}", **of},
        {"type": "kubernetes", "name": f"{name}kubernetes", "url": f"{base_url}/k8s", **of},
        {"type": "engine_log", "name": f"{name}engine-log", "url": f"{base_url}/k8s", **of},
    ]


class _Endpoints:
    """The handlers of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kernel = KernelLogs(fleet)
        self._engine = EngineLogs(fleet)
        self._view = KubernetesView(fleet)
        self._node_of = {name: node for node, name in enumerate(fleet.nodes.names)}
        self._moved = asyncio.Event()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    async def opened(self, _: web.Application) -> None:
        """Starts following the fleet once the server runs."""
        self._loop, self._thread, self._closing = asyncio.get_running_loop(), threading.get_ident(), False
        self._moved = asyncio.Event()
        self._fleet.after_step.append(self._stepped)

    async def closing(self, _: web.Application) -> None:
        """Ends every watch, because the server stops."""
        self._fleet.after_step.remove(self._stepped)
        self._loop, self._closing = None, True
        self._wake()

    def _stepped(self) -> None:
        if self._loop is None:
            return
        if self._thread == threading.get_ident():
            self._wake()
        else:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        """Wakes every watch; the new event prevents a missed change while one is still writing."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # --- logs -----------------------------------------------------------------------------------------

    async def kernel_log(self, request: web.Request) -> web.StreamResponse:
        """Returns the records of a node's kernel log after a sequence number."""
        node = self._node_of.get(request.match_info["node"])
        if node is None:
            raise web.HTTPNotFound(text=f"the fleet has no node {request.match_info['node']}\n")
        if not self._reachable(node):
            return _silence(request)
        try:
            after = int(request.query["after"]) if "after" in request.query else None
        except ValueError as error:
            raise web.HTTPBadRequest(text="after is not a number\n") from error
        headers = {"Boot-Id": self._kernel.boot_id(node), "Boot-Time": rfc3339(from_unix(self._kernel.boot_time(node)))}
        return web.Response(text=self._kernel.text(node, after), headers=headers)

    async def container_log(self, request: web.Request) -> web.StreamResponse:
        """Returns the log of a pod's only container."""
        if not self._reachable():
            return _silence(request)
        name, query = request.match_info["name"], request.query
        pod = self._fleet.pod_named(name)
        if pod is None or pod.service.namespace != request.match_info["namespace"]:
            return _status(404, "NotFound", f'pods "{name}" not found')
        container = pod.service.engine_kind
        if query.get("container", container) != container:
            return _status(400, "BadRequest", f"container {query['container']} is not valid for pod {name}")
        if self._engine.waits(pod):
            message = f'container "{container}" in pod "{name}" is waiting to start: ContainerCreating'
            return _status(400, "BadRequest", message)
        if pod.node is not None and not self._reachable(pod.node):
            return _status(500, "InternalError", f"Get https://10.0.0.{pod.node + 10}:10250/containerLogs: i/o timeout")
        previous = query.get("previous") == "true"
        if previous and not pod.restarts:
            return _status(400, "BadRequest", f'previous terminated container "{container}" in pod "{name}" not found')
        try:
            log_query = _log_query(query, self._fleet.at, previous=previous)
        except ValueError as error:
            return _status(400, "BadRequest", str(error))
        return web.Response(text=self._engine.text(pod, log_query))

    def _reachable(self, node: int | None = None) -> bool:
        """Returns True if a node, or the control plane, is reachable."""
        return host_status(self._fleet, node) is Status.OK

    # --- the API --------------------------------------------------------------------------------------

    async def version(self, request: web.Request) -> web.StreamResponse:
        """Returns the response to ``kubectl version``."""
        if not self._reachable():
            return _silence(request)
        return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.1", "platform": "linux/amd64"})

    async def one(self, request: web.Request) -> web.StreamResponse:
        """Returns one object."""
        if not self._reachable():
            return _silence(request)
        resource, name = request.match_info["resource"], request.match_info["name"]
        result = self._view.one(resource, request.match_info.get("namespace", ""), name)
        return web.json_response(result) if result else _status(404, "NotFound", f'{resource} "{name}" not found')

    async def objects(self, request: web.Request) -> web.StreamResponse:
        """Returns a list of objects, or watches their changes."""
        if not self._reachable():
            return _silence(request)
        resource, query = request.match_info["resource"], request.query
        try:
            wanted = ObjectSelection(
                request.match_info.get("namespace"),
                selector(query.get("labelSelector", "")),
                selector(query.get("fieldSelector", "")),
            )
            if query.get("watch") in ("true", "1"):
                return await self._watch(request, resource, wanted)
            limit = int(query.get("limit", 0)) or None
            return web.json_response(self._view.page(resource, wanted, limit, query.get("continue", "")))
        except ExpiredError:
            return _status(410, "Expired", "The provided continue parameter is too old")
        except (SelectorError, ValueError) as error:
            return _status(400, "BadRequest", str(error))

    async def _watch(self, request: web.Request, resource: str, wanted: ObjectSelection) -> web.StreamResponse:
        """Streams changes as JSON lines, with a bookmark after each batch if requested."""
        query = request.query
        version = int(query.get("resourceVersion") or 0)
        ends = asyncio.get_running_loop().time() + float(query.get("timeoutSeconds") or WATCH_SECONDS)
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        while not self._closing and self._reachable():
            moved = self._moved
            try:
                version, changes = self._view.changes(resource, version, wanted)
                lines = [_line(change, result) for change, result in changes]
            except ExpiredError:
                await _write(answer, [_line("ERROR", _failure(410, "Expired", f"too old resource version: {version}"))])
                break
            if bookmarks:
                lines.append(_line("BOOKMARK", _bookmark(resource, version)))
            if not await _write(answer, lines):
                break
            try:
                async with asyncio.timeout_at(ends):
                    await moved.wait()
            except TimeoutError:
                break
        return answer


async def _write(answer: web.StreamResponse, lines: list[bytes]) -> bool:
    """Writes to the response; False once the client has left."""
    try:
        if lines:
            await answer.write(b"".join(lines))
    except ConnectionError:
        return False
    return True


def _log_query(query: Any, now: float, *, previous: bool) -> LogQuery:
    since: float | None = None
    if query.get("sinceTime"):
        since = parse_rfc3339(query["sinceTime"]).timestamp()
    elif query.get("sinceSeconds"):
        since = now - int(query["sinceSeconds"])
    tail, limit = query.get("tailLines"), query.get("limitBytes")
    return LogQuery(
        since=since,
        previous=previous,
        timestamps=query.get("timestamps") == "true",
        tail=int(tail) if tail else None,
        limit_bytes=int(limit) if limit else None,
    )


def _bookmark(resource: str, version: int) -> dict[str, Any]:
    api, kind = KINDS[resource]
    meta = {"resourceVersion": str(version), "creationTimestamp": None}
    return {"kind": kind.removesuffix("List"), "apiVersion": api, "metadata": meta}


def _line(change: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": change, "object": item}, separators=(",", ":")).encode() + b"\n"


def _failure(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(_failure(code, reason, message), status=code)


def _silence(request: web.Request) -> web.StreamResponse:
    """Closes the connection without a response."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)
