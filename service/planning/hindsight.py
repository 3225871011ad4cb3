"""Hindsight: replays the last climb to a peak with the plan and stores the result in the change log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from outrider.clock import rfc3339
from outrider.model import Calibration, EntityRef, Floats, Forecast, Plan, Recommendation, Window
from outrider.records.change_log import ChangeLog
from outrider.text.i18n import Language, translate
from planner.capacity.prescale import ScaleLimits
from planner.forecast.batch_forecast import FAST_MODELS, LOAD
from planner.forecast.forecaster import forecast
from planner.forecast.history import clean_history
from planner.replay.hindsight import Hindsight, Outcome, Rules, hindsight

DOCUMENT = "capacity_hindsight"
EVERY = timedelta(hours=6)
_AHEAD = timedelta(hours=3)
_KNOWN = timedelta(days=8)
_MOST_SERVICES = 50  # a few seconds each: the busiest of a large fleet


def is_due(ledger: ChangeLog, now: datetime) -> bool:
    """True if the last run is six hours old, or lies in the future because the clock was set back."""
    last = ledger.document(DOCUMENT)
    return last is None or not timedelta(0) <= now - last[0] < EVERY


def update(ledger: ChangeLog, history: Window, plan: Plan, now: datetime, buffer: float, limits: ScaleLimits) -> None:
    """Replays the last climb of every planned service, the busiest first, and stores the results."""
    ledger.put_document(DOCUMENT, {"services": replay(history, plan, now, buffer, limits)}, now)


def replay(history: Window, plan: Plan, now: datetime, buffer: float, limits: ScaleLimits) -> list[dict[str, Any]]:
    """Returns one entry per service with a climb in its history, in plain JSON values."""
    clean, _ = clean_history(history, LOAD, now)
    calibrations = {calibration.service: calibration for calibration in plan.calibrations}
    planned = [
        item for item in plan.recommendations if isinstance(item, Recommendation) and item.service in calibrations
    ]
    planned.sort(key=lambda item: -(item.derivation.get("load_now") or 0.0))
    entries = []
    for item in planned[:_MOST_SERVICES]:
        row = clean.entities.index(item.service)
        rules = Rules(item.floor, item.ceiling, item.lead_time, buffer, limits=limits)
        serving = calibrations[item.service]
        used = _used_calibration(serving, item)
        result = _replay_service(clean.times, clean.column(LOAD)[row], item.service, used, rules, now, serving)
        if result is not None:
            bounded = bool((item.derivation.get("slo") or {}).get("refines"))
            entries.append(as_dict(result, rules, bounded=bounded))
    return entries


def _used_calibration(calibration: Calibration, planned: Recommendation) -> Calibration:
    """Returns the calibration that the plan used, limited by the SLO if it binds."""
    inputs = planned.derivation.get("inputs", {})
    if not {"batch", "tokens_per_second"} <= set(inputs):
        return calibration
    speed = inputs["tokens_per_second"]["value"]
    return replace(calibration, batch=inputs["batch"]["value"], tokens_per_second_per_sequence=speed)


def _replay_service(
    times: Floats,
    values: Floats,
    service: EntityRef,
    calibration: Calibration,
    rules: Rules,
    now: datetime,
    serving: Calibration,
) -> Hindsight | None:
    ahead = max(_AHEAD, rules.lead + 2 * rules.scaling_window)

    def forecast_at(known_times: Floats, known: Floats, at: datetime) -> Forecast | None:
        recent = known_times >= (at - _KNOWN).timestamp()
        step = timedelta(minutes=10)
        result = forecast(
            known_times[recent],
            known[recent],
            signal=LOAD.name,
            entity=service,
            now=at,
            horizon=ahead,
            step=step,
            models=FAST_MODELS,
        )
        return result if isinstance(result, Forecast) else None

    return hindsight(service, times, values, calibration, rules, now, forecast_at, serving)


def as_dict(result: Hindsight, rules: Rules, *, bounded: bool = False) -> dict[str, Any]:
    """Returns one service's climb: planned start times, and the waiting requests of each policy.

    ``bounded``: an SLO limits the capacity; requests that arrived while it was violated are counted separately.
    """
    first = result.first_start
    return {
        "service": result.service.name,
        "entity": result.service.key,
        "from": rfc3339(result.begins),
        "to": rfc3339(result.ends),
        "trough_at": rfc3339(result.trough_at),
        "peak_at": rfc3339(result.peak_at),
        "peak": result.peak,
        "lead_time_seconds": rules.lead.total_seconds(),
        "first_start_at": None if first is None else rfc3339(first.at),
        "first_ready_at": None if first is None else rfc3339(first.ready_at),
        "starts": [
            {
                "at": rfc3339(order.at),
                "ready_at": rfc3339(order.ready_at),
                "replicas": order.replicas,
                "before": order.before,
            }
            for order in result.planned.orders
            if order.replicas > order.before
        ],
        "requests": round(result.planned.waited.requests),
        "with_plan": _outcome(result.planned, bounded),
        "without_forecast": _outcome(result.reactive, bounded),
        "without_starts": _outcome(result.held, bounded),
    }


def _outcome(outcome: Outcome, bounded: bool) -> dict[str, Any]:
    above_slo = {"beyond_promise": round(outcome.above_slo)} if bounded else {}
    return {"waited": round(outcome.waited.waited), "replica_hours": round(outcome.replica_hours, 1), **above_slo}


def sentence(entry: Mapping[str, Any], language: Language = "en") -> str:
    """Describes the climb in one or two sentences."""
    first = entry["first_start_at"]
    arguments = {
        "service": entry["service"],
        "first": "-" if first is None else first[11:16],
        "count": len(entry["starts"]),
        "peak_at": entry["peak_at"][11:16],
        "peak": f"{entry['peak']:.3g}",
        "with_plan": f"{entry['with_plan']['waited']:,}",
        "without": f"{entry['without_starts']['waited']:,}",
        "reactive": f"{entry['without_forecast']['waited']:,}",
    }
    key = "plan.looking_back_calm" if first is None else "plan.looking_back"
    text = translate(key, language, **arguments)
    if "beyond_promise" not in entry["with_plan"]:
        return text
    above_slo = {name: f"{entry[name]['beyond_promise']:,}" for name in ("with_plan", "without_starts")}
    return text + translate("plan.looking_back_slo", language, **above_slo)
