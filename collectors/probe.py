"""The engine probe: GET /health and GET /load beside each scrape of an engine.

A dead engine core answers /health 503 for some seconds; a hung or sleeping one may still say 200. The
requests in flight by /load (vLLM with ``--enable-server-load-tracking``) go on rising while an engine
hangs, when every counter on its page stands still.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from collectors.targets import Target

_MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Probe:
    """``health`` is an HTTP code, None when nothing answered; ``load`` None when the engine does not tell."""

    health: int | None = None
    load: float | None = None


async def probe(session: aiohttp.ClientSession, target: Target, asked: Mapping[str, Any]) -> Probe:
    """Ask both doors at once, as ``asked`` says. Never raises; the caller's deadline bounds it."""
    health, load = await asyncio.gather(_get(session, target.health_url, asked), _get(session, target.load_url, asked))
    return Probe(health[0], _load(*load))


async def _get(session: aiohttp.ClientSession, url: str, asked: Mapping[str, Any]) -> tuple[int | None, bytes]:
    if not url:
        return None, b""
    try:
        async with session.get(url, allow_redirects=False, **asked) as response:
            return response.status, await response.content.read(_MOST_BYTES)
    except (aiohttp.ClientError, OSError, ValueError):
        return None, b""


def _load(status: int | None, body: bytes) -> float | None:
    if status != 200:
        return None
    try:
        said = json.loads(body)
        return float(said["server_load"])
    except (ValueError, KeyError, TypeError):
        return None
