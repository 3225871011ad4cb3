"""``/otlp/v1/logs``: endpoint for logs from an OpenTelemetry collector.

Lines are matched and redacted in the receiving process. Lines without a match are not stored.
"""

from __future__ import annotations

import threading
import zlib

from fastapi import APIRouter, Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from collectors.events.unresolved_event import UnresolvedEvent
from collectors.logs.matcher import LogMatcher
from collectors.receive import otlp_logs
from outrider.errors import UsageError
from outrider.model import Event
from service.api import security
from service.api.bodies import read_body
from service.api.context import Context, Ctx
from service.api.routers.changes import change_log_of, now_of

router = APIRouter(tags=["receive"])
MOST_BYTES, MOST_UNPACKED = 16 * 1024 * 1024, 64 * 1024 * 1024
_LOCK = threading.Lock()


@router.post("/otlp/v1/logs", dependencies=[Depends(security.sender)])
async def logs(request: Request, ctx: Ctx) -> Response:
    """OTLP/HTTP logs, protobuf or JSON, plain or gzip. On 4xx the sender must not retry."""
    kind = request.headers.get("content-type", "").split(";", maxsplit=1)[0].strip().lower()
    if kind not in (otlp_logs.PROTOBUF, otlp_logs.JSON):
        raise UsageError(
            f"the Content-Type {kind!r} is neither {otlp_logs.PROTOBUF} nor {otlp_logs.JSON}",
            hint="this endpoint accepts OTLP/HTTP logs; gRPC is not supported",
        )
    too_large = UsageError(f"the body is larger than {MOST_BYTES} bytes", hint="send smaller batches")
    body = await read_body(request, MOST_BYTES, too_large)
    await run_in_threadpool(_take, request, ctx, body, kind)
    return Response(otlp_logs.response_body(kind), media_type=kind)


def _take(request: Request, ctx: Context, body: bytes, kind: str) -> None:
    now, change_log = now_of(ctx), change_log_of(ctx)
    unpacked = _unpacked(body, request.headers.get("content-encoding", ""))
    lines: LogMatcher = request.app.state.log_lines
    found: list[UnresolvedEvent] = []
    read = otlp_logs.decode(unpacked, kind, ctx.settings.cluster)
    with _LOCK:  # bursts are remembered across requests
        for line in read:
            found.extend(lines.take(line.origin, line.at, line.text, now))
        lines.drain_marks()
    if found:
        change_log.post([_event(one) for one in found], now)


def _event(seen: UnresolvedEvent) -> Event:
    """Event about the named pod. The engine, which knows the topology, resolves the replica."""
    return Event(seen.key, seen.kind, seen.entity, seen.at, seen.source, seen.code, seen.attributes, seen.key)


def _unpacked(body: bytes, encoding: str) -> bytes:
    if encoding.lower() in ("", "identity"):
        return body
    if encoding.lower() != "gzip":
        raise UsageError(f"the Content-Encoding {encoding!r} is not read here", hint="use gzip or no compression")
    try:
        unzip = zlib.decompressobj(wbits=31)
        unpacked = unzip.decompress(body, MOST_UNPACKED)
    except zlib.error as error:
        raise UsageError("the body is not valid gzip", hint="check the compression of the sender") from error
    if unzip.unconsumed_tail:
        raise UsageError(f"the body unpacks to more than {MOST_UNPACKED} bytes", hint="send smaller batches")
    return unpacked
