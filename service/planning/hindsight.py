"""What the plan would have done with the last climb to a peak: made from the store's history, kept in the ledger."""

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

PAPER = "capacity_hindsight"
EVERY = timedelta(hours=6)
_AHEAD = timedelta(hours=3)
_KNOWN = timedelta(days=8)
_MOST_SERVICES = 50  # a few seconds each: the busiest of a large fleet


def is_due(ledger: ChangeLog, now: datetime) -> bool:
    """True when the last look is some hours old, or of a time to come, as after a clock was set back."""
    kept = ledger.document(PAPER)
    return kept is None or not timedelta(0) <= now - kept[0] < EVERY


def keep(ledger: ChangeLog, history: Window, made: Plan, now: datetime, buffer: float, limits: ScaleLimits) -> None:
    """Look back for every service with a plan, the busiest first, and leave what was found for others to show."""
    ledger.put_document(PAPER, {"services": look(history, made, now, buffer, limits)}, now)


def look(history: Window, made: Plan, now: datetime, buffer: float, limits: ScaleLimits) -> list[dict[str, Any]]:
    """One entry a service whose history has a climb, in plain JSON values."""
    clean, _ = clean_history(history, LOAD, now)
    known = {calibration.service: calibration for calibration in made.calibrations}
    planned = [one for one in made.recommendations if isinstance(one, Recommendation) and one.service in known]
    planned.sort(key=lambda one: -(one.derivation.get("load_now") or 0.0))
    found = []
    for one in planned[:_MOST_SERVICES]:
        row = clean.entities.index(one.service)
        rules = Rules(one.floor, one.ceiling, one.lead_time, buffer, limits=limits)
        serves = known[one.service]
        counted = _counted(serves, one)
        told = _one(clean.times, clean.column(LOAD)[row], one.service, counted, rules, now, serves)
        if told is not None:
            bounded = bool((one.derivation.get("slo") or {}).get("refines"))
            found.append(as_dict(told, rules, bounded=bounded))
    return found


def _counted(calibration: Calibration, planned: Recommendation) -> Calibration:
    """The calibration as the plan counted with it: bounded where the promise bounds it."""
    inputs = planned.derivation.get("inputs", {})
    if not {"batch", "tokens_per_second"} <= set(inputs):
        return calibration
    speed = inputs["tokens_per_second"]["value"]
    return replace(calibration, batch=inputs["batch"]["value"], tokens_per_second_per_sequence=speed)


def _one(
    times: Floats,
    values: Floats,
    service: EntityRef,
    calibration: Calibration,
    rules: Rules,
    now: datetime,
    serves: Calibration,
) -> Hindsight | None:
    ahead = max(_AHEAD, rules.lead + 2 * rules.scaling_window)

    def said(known_times: Floats, known: Floats, at: datetime) -> Forecast | None:
        recent = known_times >= (at - _KNOWN).timestamp()
        step = timedelta(minutes=10)
        answer = forecast(
            known_times[recent],
            known[recent],
            signal=LOAD.name,
            entity=service,
            now=at,
            horizon=ahead,
            step=step,
            models=FAST_MODELS,
        )
        return answer if isinstance(answer, Forecast) else None

    return hindsight(service, times, values, calibration, rules, now, said, serves)


def as_dict(found: Hindsight, rules: Rules, *, bounded: bool = False) -> dict[str, Any]:
    """One service's climb: when the plan would have started, and how many requests would have waited how.

    ``bounded``: a promise bounds the count, and requests that came while it could not be kept are told apart.
    """
    first = found.first_start
    return {
        "service": found.service.name,
        "entity": found.service.key,
        "from": rfc3339(found.begins),
        "to": rfc3339(found.ends),
        "trough_at": rfc3339(found.trough_at),
        "peak_at": rfc3339(found.peak_at),
        "peak": found.peak,
        "lead_time_seconds": rules.lead.total_seconds(),
        "first_start_at": None if first is None else rfc3339(first.at),
        "first_ready_at": None if first is None else rfc3339(first.ready_at),
        "starts": [
            {"at": rfc3339(one.at), "ready_at": rfc3339(one.ready_at), "replicas": one.replicas, "before": one.before}
            for one in found.planned.orders
            if one.replicas > one.before
        ],
        "requests": round(found.planned.waited.requests),
        "with_plan": _led(found.planned, bounded),
        "without_forecast": _led(found.reactive, bounded),
        "without_starts": _led(found.held, bounded),
    }


def _led(led: Outcome, bounded: bool) -> dict[str, Any]:
    broken = {"beyond_promise": round(led.above_slo)} if bounded else {}
    return {"waited": round(led.waited.waited), "replica_hours": round(led.replica_hours, 1), **broken}


def sentence(found: Mapping[str, Any], language: Language = "en") -> str:
    """The climb in one or two sentences."""
    first = found["first_start_at"]
    arguments = {
        "service": found["service"],
        "first": "-" if first is None else first[11:16],
        "count": len(found["starts"]),
        "peak_at": found["peak_at"][11:16],
        "peak": f"{found['peak']:.3g}",
        "with_plan": f"{found['with_plan']['waited']:,}",
        "without": f"{found['without_starts']['waited']:,}",
        "reactive": f"{found['without_forecast']['waited']:,}",
    }
    key = "plan.looking_back_calm" if first is None else "plan.looking_back"
    said = translate(key, language, **arguments)
    if "beyond_promise" not in found["with_plan"]:
        return said
    broken = {name: f"{found[name]['beyond_promise']:,}" for name in ("with_plan", "without_starts")}
    return said + translate("plan.looking_back_slo", language, **broken)
