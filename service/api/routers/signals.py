"""``/signals``, ``/catalog``, ``/topology``, ``/health/targets`` and ``/version``."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import CellStatus, EntityKind, EntityRef, SignalKey, SignalKind
from outrider.topology import Topology
from outrider.vocabulary import catalog
from outrider.vocabulary.units import parse_duration
from service.api import paging
from service.api.context import Context, Ctx
from service.api.errors import NotFoundError
from service.api.routers import evidence

router = APIRouter(tags=["signals"])
_MOST_POINTS, _MOST_ENTITIES = 5000, 50
_DEFAULT_SPAN = timedelta(hours=1)
_TARGET_KEYS = (SignalKey("target_up"), SignalKey("target_scrape_seconds"), SignalKey("target_samples"))


@router.get("/signals/{name}/series")
def series(
    name: str,
    ctx: Ctx,
    entity: Annotated[
        list[str] | None, Query(description="cluster/kind/namespace/name, namespace may be empty; repeat for several")
    ] = None,
    start: Annotated[AwareDatetime | None, Query(description="default: one hour before the end")] = None,
    end: Annotated[AwareDatetime | None, Query(description="default: the newest cycle")] = None,
    step: Annotated[str | None, Query(description="such as 15s, 1m, 1h; default: 240 points")] = None,
    quantile: Annotated[float | None, Query(gt=0, lt=1, description="of a histogram; default .99")] = None,
) -> dict[str, Any]:
    """Values of one signal on an even grid; a step without a value is null."""
    if not catalog.known(name):
        raise NotFoundError(f"no signal is named {name!r}", hint="GET /api/v1/catalog lists them")
    signal = catalog.signal(name)
    until = end or ctx.as_of() + timedelta(seconds=1)
    since = start or until - _DEFAULT_SPAN
    interval = parse_duration(step) if step else evidence.step_for(until - since)
    if until <= since or interval <= timedelta(0):
        raise UsageError("start must be before end, and step above 0")
    if (until - since) / interval > _MOST_POINTS:
        raise UsageError(f"that is more than {_MOST_POINTS} points", hint="use a longer step or a shorter span")
    level = (quantile or 0.99) if signal.kind is SignalKind.HISTOGRAM else None
    key = SignalKey(name, quantile=level)
    rows, about = [], list[EntityRef]()
    for kind, entities in _by_kind(ctx, entity, signal.entity).items():
        window = ctx.metrics.read_windows(kind, [key], since, until, interval, entities)
        times, values = serialization.instants(window.times), window.column(key)
        rows += [
            {"entity": serialization.entity(item), "times": times, "values": serialization.numbers(values[row])}
            for row, item in enumerate(window.entities)
        ]
        about += window.entities
    unit = kpi_unit(ctx.topology(), name, about) if name.startswith(catalog.KPI_PREFIX) else signal.unit
    return {"signal": name, "unit": unit, "quantile": level, "step_seconds": interval.total_seconds(), "series": rows}


def kpi_unit(topology: Topology, name: str, about: Iterable[EntityRef]) -> str:
    """Unit that the sender of a KPI gives; empty if none, or if the services differ."""
    units = {topology.label(entity, f"{name}_unit") for entity in about}
    return units.pop() if len(units) == 1 else ""


@router.get("/catalog")
def catalogue() -> list[dict[str, Any]]:
    """Every canonical signal: layer, unit, kind, direction, entity, description."""
    return [
        {
            "name": signal.name,
            "tier": signal.tier,
            "layer": signal.layer.value,
            "unit": signal.unit,
            "kind": signal.kind.value,
            "entity": signal.entity.value,
            "good": signal.good,
            "means": signal.means,
            "bounds": list(signal.bounds),
        }
        for signal in catalog.signals().values()
    ]


@router.get("/topology")
def topology(
    ctx: Ctx,
    kind: Annotated[EntityKind | None, Query(description="only entities of this kind")] = None,
    at: Annotated[AwareDatetime | None, Query(description="topology at this time; default: now")] = None,
    limit: paging.Limit = 1000,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Entities, paginated, each with its dependencies and labels."""
    graph = ctx.topology() if at is None else ctx.state.topology(at)
    every = sorted((e for e in graph.entities if kind is None or e.kind is kind), key=lambda e: e.key)
    selected, following = paging.page(lambda count: every[:count], None, cursor, limit)
    return {
        "at": serialization.instant(graph.at),
        "total": len(every),
        "entities": [
            {
                **serialization.entity(item),
                "rests_on": [serialization.entity(lower) for lower in graph.rests_on(item)],
                "labels": dict(graph.labels.get(item, {})),
            }
            for item in selected
        ],
        "next_cursor": following,
    }


@router.get("/health/targets")
def targets(
    ctx: Ctx,
    down: Annotated[bool, Query(description="only those that are down")] = False,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Scrape targets, those that are down first."""
    every = (
        [serialization.target(item) for item in ctx.extras.targets()] if ctx.extras.targets else _stored_targets(ctx)
    )
    every.sort(key=lambda row: (row["up"], row["target"]))
    chosen = [row for row in every if not (down and row["up"])]
    selected, following = paging.page(lambda count: chosen[:count], None, cursor, limit)
    return {"total": len(every), "up": sum(row["up"] for row in every), "targets": selected, "next_cursor": following}


@router.get("/version")
def versions(ctx: Ctx) -> dict[str, Any]:
    """Versions of the program, Python and the database schema."""
    try:
        installed = version("outrider")
    except PackageNotFoundError:
        installed = "unknown"
    revision = ctx.extras.database_revision
    return {"version": installed, "python": platform.python_version(), "database": revision() if revision else None}


def _by_kind(ctx: Context, wanted: list[str] | None, kind: EntityKind) -> dict[EntityKind, list[EntityRef]]:
    if not wanted:
        every = ctx.metrics.entities(kind)
        return {kind: list(every[:_MOST_ENTITIES])}
    if len(wanted) > _MOST_ENTITIES:
        raise UsageError(f"at most {_MOST_ENTITIES} entities at once", hint="split the request")
    by_kind: dict[EntityKind, list[EntityRef]] = {}
    for text in wanted:
        try:
            entity = EntityRef.from_key(text)
        except ValueError as error:
            raise UsageError(
                f"{text!r} is not an entity", hint="write cluster/kind/namespace/name, for example lab/gpu//GPU-1"
            ) from error
        by_kind.setdefault(entity.kind, []).append(entity)
    return by_kind


def _stored_targets(ctx: Context) -> list[dict[str, Any]]:
    rows = []
    for kind in (EntityKind.NODE, EntityKind.REPLICA, EntityKind.GPU, EntityKind.SERVICE, EntityKind.CLUSTER):
        window = ctx.metrics.latest(kind, _TARGET_KEYS)
        if window.times.size == 0:
            continue
        up, seconds, samples = (window.column(key)[:, -1] for key in _TARGET_KEYS)
        known = window.column_status(_TARGET_KEYS[0])[:, -1] == CellStatus.PRESENT
        for row, entity in enumerate(window.entities):
            if known[row]:
                rows.append(_stored_target(entity, float(up[row]), float(seconds[row]), float(samples[row])))
    return rows


def _stored_target(entity: EntityRef, up: float, seconds: float, samples: float) -> dict[str, Any]:
    return {
        "target": str(entity),
        "adapter": None,
        "up": up > 0,
        "samples": int(samples) if samples == samples else None,  # noqa: PLR0124 - NaN differs from itself
        "duration_seconds": serialization.finite(seconds),
        "error": None,
    }
