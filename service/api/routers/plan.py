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
from service.api.queries import entity_location
from service.engine import fleet_state
from service.planning import capacity_summary, concerned, forecast_accuracy, hindsight, role_pools

router = APIRouter(tags=["plan"])
_HISTORY_STEP = timedelta(minutes=10)
PLAN_LATE = timedelta(minutes=45)  # several plans were missed


@router.get("/plan")
def plan(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """The newest recommendation per service, with its derivation and open incidents, or the reason for none."""
    incidents = fleet_state.open_incidents(ctx.state)
    graph, drills = ctx.topology(), ctx.drills_around(incidents)
    pools = role_pools.with_pools(graph)
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "recommendations": [
            {
                **serialization.recommendation(item, lang),
                **capacity_summary.document(item, incidents, pools, lang),
                "derivation_lines": _lines(item, lang),
                "carries": _carries(item),
                "incidents": [
                    entity_location.incident_json(incident, graph, lang, drills)
                    for incident in incidents
                    if concerned.concerns(incident, item.service, pools)
                ],
            }
            for item in ctx.state.plan().recommendations
        ],
        "looking_back": _looking_back(ctx, lang),
    }


def _looking_back(ctx: Context, language: Language) -> dict[str, Any] | None:
    """The plan in hindsight for each service's last climb to a peak. None before the first evaluation."""
    change_log = ctx.extras.change_log
    document = None if change_log is None else change_log.document(hindsight.DOCUMENT)
    if document is None:
        return None
    services = [{**service, "sentence": hindsight.sentence(service, language)} for service in document[1]["services"]]
    return {"at": rfc3339(document[0]), "services": services}


@router.get("/scaling/{namespace}/{service}")
def scaling(ctx: Ctx, namespace: str, service: str) -> dict[str, Any]:
    """Replicas needed now, for KEDA's metrics-api scaler (``valueLocation: value``, target 1).

    ``namespace`` - means none. Without a fresh plan the response is 404 or 503 instead of a number: the autoscaler
    then holds (or uses its configured fallback) and removes nothing.
    """
    wanted = None if namespace == "-" else namespace
    known = {(item.service.namespace, item.service.name): item for item in ctx.state.plan().recommendations}
    recommendation = known.get((wanted, service))
    if recommendation is None:
        raise NotFoundError(f"no service is named {service} in {namespace}", hint="GET /api/v1/plan lists them")
    if isinstance(recommendation, NoRecommendation):
        raise UnavailableError(
            f"{service} has no plan: {recommendation.reason.value}", hint="run outrider capacity explain"
        )
    if not is_fresh(recommendation, ctx.as_of()):
        raise UnavailableError(
            f"the plan of {service} is stale: made at {rfc3339(recommendation.made_at)}",
            hint="check that the engine is running",
        )
    return {
        "value": replicas_wanted(recommendation, ctx.as_of()),
        "target_replicas": recommendation.target_replicas,
        "current_replicas": recommendation.current_replicas,
        "needed_by": serialization.instant(recommendation.needed_by),
        "reason": recommendation.reason.value,
        "made_at": rfc3339(recommendation.made_at),
    }


def wanted_of(state: StateReader, namespace: str, service: str) -> int | None:
    """Replicas needed by a service now. None without a fresh plan, or while the store is unavailable."""
    try:
        newest, plan_now = state.cycles(limit=1), state.plan()
    except StoreError:
        return None
    for item in plan_now.recommendations:
        if isinstance(item, Recommendation) and (item.service.namespace or "", item.service.name) == (
            namespace,
            service,
        ):
            return replicas_wanted(item, newest[0].at) if newest and is_fresh(item, newest[0].at) else None
    return None


def is_fresh(recommendation: Recommendation, now: datetime) -> bool:
    """False for a plan that is too old to scale by."""
    return now - recommendation.made_at <= PLAN_LATE


def replicas_wanted(recommendation: Recommendation, now: datetime) -> int:
    """The target once its start is due, the running replicas before: no scale-out starts too early."""
    grows = recommendation.target_replicas > recommendation.current_replicas
    waits = grows and recommendation.needed_by is not None and recommendation.needed_by > now
    return recommendation.current_replicas if waits else recommendation.target_replicas


@router.get("/forecasts")
def forecasts(
    ctx: Ctx,
    lang: Lang,
    history_hours: Annotated[
        float, Query(ge=0, le=14 * 24, description="hours of measured values before the forecast")
    ] = 0,
) -> dict[str, Any]:
    """The newest forecasts, with measured values before them if ``history_hours`` is given."""
    newest = ctx.state.plan().forecasts
    hours = timedelta(hours=history_hours)
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "forecasts": [
            {
                **serialization.forecast(forecast, lang),
                "unit": _unit(forecast),
                "history": _history(ctx, forecast, hours),
            }
            for forecast in newest
        ],
    }


@router.get("/forecasts/{namespace}/{service}/kept")
def forecasts_kept(
    ctx: Ctx,
    namespace: str,
    service: str,
    hours: Annotated[float, Query(gt=0, le=14 * 24, description="length of the evaluated period, in hours")] = 24,
) -> dict[str, Any]:
    """Stored forecasts of a service, load and peaks, compared with observed values, by lead time.

    ``namespace`` - means none.
    """
    wanted = None if namespace == "-" else namespace
    known = {(item.service.namespace, item.service.name): item.service for item in ctx.state.plan().recommendations}
    entity = known.get((wanted, service))
    if entity is None:
        raise NotFoundError(f"no service is named {service} in {namespace}", hint="GET /api/v1/plan lists them")
    rows = forecast_accuracy.accuracy_by_horizon(ctx.state, ctx.metrics, entity, ctx.as_of(), timedelta(hours=hours))
    return {
        "as_of": serialization.instant(ctx.as_of()),
        "entity": serialization.entity(entity),
        "horizons": [row.as_dict() for row in rows],
    }


def _lines(item: Recommendation | NoRecommendation, language: Language) -> list[str]:
    return [] if isinstance(item, NoRecommendation) else derivation.lines(item, language)


def _carries(item: Recommendation | NoRecommendation) -> dict[str, float | None]:
    """Requests per second that current, target and floor replicas serve, with buffer."""
    known = None if isinstance(item, NoRecommendation) else item
    derived = known.derivation if known else {}
    if known is None or not known.current_replicas or "capacity_now" not in derived:
        return {"current": None, "target": None, "floor": None}
    per_replica = derived["capacity_now"] / known.current_replicas
    return {
        "current": serialization.finite(per_replica * known.current_replicas),
        "target": serialization.finite(per_replica * known.target_replicas),
        "floor": serialization.finite(per_replica * known.floor),
    }


def _unit(forecast: Forecast) -> str:
    known = catalog.signals().get(forecast.signal)
    return known.unit if known else ""


def _history(ctx: Context, forecast: Forecast, hours: timedelta) -> dict[str, Any]:
    if not hours:
        return {"times": [], "values": []}
    key = forecast_accuracy.key_of(forecast.signal)
    now = ctx.as_of()
    end = now + timedelta(seconds=1)
    entities = [forecast.entity]
    window = ctx.metrics.read_windows(forecast.entity.kind, [key], end - hours, end, _HISTORY_STEP, entities)
    values = window.column(key)
    return {
        "times": serialization.instants(window.times),
        "values": serialization.numbers(values[0]) if len(values) else [],
    }
