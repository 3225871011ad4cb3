"""The engine probe: what the HTTP door of an engine answers beside each scrape of its page.

A dead engine core answers its health path 503 for some seconds; a hung or sleeping one may still say 200. The
requests in flight that a door tells (vLLM with ``--enable-server-load-tracking``) go on rising while an engine
hangs, when every counter on its page stands still. Where an engine is asked, and where its answer has the number,
stands in its adapter. An engine that tells no load is judged by its open file descriptors, where its
page has them.
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

_MOST_BYTES = 1024 * 1024  # an engine of many ranks lists each of them
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Probe:
    """``health`` is an HTTP code, None when nothing answered; ``load`` None when the engine does not tell."""

    health: int | None = None
    load: float | None = None


async def probe(session: aiohttp.ClientSession, target: Target, asked: Mapping[str, Any], within: timedelta) -> Probe:
    """Ask both doors at once, as ``asked`` says, each for so long: a silent one costs its own answer. Never raises."""
    seconds = within.total_seconds()
    health, load = await asyncio.gather(
        _get(session, target.health_url, asked, seconds), _get(session, target.load_url, asked, seconds)
    )
    return Probe(health[0], load_of(target.adapter, *load))


async def _get(
    session: aiohttp.ClientSession, url: str, asked: Mapping[str, Any], seconds: float
) -> tuple[int | None, bytes]:
    """Status and body; None and nothing without a whole answer in time, or with one that is too large."""
    if not url:
        return None, b""
    body = bytearray()
    try:
        async with asyncio.timeout(seconds), session.get(url, allow_redirects=False, **asked) as response:
            async for part in response.content.iter_chunked(_CHUNK_BYTES):
                body += part
                if len(body) > _MOST_BYTES:
                    return response.status, b""
            return response.status, bytes(body)
    except (aiohttp.ClientError, OSError, ValueError):  # a TimeoutError is an OSError
        return None, b""


def load_of(adapter_name: str, status: int | None, body: bytes) -> float | None:
    """The requests in flight as this engine's answer tells them; None when it tells no number of them."""
    probing = registry.adapter(adapter_name).probe
    if status != 200:
        return None
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    spellings = probing.load_as if probing and probing.load_as else SERVER_LOAD
    return requests_in_flight(load_of_spellings(spellings), said)
