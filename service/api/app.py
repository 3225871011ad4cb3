"""The application: routers, access control, error format."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Histogram

from collectors.logs.matcher import LogMatcher
from collectors.receive import otlp_logs as otlp_lines
from outrider.ports import MetricStore, StateStore
from outrider.wire.alertmanager import origin_of
from service.api import errors
from service.api.context import LATE_AFTER_CYCLES, Context, CycleWatch
from service.api.dependencies import ApiExtras
from service.api.ingest import otlp_logs, push, received_alerts
from service.api.ingest.endpoints import IngestBufferCollector, IngestEndpoints
from service.api.ingest.received_alerts import AlertReceiver
from service.api.routers import (
    actions,
    alerts,
    buttons,
    capacity,
    changes,
    detectors,
    drills,
    feedback,
    health,
    incidents,
    knowledge,
    notifications,
    oncall,
    overview,
    plan,
    response,
    signals,
    silences,
    slos,
    startups,
)
from service.api.routers.own_metrics import StateCollector, StoreCollector, WriteBufferCollector
from service.api.security import REFUSALS_PER_MINUTE, Limiter, reader
from service.config.api_settings import ApiSettings
from service.oncall.button_tokens import signer_of
from service.oncall.roster import RosterSource
from store.tsdb.metric_store import SqlMetricStore

PREFIX = "/api/v1"
_ROUTERS: tuple[APIRouter, ...] = (
    overview.router,
    alerts.router,
    silences.router,
    incidents.router,
    response.router,
    oncall.router,
    knowledge.router,
    feedback.router,
    plan.router,
    capacity.router,
    actions.router,
    notifications.router,
    drills.router,
    signals.router,
    changes.router,
    startups.router,
    slos.router,
    detectors.router,
    received_alerts.reads,
)


def create_app(
    state: StateStore, metrics: MetricStore, settings: ApiSettings, extras: ApiExtras | None = None
) -> FastAPI:
    """Builds the application. The caller stays responsible for closing the stores."""
    parts = extras or ApiExtras()
    app = FastAPI(
        title="Outrider",
        description="Incidents, actions, SLO status and capacity plan of an LLM-serving fleet. "
        "Reads are open on loopback; every write needs `Authorization: Bearer <admin token>`.",
        version="1",
        openapi_url=f"{PREFIX}/openapi.json",
    )
    origin = origin_of(settings.cluster, state.installation())
    watch = CycleWatch(parts.clock, settings.interval * LATE_AFTER_CYCLES)
    signer = signer_of(settings.public_url, settings.button_key)
    app.state.context = Context(state, metrics, settings, parts, watch, RosterSource(settings.oncall, state), signer)
    app.state.refusals = Limiter(parts.clock, REFUSALS_PER_MINUTE)
    app.state.ingest_endpoints = None
    if settings.ingest is not None and parts.ingest_buffer is not None:
        app.state.ingest_endpoints = IngestEndpoints(settings.ingest, parts.ingest_buffer, parts.clock, parts.registry)
        parts.registry.register(IngestBufferCollector(parts.ingest_buffer))
    app.state.alert_receiver = None
    if settings.ingest is not None:
        alerts = settings.ingest.alerts.of_origin(origin)
        app.state.alert_receiver = AlertReceiver(alerts, parts.clock, parts.registry)
    app.state.log_lines = LogMatcher(otlp_lines.SOURCE)
    errors.install(app)
    for router in _ROUTERS:
        app.include_router(router, prefix=PREFIX, dependencies=[Depends(reader)])
    # Senders need no reader token: they use the push token or sign their requests, and buttons are signed.
    signed = (push.router, changes.announced, otlp_logs.router, received_alerts.router, buttons.router)
    for router in signed:
        app.include_router(router, prefix=PREFIX)
    app.include_router(health.router)
    parts.registry.register(StateCollector(state, origin))
    if isinstance(metrics, SqlMetricStore):
        parts.registry.register(StoreCollector(metrics))
    if settings.spool is not None:
        parts.registry.register(WriteBufferCollector(settings.spool))
    app.middleware("http")(_timed(parts.registry))
    app.middleware("http")(_known_host(settings.hosts))
    return app


_Next = Callable[[Request], Awaitable[Response]]
_Middleware = Callable[[Request, _Next], Awaitable[Response]]


def _known_host(hosts: tuple[str, ...]) -> _Middleware:
    """Rejects unknown host names: a web page could rebind its own name to this address."""

    async def check(request: Request, call_next: _Next) -> Response:
        name = request.headers.get("host", "").rsplit(":", 1)[0] if _has_port(request) else request.headers.get("host")
        if "*" in hosts or name in hosts:
            return await call_next(request)
        hint = "use a loopback name, or add this name to api.hosts"
        return JSONResponse(errors.body(f"Unknown host name {name!r}.", hint), 400)

    return check


def _has_port(request: Request) -> bool:
    host = request.headers.get("host", "")
    return host.rsplit(":", 1)[-1].isdecimal() and not host.endswith("]")


def _timed(registry: CollectorRegistry) -> _Middleware:
    """Counts and times requests per route, not per path, so that ids do not become labels."""
    seconds = Histogram(
        "outrider_api_request_seconds", "Duration of API requests.", ["method", "route", "status"], registry=registry
    )

    async def measure(request: Request, call_next: _Next) -> Response:
        start = time.perf_counter()
        response = await call_next(request)
        route = getattr(request.scope.get("route"), "path", "none")
        labels = (request.method, route, str(response.status_code))
        seconds.labels(*labels).observe(time.perf_counter() - start)
        return response

    return measure
