"""Waits for conditions that another process, thread or task makes true; no test has such a loop of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

INTERVAL_SECONDS = 0.05
PATIENCE_SECONDS = 60.0  # for what takes a second on an idle machine

Result = TypeVar("Result")


def until(condition: Callable[[], Result], awaited: str, *, seconds: float = PATIENCE_SECONDS) -> Result:
    """Calls ``condition`` until its result is true, and returns the result.

    ``awaited`` names the condition. Raises AssertionError with it once ``seconds`` have passed.
    """
    end = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() >= end:
            raise AssertionError(_in_vain(awaited, seconds))
        time.sleep(INTERVAL_SECONDS)
    return result


async def until_async(
    condition: Callable[[], Awaitable[Result]], awaited: str, *, seconds: float = PATIENCE_SECONDS
) -> Result:
    """Awaits ``condition`` until its result is true, as ``until`` does; other tasks of the loop continue meanwhile."""
    end = time.monotonic() + seconds
    while not (result := await condition()):
        if time.monotonic() >= end:
            raise AssertionError(_in_vain(awaited, seconds))
        await asyncio.sleep(INTERVAL_SECONDS)
    return result


def _in_vain(awaited: str, seconds: float) -> str:
    return f"waited {seconds:g} s in vain until {awaited}"
