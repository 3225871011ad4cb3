"""``/drills``: inject faults into the simulated fleet, and compare truth with results."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from outrider.clock import rfc3339
from outrider.documents import serialization
from outrider.errors import UnavailableError, UsageError
from outrider.model import EntityKind, EntityRef
from outrider.records.drill import Drill
from outrider.text import yaml_file
from service.api.context import Context, Ctx
from service.api.errors import ConflictError, NotFoundError
from service.api.security import Writer
from service.drills import running_platform
from service.drills.control import FaultControl
from simulator.faults import FAULTS

router = APIRouter(tags=["drills"])


class Order(BaseModel):
    """Fault to inject. Without ``entity`` the seed selects one."""

    model_config = ConfigDict(extra="forbid")
    fault: str = Field(description="a fault id")
    entity: str | None = Field(None, description="entity name, or cluster/kind/namespace/name")
    seconds: Annotated[float | None, Field(gt=0, le=86400)] = Field(
        None, description="duration; default: that of the fault"
    )
    seed: int = Field(0, ge=0, description="seed for entity and magnitude")


class AnnouncedEntity(BaseModel):
    """Faulted component of an announced drill."""

    model_config = ConfigDict(extra="forbid")
    cluster: str = Field(min_length=1)
    kind: EntityKind
    namespace: str | None = None
    name: str = Field(min_length=1)


class Announcement(BaseModel):
    """A drill that the sender injects itself, on a real cluster."""

    model_config = ConfigDict(extra="forbid")
    id: str = Field(pattern=f"^{running_platform.ANNOUNCED}[a-z0-9-]{{1,80}}$", description="id that begins with k8s-")
    fault: str = Field(description="a fault id")
    entity: AnnouncedEntity
    seconds: Annotated[float, Field(gt=0, le=86400)] = Field(description="duration")
    seed: int = Field(0, ge=0, description="seed that chose the entity")


@router.get("/drills")
def drills(ctx: Ctx, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> dict[str, Any]:
    """Drills, newest first, each with truth and results; and the available faults."""
    possible, known, injected = True, [], []
    reason = ""
    try:
        control = _control(ctx)
        known, injected = control.known(), control.listed()
    except (UnavailableError, ConflictError) as error:
        possible, reason = False, f"{error.message}; {error.hint}" if error.hint else error.message
    return {
        "possible": possible,
        "why_not": reason or None,
        "known": known,
        "drills": _judged(ctx, injected)[:limit],
    }


@router.get("/drills/{drill_id}")
def drill(
    drill_id: str, ctx: Ctx, recovered_at: datetime | None = None, pod_created_at: datetime | None = None
) -> dict[str, Any]:
    """One drill. The injector of an announced drill knows when its target had recovered, and by which new pod."""
    injected = _injected(ctx)
    if recovered_at is not None and running_platform.is_announced(drill_id):
        created = serialization.instant(pod_created_at)
        known = {"recovered_at": rfc3339(recovered_at), "pod_created_at": created, "newest_pod_at": created}
        injected = [*injected, {"id": drill_id, **known}]
    selected = next((row for row in _judged(ctx, injected) if row["id"] == drill_id), None)
    if selected is None:
        raise _unknown(drill_id)
    return selected


@router.post("/drills")
def start(order: Order, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Inject a fault now."""
    request = order.model_dump(exclude_none=True)
    begun = running_platform.start(ctx.state, _control(ctx), request, by=by, now=ctx.as_of())
    return drill(begun.id, ctx)


@router.post("/drills/announced")
def announce(order: Announcement, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Announce a drill on a real cluster: its messages are marked, and its result is scored."""
    known = FAULTS.get(order.fault)
    if known is None:
        raise UsageError(
            f"unknown fault {order.fault!r}{yaml_file.near(order.fault, FAULTS)}", hint="outrider drill list"
        )
    entity = EntityRef(order.entity.cluster, order.entity.kind, order.entity.namespace, order.entity.name)
    now = ctx.as_of()
    begun = Drill(
        id=order.id,
        fault=order.fault,
        entity=entity,
        seed=order.seed,
        starts_at=now,
        ends_at=now + timedelta(seconds=order.seconds),
        by=by,
        negative=known.negative,
    )
    running_platform.announce(ctx.state, begun, ctx.state.drills())
    return drill(begun.id, ctx)


@router.post("/drills/{drill_id}/stop")
def stop(drill_id: str, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Stop a drill early and revert the fault."""
    control = None if running_platform.is_announced(drill_id) else _control(ctx)
    running_platform.stop(ctx.state, control, _known(ctx, drill_id), by=by, now=ctx.as_of())
    return drill(drill_id, ctx)


def _known(ctx: Context, drill_id: str) -> Drill:
    selected = next((drill for drill in _visible(ctx) if drill.id == drill_id), None)
    if selected is None:
        raise _unknown(drill_id)
    return selected


def _judged(ctx: Context, injected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Scores of all drills: the assignment of incidents to one depends on the others."""
    return running_platform.judge(ctx.state, _visible(ctx), injected)


def _visible(ctx: Context) -> list[Drill]:
    """All drills, newest first, without game days that have not started: these are unannounced."""
    now = ctx.as_of()
    return [drill for drill in ctx.state.drills() if drill.game_day is None or drill.starts_at <= now]


def _unknown(drill_id: str) -> NotFoundError:
    return NotFoundError(f"no drill has the id {drill_id!r}", hint="GET /api/v1/drills lists them")


def _injected(ctx: Context) -> list[dict[str, Any]]:
    try:
        return _control(ctx).listed()
    except (UnavailableError, UsageError, ConflictError):
        return []


def _control(ctx: Context) -> FaultControl:
    if ctx.settings.control_url is None:
        raise ConflictError(
            "This platform does not monitor a simulated fleet, so faults cannot be injected.",
            hint="outrider demo monitors one; outrider drill run uses a private one",
        )
    return FaultControl(ctx.settings.control_url)
