"""``/plan`` and ``/forecasts``: how many replicas and GPUs, by when, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query

from outrider import catalog, jsonable
from outrider.i18n import Language
from outrider.model import Forecast, NoRecommendation, Recommendation, SignalKey, SignalKind
from planner import reasoning
from service.api.context import Context, Ctx, Lang

router = APIRouter(tags=["plan"])
_HISTORY_STEP = timedelta(minutes=10)


@router.get("/plan")
def plan(ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """The newest recommendation for every service, with its arithmetic line by line; one without a plan says why."""
    return {
        "as_of": jsonable.instant(ctx.as_of()),
        "recommendations": [
            {
                **jsonable.recommendation(found, lang),
                "derivation_lines": _lines(found, lang),
                "carries": _carries(found),
            }
            for found in ctx.state.plan().recommendations
        ],
    }


@router.get("/forecasts")
def forecasts(
    ctx: Ctx,
    history_hours: Annotated[float, Query(ge=0, le=14 * 24, description="measured values given along")] = 0,
) -> dict[str, Any]:
    """The newest forecasts, each with the measured values before it when ``history_hours`` is given."""
    found = ctx.state.plan().forecasts
    hours = timedelta(hours=history_hours)
    return {
        "as_of": jsonable.instant(ctx.as_of()),
        "forecasts": [
            {**jsonable.forecast(each), "unit": _unit(each), "history": _history(ctx, each, hours)} for each in found
        ],
    }


def _lines(found: Recommendation | NoRecommendation, language: Language) -> list[str]:
    return [] if isinstance(found, NoRecommendation) else reasoning.lines(found, language)


def _carries(found: Recommendation | NoRecommendation) -> dict[str, float | None]:
    """Requests per second that the replicas of now and of the target carry, buffer kept."""
    known = None if isinstance(found, NoRecommendation) else found
    derived = known.derivation if known else {}
    if known is None or not known.current_replicas or "capacity_now" not in derived:
        return {"current": None, "target": None}
    per_replica = derived["capacity_now"] / known.current_replicas
    return {
        "current": jsonable.finite(per_replica * known.current_replicas),
        "target": jsonable.finite(per_replica * known.target_replicas),
    }


def _unit(found: Forecast) -> str:
    known = catalog.signals().get(found.signal)
    return known.unit if known else ""


def _history(ctx: Context, found: Forecast, hours: timedelta) -> dict[str, Any]:
    if not hours:
        return {"times": [], "values": []}
    known = catalog.signals().get(found.signal)
    quantile = 0.99 if known and known.kind is SignalKind.HISTOGRAM else None
    key = SignalKey(found.signal, quantile=quantile)
    now = ctx.as_of()
    end = now + timedelta(seconds=1)
    entities = [found.entity]
    window = ctx.metrics.read_windows(found.entity.kind, [key], end - hours, end, _HISTORY_STEP, entities)
    values = window.column(key)
    return {
        "times": jsonable.instants(window.times),
        "values": jsonable.numbers(values[0]) if len(values) else [],
    }
