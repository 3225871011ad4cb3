"""``/received``: alerts of other monitors by webhook, and the list of those received.

A delivery is durable when it is answered. The engine turns it into an alert in its next cycle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter
from starlette.concurrency import run_in_threadpool

from collectors.receive.alert_formats import alertmanager, cloudevents, json_mapping
from collectors.receive.alert_formats.record import DecodedAlerts
from collectors.receive.protocol import ReceiveError, RejectionReason, too_large, unpack
from outrider import log
from outrider.audit import redact, redact_text
from outrider.clock import Clock, rfc3339
from outrider.documents import serialization
from outrider.errors import StoreError
from outrider.model import AlertState
from outrider.records.heartbeats import NEVER
from outrider.records.received_alerts import ReceivedAlert
from service.api import paging, security
from service.api.bodies import read_body
from service.api.context import Context, Ctx
from service.api.errors import ConflictError, DeniedError, NotFoundError
from service.api.errors import body as error_body
from service.api.ingest import signatures
from service.api.ingest.allowance import SenderAllowances
from service.api.ingest.endpoints import RETRY_AFTER_SECONDS
from service.api.ingest.push import STATUS
from service.api.routers.changes import now_of
from service.config.api_settings import AlertIngestSettings

router = APIRouter(tags=["receive"])
reads = APIRouter(tags=["receive"])
_log = log.get("receive")
_CLOUDEVENTS = "cloudevents"


class AlertReceiver:
    """Limits and counters of received alerts. Thread-safe."""

    def __init__(self, settings: AlertIngestSettings, clock: Clock, registry: CollectorRegistry) -> None:
        """``registry`` receives the counters."""
        self.settings = settings
        self._allowances = SenderAllowances(clock, settings.per_minute)
        self._alerts = Counter(
            "outrider_received_alerts",
            "Received alerts by source and outcome.",
            ["source", "outcome"],
            registry=registry,
        )
        self._requests = Counter(
            "outrider_received_alert_requests",
            "Deliveries of alerts by source and outcome.",
            ["source", "outcome"],
            registry=registry,
        )

    def take(self, source: str, sender: str, decoded: DecodedAlerts, ctx: Context) -> dict[str, int]:
        """Stores the alerts of one delivery, and the heartbeats among them. Raises ReceiveError, StoreError."""
        self._count(
            source, {"looped": decoded.looped, "truncated": decoded.truncated, "refused": len(decoded.problems)}
        )
        alerts = self._without_heartbeats(source, decoded.alerts, ctx)  # before the limit: a storm silences no watchdog
        wait = self._allowances.take(sender, len(alerts))
        if wait:
            raise TooManyAlertsError(sender, self.settings.per_minute, wait)
        receipt = ctx.state.receive_alerts([*alerts, *decoded.notes], self.settings.most_firing)
        if receipt.full:
            raise ReceiveError(
                f"more than {self.settings.most_firing} received alerts would be firing",
                reason=RejectionReason.FULL,
                hint="resolve alerts at their source, or raise receive.alerts.most_firing",
            )
        counts = {outcome.value: count for outcome, count in receipt.counts.items()}
        self._count(source, counts)
        if decoded.truncated:
            _log.warning("received_alerts_truncated", source=source, alerts=decoded.truncated)
        return counts

    def _without_heartbeats(self, source: str, alerts: Sequence[ReceivedAlert], ctx: Context) -> list[ReceivedAlert]:
        """Records the alerts that are heartbeats of a watchdog; returns the others. Its end is one that never was."""
        rest, heartbeats = list[ReceivedAlert](), dict[str, datetime]()
        for alert in alerts:
            watchdog = next(
                (item for item in self.settings.watchdogs if item.selects(alert.labels, alert.source)), None
            )
            if watchdog is None:
                rest.append(alert)
            else:
                heartbeats[watchdog.key] = alert.received_at if alert.is_firing else NEVER
        for key, at in heartbeats.items():
            ctx.state.beat(key, at)
        self._count(source, {"heartbeat": len(alerts) - len(rest)})
        return rest

    def answered(self, source: str, outcome: str) -> None:
        """Counts a delivery by its outcome."""
        self._requests.labels(source, outcome).inc()

    def _count(self, source: str, counts: Mapping[str, int]) -> None:
        for outcome, count in counts.items():
            if count:
                self._alerts.labels(source, outcome).inc(count)


class TooManyAlertsError(ReceiveError):
    """A sender exceeds its rate. ``wait`` is the time in seconds until it may send again."""

    def __init__(self, sender: str, per_minute: int, wait: float) -> None:
        """``sender`` is named in the message."""
        super().__init__(
            f"{sender} sends more than {per_minute} alerts a minute",
            reason=RejectionReason.TOO_FAST,
            hint="group alerts at their source, or raise receive.alerts.per_minute",
        )
        self.wait = wait


def receiver_of(request: Request) -> AlertReceiver:
    """The receiver of this application. Raises ConflictError if ingestion is disabled."""
    receiver: AlertReceiver | None = request.app.state.alert_receiver
    if receiver is None:
        raise ConflictError("Ingestion is disabled.", hint="set receive.enabled: true")
    return receiver


Receiver = Annotated[AlertReceiver, Depends(receiver_of)]


@router.post("/received/alertmanager")
async def from_alertmanager(request: Request, ctx: Ctx, receiver: Receiver) -> JSONResponse:
    """Alertmanager's webhook, version 4. 429 and 503: send again later."""
    return await _receive(request, ctx, receiver, alertmanager.ALERTMANAGER)


@router.post("/received/grafana")
@router.put("/received/grafana", include_in_schema=False)
async def from_grafana(request: Request, ctx: Ctx, receiver: Receiver) -> JSONResponse:
    """Grafana's alerting webhook."""
    return await _receive(request, ctx, receiver, alertmanager.GRAFANA)


@router.post("/received/cloudevents")
async def from_cloudevents(request: Request, ctx: Ctx, receiver: Receiver) -> JSONResponse:
    """CloudEvents 1.0: health events of NVSentinel."""
    return await _receive(request, ctx, receiver, _CLOUDEVENTS)


@router.post("/received/json/{source}")
async def from_json(source: str, request: Request, ctx: Ctx, receiver: Receiver) -> JSONResponse:
    """JSON of a monitor that is configured under ``receive.alerts.json_sources``."""
    if source not in receiver.settings.mappings:
        known = ", ".join(receiver.settings.mappings) or "none"
        raise NotFoundError(
            f"no source is named {source[:100]!r}", hint=f"configured under receive.alerts.json_sources: {known}"
        )
    return await _receive(request, ctx, receiver, source)


@router.post("/received/heartbeat/{name}")
def heartbeat(name: str, ctx: Ctx, receiver: Receiver, sender: security.Sender) -> dict[str, Any]:
    """The heartbeat of a watchdog that is configured under ``watchdogs``. Any body is ignored."""
    watchdog = next((item for item in receiver.settings.watchdogs if item.name == name), None)
    if watchdog is None:
        known = ", ".join(item.name for item in receiver.settings.watchdogs) or "none"
        raise NotFoundError(f"no watchdog is named {name[:100]!r}", hint=f"configured under watchdogs: {known}")
    now = now_of(ctx)
    ctx.state.beat(watchdog.key, now)
    return {"name": name, "at": rfc3339(now), "by": sender}


@reads.get("/received")
def received(
    ctx: Ctx,
    state: Annotated[list[AlertState] | None, Query(description="firing or resolved; all when absent")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Received alerts as their sources report them, newest start first."""
    selected, following = paging.by_key(
        lambda after, count: ctx.state.received_alerts(states=state, limit=count, after=after), None, cursor, limit
    )
    return {"received": [row(alert) for alert in selected], "next_cursor": following}


def row(alert: ReceivedAlert) -> dict[str, Any]:
    """A received alert as JSON. ``id`` is the fingerprint of its alert."""
    return {
        "id": alert.id,
        "source": alert.source,
        "fingerprint": alert.fingerprint,
        "name": alert.name,
        "state": alert.state.value,
        "priority": alert.priority.value,
        "fault": alert.fault,
        "starts_at": rfc3339(alert.starts_at),
        "ends_at": serialization.instant(alert.ends_at),
        "received_at": rfc3339(alert.received_at),
        "expires_at": serialization.instant(alert.expires_at),
        "deliveries": alert.deliveries,
        "labels": redact(alert.labels),
        "summary": redact_text(alert.summary),
        "description": redact_text(alert.description),
        "url": alert.url or None,
        "runbook": alert.runbook or None,
    }


async def _receive(request: Request, ctx: Context, receiver: AlertReceiver, source: str) -> JSONResponse:
    """Reads, authenticates, decodes and stores one delivery; counts its outcome."""
    headers: dict[str, str] = {}
    try:
        limit = receiver.settings.body_bytes
        packed = await read_body(request, limit, too_large(limit, "receive.alerts.body_limit_bytes"))
        response = await run_in_threadpool(_take, request, ctx, receiver, source, packed)
        outcome = "taken"
    except ReceiveError as error:
        wait = error.wait if isinstance(error, TooManyAlertsError) else float(RETRY_AFTER_SECONDS)
        status, outcome = STATUS[error.reason], error.reason.value
        headers = {"Retry-After": str(max(1, math.ceil(wait)))} if status in (429, 503) else {}
        response = JSONResponse(error_body(error.message, error.hint), status, headers)
    except StoreError as error:
        outcome, headers = "store", {"Retry-After": str(RETRY_AFTER_SECONDS)}
        response = JSONResponse(error_body(error.message, error.hint), 503, headers)
    receiver.answered(source, outcome)
    return response


def _take(request: Request, ctx: Context, receiver: AlertReceiver, source: str, packed: bytes) -> JSONResponse:
    sender, now, settings = _sender(request, ctx, receiver, source, packed), now_of(ctx), receiver.settings
    body = unpack(packed, request.headers.get("content-encoding", ""), settings.body_bytes)
    if source == _CLOUDEVENTS:
        decoded = cloudevents.decode(request.headers, body, settings.rules, now)
    elif source in settings.mappings:
        decoded = json_mapping.decode(source, body, settings.mappings[source], settings.rules, now)
    else:
        decoded = alertmanager.decode(source, body, settings.rules, now)
    counts = receiver.take(source, sender, decoded, ctx)
    accepted = bool(decoded.alerts or decoded.looped)
    content = {
        "accepted": len(decoded.alerts),
        **counts,
        "looped": decoded.looped,
        "truncated": decoded.truncated,
        "refused": decoded.problems[:100],
    }
    return JSONResponse(content, 200 if not decoded.problems else 207 if accepted else 400)


def _sender(request: Request, ctx: Context, receiver: AlertReceiver, source: str, body: bytes) -> str:
    """The sender: by a signature if its source has a secret, else by token. Raises DeniedError, audited."""
    secret = receiver.settings.secrets.get(source)
    if secret and signatures.is_signed(request.headers):
        if not signatures.verify(request.headers, body, secret, ctx.extras.clock.now()):
            security.audit_refusal(request, ctx, "wrong_signature")
            raise DeniedError(
                "The signature does not match the body, or its timestamp is not recent.",
                hint=f"set the same secret at the sender and in receive.alerts.secret_files.{source}",
            )
        return request.client.host if request.client else "unknown"
    # without the tenant that it names: each name would have an allowance of its own
    return security.sender(request, ctx, request.headers.get("authorization", ""), "")
