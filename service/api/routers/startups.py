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
from service.api.routers.changes import ledger_of

router = APIRouter(tags=["startups"])
AUDIT_DOCUMENT = "workload_audit"  # what service.sources.change_log_source leaves


@router.get("/startups")
def startups(
    ctx: Ctx,
    since: Annotated[AwareDatetime | None, Query(description="starts that began at or after it")] = None,
    service: Annotated[str | None, Query(description="of this service or workload")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Start-ups of replicas with their phases, newest first, and the lead time from those on this result page."""
    ledger = ledger_of(ctx)

    def keep(one: Startup) -> bool:
        return service is None or service in (one.service, one.workload)

    found, following = paging.by_key(
        lambda after, count: ledger.startups(since=since, limit=count, after=after), keep, cursor, limit
    )
    lead = {f"p{level}": lead_time_quantile(found, level / 100) for level in (50, 95)}
    return {
        "startups": [startup_row(one) for one in found],
        "lead_time_seconds": {name: None if one is None else one.total_seconds() for name, one in lead.items()},
        "next_cursor": following,
    }


@router.get("/placements")
def placements(
    ctx: Ctx, at: Annotated[AwareDatetime | None, Query(description="default: now")] = None
) -> dict[str, Any]:
    """Pods and nodes of each replica at a time."""
    when = at or ctx.as_of()
    found = ledger_of(ctx).placed_at(when)
    return {"at": rfc3339(when), "placements": [_placement(one) for one in found]}


@router.get("/audit/workloads")
def workload_audit(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """Misconfigured workloads of model services; ``at`` is null if no Kubernetes API has been read."""
    kept = ledger_of(ctx).document(AUDIT_DOCUMENT)
    if kept is None:
        return {"at": None, "findings": []}
    at, paper = kept
    found = [{**one, "found": one["found"][lang], "do": one["do"][lang]} for one in paper["findings"]]
    return {"at": rfc3339(at), "findings": found}


def startup_row(one: Startup) -> dict[str, Any]:
    """A start-up as JSON."""
    return {
        "id": one.id,
        **_placement(one),
        "image": one.image or None,
        "ready_at": serialization.instant(one.ready_at),
        "first_request_at": serialization.instant(one.served_at),
        "lead_time_seconds": None if one.lead_time is None else one.lead_time.total_seconds(),
        "phases": [
            {"phase": each.phase.value, "seconds": each.seconds, "read_from": each.read_from} for each in one.phases
        ],
    }


def _placement(one: Startup) -> dict[str, Any]:
    return {
        "pod": serialization.entity(one.pod),
        "replica": one.replica or None,
        "workload": one.workload or None,
        "service": one.service or None,
        "node": one.node or None,
        "gpu_type": one.gpu_type or None,
        "gpus": one.gpus,
        "began_at": rfc3339(one.began_at),
        "gone_at": serialization.instant(one.gone_at),
    }
