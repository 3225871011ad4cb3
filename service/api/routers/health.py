"""``/-/healthy``, ``/-/ready`` and ``/metrics``: for probes and for monitoring Outrider itself."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from outrider.errors import StoreError
from outrider.vocabulary.units import format_duration
from service.api.context import LATE_AFTER_CYCLES, Ctx

router = APIRouter(tags=["health"])


@router.get("/-/healthy")
def healthy() -> dict[str, str]:
    """The process responds."""
    return {"status": "healthy"}


@router.get("/-/ready")
def ready(ctx: Ctx) -> JSONResponse:
    """The store responds and cycles run; 503 with the reason otherwise."""
    try:
        newest = ctx.newest_cycle()
    except StoreError as error:
        return JSONResponse({"status": "not_ready", "reason": "store_unavailable", "message": error.message}, 503)
    if newest is None:
        return JSONResponse({"status": "not_ready", "reason": "no_cycle", "message": "No cycle has run yet."}, 503)
    if not ctx.watch.is_fresh(newest):
        limit = format_duration(ctx.settings.interval * LATE_AFTER_CYCLES)
        message = f"No new cycle for more than {limit}; is the engine process running?"
        return JSONResponse({"status": "not_ready", "reason": "no_new_cycle", "message": message}, 503)
    return JSONResponse({"status": "ready", "cycle": newest.id})


@router.get("/metrics")
def metrics(ctx: Ctx) -> Response:
    """Own metrics in Prometheus text format."""
    return Response(generate_latest(ctx.extras.registry), media_type=CONTENT_TYPE_LATEST)
