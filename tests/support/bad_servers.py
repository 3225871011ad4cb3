"""Misbehaving targets on loopback, for tests of the scraper and everything behind it."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import asynccontextmanager

from aiohttp import web

PAGE = b"vllm:num_requests_running 3\n"


async def good(request):
    return web.Response(body=PAGE, content_type="text/plain")


async def headers(request):
    token, own = (request.headers.get(name, "") for name in ("Authorization", "X-Own"))
    text = f'seen{{authorization="{token}",own="{own}"}} 1\n'
    return web.Response(text=text, content_type="text/plain")


async def html(request):
    return web.Response(text="<html>no</html>", content_type="text/html")


async def redirect(request):
    raise web.HTTPFound("/good")


async def broken(request):
    return web.Response(status=503, text="engine is dead")


async def hang(request):
    await asyncio.Event().wait()


async def trickle(request):
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    while True:
        await response.write(b"a 1\n")
        await asyncio.sleep(0.02)


async def endless(request):
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    while True:
        await response.write(b"a 1\n" * 100_000)


async def half(request):
    response = web.StreamResponse(headers={"Content-Type": "text/plain", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(PAGE)
    request.transport.close()
    return response


async def slam(request):
    request.transport.abort()
    return web.Response()


async def zipped(request):
    body = gzip.compress(PAGE * 10_000)
    return web.Response(body=body, headers={"Content-Encoding": "gzip"}, content_type="text/plain")


async def openmetrics(request):
    return web.Response(body=b"a 1\n# EOF\n", headers={"Content-Type": "application/openmetrics-text; version=1.0.0"})


async def load(request):
    return web.json_response({"server_load": 7})


PATHS = {
    "good": good, "headers": headers, "html": html, "redirect": redirect, "broken": broken, "hang": hang,
    "trickle": trickle, "endless": endless, "half": half, "slam": slam, "zipped": zipped, "openmetrics": openmetrics,
}  # fmt: skip


@asynccontextmanager
async def serving(more=None):
    """Yields the base URL of a server with every path above and those of ``more``."""
    app = web.Application()
    app.add_routes([web.get(f"/{name}", handler) for name, handler in {**PATHS, **(more or {})}.items()])
    app.add_routes([web.get("/health", good), web.get("/load", load)])
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
