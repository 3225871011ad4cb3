"""``/plan``, ``/forecasts``, ``/scaling``: replicas and GPUs, start times and reasons; one number for KEDA."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query

from outrider.clock import rfc3339
from outrider.documents import serialization
from outrider.errors import StoreError, UnavailableError
from outrider.model import Forecast, NoRecommendation, Recommendation
from outrider.ports import StateReader
from outrider.text.i18n import Language
from outrider.vocabulary import catalog
from planner.capacity import derivation
from service.api.context import Context, Ctx, Lang
from service.api.errors import NotFoundError
from service.planning import forecast_accuracy, hindsight

router = APIRouter(tags=["plan"])
_HISTORY_STEP = timedelta(minutes=10)
PLAN_LATE = timedelta(minutes=45)  # several plans have been missed


@router.get("/plan")
def plan(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """The newest recommendation per service, with its derivation, or the reason why there is none."""
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "recommendations": [
            {
                **serialization.recommendation(found, lang),
                "derivation_lines": _lines(found, lang),
                "carries": _carries(found),
            }
            for found in ctx.state.plan().recommendations
        ],
        "looking_back": _looking_back(ctx, lang),
    }


def _looking_back(ctx: Context, language: Language) -> dict[str, Any] | None:
    """The plan in hindsight for each service's last climb to a peak. None before the first evaluation."""
    ledger = ctx.extras.ledger
    kept = None if ledger is None else ledger.document(hindsight.DOCUMENT)
    if kept is None:
        return None
    found = [{**one, "sentence": hindsight.sentence(one, language)} for one in kept[1]["services"]]
    return {"at": rfc3339(kept[0]), "services": found}


@router.get("/scaling/{namespace}/{service}")
def scaling(ctx: Ctx, namespace: str, service: str) -> dict[str, Any]:
    """Replicas needed now, for KEDA's metrics-api scaler (``valueLocation: value``, target 1).

    ``namespace`` - means none. Without a fresh plan the response is 404 or 503 instead of a number: the autoscaler
    then holds (or uses its configured fallback) and removes nothing.
    """
    wanted = None if namespace == "-" else namespace
    known = {(one.service.namespace, one.service.name): one for one in ctx.state.plan().recommendations}
    found = known.get((wanted, service))
    if found is None:
        raise NotFoundError(f"No service is named {service} in {namespace}.", hint="GET /api/v1/plan lists them")
    if isinstance(found, NoRecommendation):
        raise UnavailableError(f"{service} has no plan: {found.reason.value}", hint="run outrider capacity explain")
    if not is_fresh(found, ctx.as_of()):
        raise UnavailableError(
            f"the plan of {service} is of {rfc3339(found.made_at)}", hint="check that the engine is running"
        )
    return {
        "value": replicas_wanted(found, ctx.as_of()),
        "target_replicas": found.target_replicas,
        "current_replicas": found.current_replicas,
        "needed_by": serialization.instant(found.needed_by),
        "reason": found.reason.value,
        "made_at": rfc3339(found.made_at),
    }


def wanted_of(state: StateReader, namespace: str, service: str) -> int | None:
    """Replicas needed by a service now. None without a fresh plan, or while the store is unavailable."""
    try:
        newest, plan_now = state.cycles(limit=1), state.plan()
    except StoreError:
        return None
    for one in plan_now.recommendations:
        if isinstance(one, Recommendation) and (one.service.namespace or "", one.service.name) == (namespace, service):
            return replicas_wanted(one, newest[0].at) if newest and is_fresh(one, newest[0].at) else None
    return None


def is_fresh(found: Recommendation, now: datetime) -> bool:
    """False for a plan that is too old to scale by."""
    return now - found.made_at <= PLAN_LATE


def replicas_wanted(found: Recommendation, now: datetime) -> int:
    """The target once its start is due, the running replicas before: no scale-out starts too early."""
    grows = found.target_replicas > found.current_replicas
    waits = grows and found.needed_by is not None and found.needed_by > now
    return found.current_replicas if waits else found.target_replicas


@router.get("/forecasts")
def forecasts(
    ctx: Ctx,
    lang: Lang,
    history_hours: Annotated[float, Query(ge=0, le=14 * 24, description="measured values given along")] = 0,
) -> dict[str, Any]:
    """The newest forecasts, with measured values before them if ``history_hours`` is given."""
    found = ctx.state.plan().forecasts
    hours = timedelta(hours=history_hours)
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "forecasts": [
            {**serialization.forecast(each, lang), "unit": _unit(each), "history": _history(ctx, each, hours)}
            for each in found
        ],
    }


@router.get("/forecasts/{namespace}/{service}/kept")
def forecasts_kept(
    ctx: Ctx,
    namespace: str,
    service: str,
    hours: Annotated[float, Query(gt=0, le=14 * 24, description="forecasts for instants of so many hours")] = 24,
) -> dict[str, Any]:
    """Stored forecasts of a service, load and peaks, compared with observed values, by lead time.

    ``namespace`` - means none.
    """
    wanted = None if namespace == "-" else namespace
    known = {(one.service.namespace, one.service.name): one.service for one in ctx.state.plan().recommendations}
    found = known.get((wanted, service))
    if found is None:
        raise NotFoundError(f"No service is named {service} in {namespace}.", hint="GET /api/v1/plan lists them")
    rows = forecast_accuracy.accuracy_by_horizon(ctx.state, ctx.metrics, found, ctx.as_of(), timedelta(hours=hours))
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "entity": serialization.entity(found),
        "horizons": [row.as_dict() for row in rows],
    }


def _lines(found: Recommendation | NoRecommendation, language: Language) -> list[str]:
    return [] if isinstance(found, NoRecommendation) else derivation.lines(found, language)


def _carries(found: Recommendation | NoRecommendation) -> dict[str, float | None]:
    """Requests per second that current, target and floor replicas serve, with buffer."""
    known = None if isinstance(found, NoRecommendation) else found
    derived = known.derivation if known else {}
    if known is None or not known.current_replicas or "capacity_now" not in derived:
        return {"current": None, "target": None, "floor": None}
    per_replica = derived["capacity_now"] / known.current_replicas
    return {
        "current": serialization.finite(per_replica * known.current_replicas),
        "target": serialization.finite(per_replica * known.target_replicas),
        "floor": serialization.finite(per_replica * known.floor),
    }


def _unit(found: Forecast) -> str:
    known = catalog.signals().get(found.signal)
    return known.unit if known else ""


def _history(ctx: Context, found: Forecast, hours: timedelta) -> dict[str, Any]:
    if not hours:
        return {"times": [], "values": []}
    key = forecast_accuracy.key_of(found.signal)
    now = ctx.as_of()
    end = now + timedelta(seconds=1)
    entities = [found.entity]
    window = ctx.metrics.read_windows(found.entity.kind, [key], end - hours, end, _HISTORY_STEP, entities)
    values = window.column(key)
    return {
        "times": serialization.instants(window.times),
        "values": serialization.numbers(values[0]) if len(values) else [],
    }
