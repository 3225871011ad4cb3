"""``/write``, ``/otlp/v1/metrics`` and ``/kpis``: ingest endpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.concurrency import run_in_threadpool

from collectors.receive import kpi, otlp_metrics
from collectors.receive import remote_write as receive_remote_write
from collectors.receive.protocol import IngestProtocol, ReceiveError, RejectionReason, malformed, too_large, unpack
from outrider.errors import StoreError
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology
from outrider.wire.remote_write import Status
from service.api import security
from service.api.bodies import read_body
from service.api.context import Context, Ctx
from service.api.errors import ConflictError
from service.api.errors import body as error_body
from service.api.ingest.endpoints import RETRY_AFTER_SECONDS, IngestEndpoints, unused

router = APIRouter(tags=["receive"])
STATUS = {
    RejectionReason.MALFORMED: 400,
    RejectionReason.UNSUPPORTED: 415,
    RejectionReason.TOO_LARGE: 413,
    RejectionReason.TOO_FAST: 429,
    RejectionReason.FULL: 503,
}
_RPC_CODE = {400: 3, 413: 3, 415: 3, 429: 8, 503: 14}  # google.rpc.Code: invalid argument, exhausted, unavailable
_Refusal = Callable[[int, str], Response]


def endpoints_of(request: Request) -> IngestEndpoints:
    """Ingest endpoints of this application. Raises ConflictError if they are disabled."""
    endpoints: IngestEndpoints | None = request.app.state.ingest_endpoints
    if endpoints is None:
        raise ConflictError("Ingestion is disabled.", hint="set receive.enabled: true")
    return endpoints


Open = Annotated[IngestEndpoints, Depends(endpoints_of)]


@router.post("/write", status_code=204, response_class=Response)
async def remote_write(request: Request, endpoints: Open, sender: security.Sender) -> Response:
    """Prometheus remote write, 1.0 and 2.0. On 4xx the sender must not retry."""

    def take(packed: bytes) -> Response:
        version = receive_remote_write.version_of(request.headers.get("content-type", "application/x-protobuf"))
        encoding = request.headers.get("content-encoding", "snappy")
        if encoding.lower() not in {"snappy", "zstd"}:
            raise ReceiveError(
                f"the Content-Encoding {encoding!r} is not supported", reason=RejectionReason.UNSUPPORTED,
                hint="remote write requires snappy compression",
            )  # fmt: skip
        decoded = receive_remote_write.decode(unpack(packed, encoding, endpoints.settings.unpacked_bytes), version)
        endpoints.take(decoded, sender)
        if version == 1:
            return Response(status_code=204)
        # Unread samples count as written: a sender that counts them as lost would alarm its own operators.
        # The log and /metrics report them.
        written = {"Samples": decoded.samples, "Histograms": decoded.histograms, "Exemplars": 0}
        headers = {f"X-Prometheus-Remote-Write-{kind}-Written": str(count) for kind, count in written.items()}
        return Response(status_code=204, headers=headers)

    def refuse(status: int, message: str) -> Response:
        return PlainTextResponse(f"{message}\n", status)

    return await _answer(request, endpoints, IngestProtocol.REMOTE_WRITE, take, refuse)


@router.post("/otlp/v1/metrics")
async def otlp(request: Request, endpoints: Open, sender: security.Sender) -> Response:
    """OTLP/HTTP metrics, protobuf or JSON."""
    content_type = request.headers.get("content-type", "")

    def take(packed: bytes) -> Response:
        kind = otlp_metrics.media_type(content_type)
        unpacked = unpack(packed, request.headers.get("content-encoding", ""), endpoints.settings.unpacked_bytes)
        decoded = otlp_metrics.decode(unpacked, kind)
        endpoints.take(decoded, sender)
        return Response(otlp_metrics.response_body(kind, *unused(decoded)), media_type=kind)

    def refuse(status: int, message: str) -> Response:
        code = _RPC_CODE[status]
        if content_type.startswith(otlp_metrics.JSON):
            return JSONResponse({"code": code, "message": message}, status)
        body = Status(code=code, message=message).SerializeToString()
        return Response(body, status, media_type=otlp_metrics.PROTOBUF)

    return await _answer(request, endpoints, IngestProtocol.OTLP, take, refuse)


@router.post("/kpis")
async def kpis(request: Request, ctx: Ctx, endpoints: Open, sender: security.Sender) -> Response:
    """Business KPIs: a list of {name, service, value, at?, unit?, labels?}. 207: some entries were rejected."""

    def take(packed: bytes) -> Response:
        raw = unpack(packed, request.headers.get("content-encoding", ""), endpoints.settings.unpacked_bytes)
        valid, problems = kpi.check(
            _entries(raw, endpoints.settings.kpis.most),
            now=ctx.extras.clock.now(),
            find=_finder(ctx, endpoints.settings.kpi_services),
            newest=endpoints.newest_kpis,
            limits=endpoints.settings.kpis,
        )
        if valid:
            endpoints.take_kpis(valid, sender)
        endpoints.refuse_kpis(len(problems))
        body = {"accepted": len(valid), "refused": [asdict(problem) for problem in problems]}
        return JSONResponse(body, 200 if not problems else 207 if valid else 400)

    def refuse(status: int, message: str) -> Response:
        sentence, _, hint = message.partition("; ")
        return JSONResponse(error_body(sentence, hint), status)

    return await _answer(request, endpoints, IngestProtocol.KPI, take, refuse)


async def _answer(
    request: Request,
    endpoints: IngestEndpoints,
    protocol: IngestProtocol,
    take: Callable[[bytes], Response],
    refuse: _Refusal,
) -> Response:
    """Reads the body within its limit, processes it in a thread, counts the outcome."""
    try:
        limit = endpoints.settings.body_bytes
        packed = await read_body(request, limit, too_large(limit))
        response = await run_in_threadpool(take, packed)
    except ReceiveError as error:
        status, outcome = STATUS[error.reason], error.reason.value
        response = refuse(status, f"{error.message}; {error.hint}" if error.hint else error.message)
    except StoreError as error:
        status, outcome = 503, "store"
        response = refuse(status, f"{error.message}; {error.hint}")
    else:
        status, outcome = response.status_code, "taken"
    if status in {429, 503}:
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    endpoints.answered(protocol, outcome)
    return response


def _entries(raw: bytes, most: int) -> Sequence[Any]:
    try:
        entries = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise malformed("JSON", error) from error
    if isinstance(entries, dict) and "value" in entries:
        raise ReceiveError(
            "expected a list of KPIs, got a single one", reason=RejectionReason.MALFORMED, hint="wrap it in [ ]"
        )
    if not isinstance(entries, list):
        raise malformed("list of KPIs")
    if len(entries) > most:
        raise ReceiveError(
            f"the request holds {len(entries)} KPIs, more than {most}",
            reason=RejectionReason.TOO_LARGE,
            hint="send fewer entries per request",
        )
    return entries


def _finder(ctx: Context, unwatched: Sequence[str]) -> Callable[[str, str | None, str | None], Sequence[EntityRef]]:
    newest, topology = ctx.newest_cycle(), ctx.topology()
    by_name: Mapping[str, list[EntityRef]] = ctx.result_cache.get(
        ("services", newest.id if newest else None), lambda: _services(topology)
    )

    def find(name: str, namespace: str | None, cluster: str | None) -> Sequence[EntityRef]:
        matches = [
            service
            for service in by_name.get(name, ())
            if namespace in {None, service.namespace} and cluster in {None, service.cluster}
        ]
        if not matches and name in unwatched:
            return [EntityRef(cluster or ctx.settings.cluster, EntityKind.SERVICE, namespace, name)]
        return matches

    return find


def _services(topology: Topology) -> dict[str, list[EntityRef]]:
    by_name: dict[str, list[EntityRef]] = {}
    for service in topology.of_kind(EntityKind.SERVICE):
        by_name.setdefault(service.name, []).append(service)
    return by_name
