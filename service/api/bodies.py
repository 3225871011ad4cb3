"""Request bodies, read up to a limit."""

from __future__ import annotations

from fastapi import Request

from outrider.errors import OutriderError


async def read_body(request: Request, limit: int, refusal: OutriderError) -> bytes:
    """The whole body. Raises ``refusal`` if it is, or declares to be, longer than ``limit`` bytes."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise refusal
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise refusal
        parts.append(part)
    return b"".join(parts)
