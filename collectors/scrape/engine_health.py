"""Engine health: the health and load endpoints of an engine, requested beside each scrape.

With a dead engine core, the health path returns 503 for some seconds. A hung or sleeping engine may still return 200.
The requests in flight at the load endpoint (vLLM with ``--enable-server-load-tracking``) keep rising while an engine
hangs, when every counter on its page stands still. The adapter names the endpoints and the field of the response. An
engine without a load endpoint is judged by its open file descriptors, if its page has them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp

from collectors.mapping import registry
from collectors.mapping.load_endpoint import SERVER_LOAD, load_of_spellings, requests_in_flight
from collectors.mapping.target import Target

_MOST_BYTES = 1024 * 1024  # an engine with many ranks lists each of them
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Probe:
    """Results. ``health`` is an HTTP code, None without a response. ``load`` is None if not reported."""

    health: int | None = None
    load: float | None = None


async def probe(session: aiohttp.ClientSession, target: Target, options: Mapping[str, Any], within: timedelta) -> Probe:
    """Requests both endpoints concurrently with these request options.

    Each has the same time limit: a silent endpoint costs only its own result. Never raises.
    """
    seconds = within.total_seconds()
    health, load = await asyncio.gather(
        _get(session, target.health_url, options, seconds), _get(session, target.load_url, options, seconds)
    )
    return Probe(health[0], load_of(target.adapter, *load))


async def _get(
    session: aiohttp.ClientSession, url: str, options: Mapping[str, Any], seconds: float
) -> tuple[int | None, bytes]:
    """Status and body; None and an empty body without a complete response in time.

    The body is empty if it is too large.
    """
    if not url:
        return None, b""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds), session.get(url, allow_redirects=False, **options) as response:
            async for part in response.content.iter_chunked(_CHUNK_BYTES):
                body += part
                if len(body) > _MOST_BYTES:
                    return response.status, b""
            return response.status, bytes(body)
    except (aiohttp.ClientError, OSError, ValueError):  # a TimeoutError is an OSError
        return None, b""


def load_of(adapter_name: str, status: int | None, body: bytes) -> float | None:
    """Parses the requests in flight from an engine's response; None if it has no such number."""
    probing = registry.adapter(adapter_name).probe
    if status != 200:
        return None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    spellings = probing.load_as if probing and probing.load_as else SERVER_LOAD
    return requests_in_flight(load_of_spellings(spellings), document)
