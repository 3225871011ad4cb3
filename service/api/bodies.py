"""The body of a request, read up to a limit."""

from __future__ import annotations

from fastapi import Request

from outrider.errors import OutriderError


async def read_body(request: Request, limit: int, refusal: OutriderError) -> bytes:
    """All of it. Raises ``refusal`` once it is longer than ``limit`` bytes, or says that it will be."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > limit:
        raise refusal
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise refusal
        parts.append(part)
    return b"".join(parts)
