"""A small scripted Kubernetes API server: chunked lists, interrupted watches, expired resource versions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from aiohttp import web

from collectors.kubernetes.api import KubeApi
from collectors.net.http import HttpClient
from tests.collectors.server import serving


class ApiServer:
    """Objects by path, and the next events of a watch by path. ``requested`` has every received request."""

    def __init__(self) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {}
        self.logs: dict[str, str] = {}
        self.version = 100
        self.news: dict[str, list[bytes]] = {}
        self.broken: set[str] = set()  # watches that end in the middle of a line
        self.gone: set[str] = set()  # watches answered 410
        self.forbidden: set[str] = set()
        self.expire_pages = 0
        self.silent = False
        self.requested: list[tuple[str, dict[str, str]]] = []
        self.tokens: list[str | None] = []

    def tell(self, path: str, what: str, found: dict[str, Any]) -> None:
        """Queues an event for the next watch of the path."""
        self.version += 1
        found = {**found, "metadata": {**found.get("metadata", {}), "resourceVersion": str(self.version)}}
        self.news.setdefault(path, []).append(json.dumps({"type": what, "object": found}).encode() + b"\n")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, dict(request.query)
        self.requested.append((path, query))
        self.tokens.append(request.headers.get("Authorization"))
        if path in self.forbidden:
            return _status(403, f'cannot list resource "{path.rsplit("/", 1)[-1]}"')
        if path.endswith("/log"):
            return self._log(path, query)
        if query.get("watch"):
            return await self._watch(request, path)
        return self._list(path, query)

    def _log(self, path: str, query: dict[str, str]) -> web.Response:
        text = self.logs.get(path + ("?previous" if query.get("previous") else ""))
        return _status(404, "not found") if text is None else web.Response(text=text)

    def _list(self, path: str, query: dict[str, str]) -> web.Response:
        if query.get("continue") and self.expire_pages:
            self.expire_pages -= 1
            return _status(410, "the provided continue parameter is too old")
        begin, limit = int(query.get("continue") or 0), int(query.get("limit") or 10**6)
        found = self.objects.get(path, [])
        meta = {"resourceVersion": str(self.version)}
        if begin + limit < len(found):
            meta["continue"] = str(begin + limit)
        return web.json_response({"kind": "List", "metadata": meta, "items": found[begin : begin + limit]})

    async def _watch(self, request: web.Request, path: str) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        if path in self.gone:
            self.gone.discard(path)
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await answer.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return answer
        for line in self.news.pop(path, []):
            await answer.write(line)
        if path in self.broken:
            self.broken.discard(path)
            await answer.write(b'{"type":"MODIFIED","object":{"meta')
            assert request.transport is not None
            request.transport.abort()
            return answer
        if not self.silent:
            mark = {"metadata": {"resourceVersion": str(self.version)}}
            await answer.write(json.dumps({"type": "BOOKMARK", "object": mark}).encode() + b"\n")
        await asyncio.sleep(0)
        return answer


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


@asynccontextmanager
async def api_server(**client: Any) -> AsyncIterator[tuple[ApiServer, KubeApi]]:
    """A server and a client; closes the client at the end."""
    server = ApiServer()
    async with serving([("/{path:.*}", server.answer)]) as url:
        api = KubeApi(HttpClient("kubernetes", url, timeout=timedelta(seconds=5), **client))
        try:
            yield server, api
        finally:
            await api.close()
