"""``/startups``, ``/placements`` and ``/audit/workloads``: start-up phases, placements, workload audit."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from outrider.clock import rfc3339
from outrider.documents import serialization
from outrider.records.change_log import Startup, lead_time_quantile
from service.api import paging
from service.api.context import Ctx, Lang
from service.api.routers.changes import change_log_of

router = APIRouter(tags=["startups"])
AUDIT_DOCUMENT = "workload_audit"  # written by service.sources.change_log_source


@router.get("/startups")
def startups(
    ctx: Ctx,
    since: Annotated[AwareDatetime | None, Query(description="start-ups that began at or after this time")] = None,
    service: Annotated[str | None, Query(description="of this service or workload")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Start-ups of replicas with their phases, newest first, and the lead time from those on this result page."""
    change_log = change_log_of(ctx)

    def keep(start: Startup) -> bool:
        return service is None or service in (start.service, start.workload)

    selected, following = paging.by_key(
        lambda after, count: change_log.startups(since=since, limit=count, after=after), keep, cursor, limit
    )
    lead = {f"p{level}": lead_time_quantile(selected, level / 100) for level in (50, 95)}
    return {
        "startups": [startup_row(start) for start in selected],
        "lead_time_seconds": {name: None if time is None else time.total_seconds() for name, time in lead.items()},
        "next_cursor": following,
    }


@router.get("/placements")
def placements(
    ctx: Ctx, at: Annotated[AwareDatetime | None, Query(description="default: now")] = None
) -> dict[str, Any]:
    """Pods and nodes of each replica at a time."""
    when = at or ctx.as_of()
    placed = change_log_of(ctx).placed_at(when)
    return {"at": rfc3339(when), "placements": [_placement(start) for start in placed]}


@router.get("/audit/workloads")
def workload_audit(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """Misconfigured workloads of model services; ``at`` is null if no Kubernetes API has been read."""
    stored = change_log_of(ctx).document(AUDIT_DOCUMENT)
    if stored is None:
        return {"at": None, "findings": []}
    at, document = stored
    findings = [
        {**finding, "found": finding["found"][lang], "do": finding["do"][lang]} for finding in document["findings"]
    ]
    return {"at": rfc3339(at), "findings": findings}


def startup_row(start: Startup) -> dict[str, Any]:
    """A start-up as JSON."""
    return {
        "id": start.id,
        **_placement(start),
        "image": start.image or None,
        "ready_at": serialization.instant(start.ready_at),
        "first_request_at": serialization.instant(start.served_at),
        "lead_time_seconds": None if start.lead_time is None else start.lead_time.total_seconds(),
        "phases": [
            {"phase": phase.phase.value, "seconds": phase.seconds, "read_from": phase.read_from}
            for phase in start.phases
        ],
    }


def _placement(start: Startup) -> dict[str, Any]:
    return {
        "pod": serialization.entity(start.pod),
        "replica": start.replica or None,
        "workload": start.workload or None,
        "service": start.service or None,
        "node": start.node or None,
        "gpu_type": start.gpu_type or None,
        "gpus": start.gpus,
        "began_at": rfc3339(start.began_at),
        "gone_at": serialization.instant(start.gone_at),
    }
