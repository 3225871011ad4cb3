"""Why the plan says what it says: every figure it follows from, as plain values and as lines that people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outrider.clock import rfc3339
from outrider.documents.summaries import because, word
from outrider.model import Forecast, LeadTime, Recommendation, Why
from outrider.text.i18n import Language, texts, translate
from outrider.vocabulary.units import format_duration
from planner.capacity import no_action_impact, node_rounding, prescale
from planner.capacity.demand import KV_WATERMARK, Case, Counted, bound, sized
from planner.capacity.formula import Buffer, buffer_for, derivation_lines
from planner.performance import slo_capacity


@dataclass(frozen=True, slots=True)
class Told:
    """What a recommendation was made from. ``ordered`` and ``ready`` are requests per second that are carried."""

    case: Case
    count: Counted
    goal: prescale.Target
    lead: LeadTime
    until: datetime
    ordered: float
    ready: float
    buffer: Buffer
    horizon: timedelta


def derivation(told: Told) -> dict[str, Any]:
    """The arithmetic as plain JSON values: the formula, the needs, the limits, what is missing and what is odd."""
    case, count = told.case, told.count
    load = case.load
    bought = sized(case.calibration, max(load.newest or 0.0, count.ahead.value), told.buffer.value, told.buffer.source)
    return {
        **bought.derivation,
        "load_now": load.load.newest,
        "load_believed": load.newest,
        "load_last_half_hour": load.load.recent,
        "load_trusted": load.load.trusted,
        "capacity_now": told.ordered,
        "capacity_ready": told.ready,
        "ready_replicas": case.service.ready_replicas,
        "need_now": count.now,
        "need_by_load": count.by_load,
        "need_by_engines": count.by_engines,
        "sequences_held": count.sequences,
        "need_forecast": count.forecast,
        "need_by_formula": count.by_formula,
        "need_by_bound": count.by_bound,
        "bound": {"out": count.bound.out, "hold": count.bound.hold, "margin": count.bound.margin},
        "buffer": told.buffer.as_dict(),
        "need_survivors": count.survivors.need,
        "survivors": _survivors(told),
        "limits": {"floor": case.service.floor, "ceiling": case.service.ceiling, "quota_gpus": case.service.quota_gpus},
        "peak": {
            "value": count.ahead.value,
            "quantile": count.level,
            "p95": _p95(told),
            "at": _instant(count.ahead.at),
            "until": rfc3339(told.until),
        },
        "next_24h": _next_day(told),
        "without": no_action_impact.facts(case, count),
        "lead": _lead(told.lead),
        "data": _data(case),
        "forecast": _judged(case.said),
        "calibration": _basis(case),
        "slo": None if case.promise is None else case.promise.as_dict(),
        "cautions": _cautions(told),
    }


def lines(found: Recommendation, language: Language = "en") -> list[str]:
    """The derivation as people read it, one step a line; what is odd comes last."""
    facts = found.derivation
    if "inputs" not in facts:
        return []
    said = slo_capacity.lines(facts["slo"], language) if facts.get("slo") else []
    said += derivation_lines(facts, language)
    chosen = (facts.get("calibration") or {}).get("chosen")
    if chosen:
        said.append(translate(chosen["text"], language, **chosen["arguments"]))
    if "survivors" in facts:  # a plan of an earlier version has the formula alone
        said += [*_model_lines(facts, language), *_need_lines(facts, language), *_lead_lines(facts, language)]
    by = word("binding", _bound_by(found), language)
    quota = (facts.get("limits") or {}).get("quota_gpus")
    limits = {"floor": found.floor, "ceiling": found.ceiling, "by": by, "target": found.target_replicas}
    key = "plan.step_decided" if quota is None else "plan.step_decided_quota"
    said.append(translate(key, language, **limits, quota=quota, why=word("plan_reason", found.reason, language)))
    if "nodes" in facts:
        said.append(node_rounding.line(facts["nodes"], language))
    said += no_action_impact.when_lines(facts.get("short"), language)
    said += no_action_impact.lines(facts.get("without"), found.current_replicas, language)
    return said + [caution(each, language) for each in facts.get("cautions", ())]


def _bound_by(found: Recommendation) -> str:
    """What bound the count: of a forecast also whether its own peak did, or the replayed bound above it."""
    facts = found.derivation
    by_bound = facts.get("need_by_bound") or 0
    return "bound" if found.binding == "forecast" and by_bound > (facts.get("need_by_formula") or 0) else found.binding


def caution(found: Mapping[str, Any], language: Language = "en") -> str:
    """One thing to know about a plan, as a sentence."""
    return translate(f"plan.caution_{found['code']}", language, **found["arguments"])


def _model_lines(facts: Mapping[str, Any], language: Language) -> list[str]:
    known = facts.get("forecast") or {}
    why = because((Why(each["text"], each["arguments"]) for each in known.get("why") or ()), language)
    return [translate("plan.step_model", language, model=known["model"], why=why)] if why else []


def _need_lines(facts: Mapping[str, Any], language: Language) -> list[str]:
    said = []
    if facts.get("need_by_load") is not None:
        rate = f"{facts['load_believed']:.4g}"
        said.append(translate("plan.step_now", language, rate=rate, n=facts["need_by_load"]))
    if facts.get("need_by_engines") is not None:
        held = f"{facts['sequences_held']:.4g}"
        said.append(translate("plan.step_engines", language, held=held, n=facts["need_by_engines"]))
    peak = facts["peak"]
    known = facts.get("bound")
    ahead = {
        "rate": f"{peak['value']:.4g}",
        "until": _clock(peak["until"]),
        "n": facts["need_forecast"] if known is None else facts["need_by_formula"],
        "level": f"p{100 * peak.get('quantile', prescale.P95):.0f}",
    }
    said.append(translate("plan.step_forecast", language, **ahead))
    if known is not None:
        bound = {"rate": f"{known['out']:.4g}", "margin": f"{known['margin']:g}", "n": facts["need_by_bound"]}
        said += [buffer_line(facts["buffer"], language), translate("plan.step_bound", language, **bound)]
    stay = facts["survivors"]
    figures = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in stay.items()}
    said.append(translate("plan.step_survivors", language, **figures))
    if stay["share_before"] is not None and stay["share_before"] > 1:
        times = {"n": stay["current"], "times": f"{stay['share_before']:.2g}"}
        said.append(translate("plan.step_overloaded", language, **times))
    elif stay["share_after"] is not None:
        shares = {"before": f"{stay['share_before']:.0%}", "after": f"{stay['share_after']:.0%}"}
        said.append(translate("plan.step_one_less", language, n=stay["current"], less=stay["current"] - 1, **shares))
    day = facts.get("next_24h")
    if day:
        figures = {"rate": f"{day['peak']:.4g}", "at": _clock(day["at"]) if day["at"] else "-", "n": day["replicas"]}
        said.append(translate("plan.step_next_day", language, **figures, gpus=day["gpus"]))
        if day.get("limited_by"):
            limit = word("binding", day["limited_by"], language)
            said.append(
                translate("plan.step_next_day_limited", language, needed=day["needed"], by=limit, n=figures["n"])
            )
    return said


def buffer_line(found: Mapping[str, Any], language: Language) -> str:
    """The buffer and where it came from; ``found`` is a ``Buffer.as_dict``."""
    if found["source"] != "measured":
        return translate("plan.buffer_configured", language, buffer=f"{found['value']:.3g}")
    figures = {"buffer": f"{found['value']:.3g}", "measured": f"{found['measured']:.3g}"}
    key = "plan.buffer_bounded" if found["bounded"] else "plan.buffer_measured"
    if found["lead_seconds"] is None:
        return translate(f"{key}_of_errors", language, **figures)
    said = translate(key, language, **figures, lead=format_duration(round(found["lead_seconds"])))
    wanted = found.get("wanted_seconds")
    if not wanted or wanted == found["lead_seconds"]:
        return said
    return said + translate("plan.buffer_reach", language, wanted=format_duration(round(wanted)))


def _lead_lines(facts: Mapping[str, Any], language: Language) -> list[str]:
    lead = facts["lead"]
    parts = " + ".join(
        f"{phase_name(part['name'], language)} {format_duration(round(part['seconds']))}" for part in lead["parts"]
    )
    source = word("lead_source", lead["source"], language)
    total = format_duration(round(lead["seconds"]))
    return [translate("plan.step_lead", language, parts=parts, total=total, source=source, starts=lead["starts"])]


def phase_name(name: str, language: Language = "en") -> str:
    """What a part of a lead time is called."""
    return texts(language).get(f"words.start_phase.{name}", name.replace("_", " "))


def _survivors(told: Told) -> dict[str, Any]:
    """The arithmetic of scale-in, the share of each replica before and after one is taken away included."""
    found, current = told.count.survivors, told.case.service.current_replicas
    raw = max(found.load_raw, found.held_raw, found.kv_raw)
    return {
        "need": found.need,
        "load_recent": found.load_recent,
        "load_coming": found.load_coming,
        "load_raw": found.load_raw,
        "held": found.held,
        "held_raw": found.held_raw,
        "kv_raw": found.kv_raw,
        "kv_watermark": KV_WATERMARK,
        "hysteresis": prescale.HYSTERESIS,
        "current": current,
        "share_before": raw / current if current else None,
        "share_after": raw / (current - 1) if current > 1 else None,
    }


def _next_day(told: Told) -> dict[str, Any]:
    """The most of the coming day, by the formula or the replayed bound, within the limits of the service.

    ``needed`` is the count without the limits, ``limited_by`` which of them changed it.
    """
    said = _from(told.case.said, told.case.now)
    day = prescale.peak(said, told.case.now + told.horizon, told.count.level)
    buffer = told.buffer.value
    if told.buffer.source == "measured":
        buffer = buffer_for(said.buffers, min(told.horizon.total_seconds(), max(said.buffers)), buffer).value
    by_formula = sized(told.case.calibration, day.value, buffer).replicas
    planned = bound(told.case, told.case.now + told.horizon, timedelta(0))
    by_bound = sized(told.case.calibration, max(planned.hold, planned.out), 0.0).replicas
    needed, service, group = max(by_formula, by_bound), told.case.service, _group(told.case)
    quota = None if service.quota_gpus is None else service.quota_gpus // group
    most, limit = service.ceiling, "ceiling"
    if quota is not None and quota < most:
        most, limit = quota, "quota"
    replicas = min(max(needed, service.floor), most)
    changed = limit if replicas < needed else "floor"
    return {
        "peak": day.value,
        "at": _instant(day.at),
        "replicas": replicas,
        "gpus": replicas * group,
        "needed": needed,
        "limited_by": None if replicas == needed else changed,
    }


def _p95(told: Told) -> float:
    return prescale.peak(told.case.said, told.until).value


def _from(said: Forecast, now: datetime) -> Forecast:
    """What a forecast of the night still says of the time to come."""
    ahead = said.times >= now.timestamp() - said.step.total_seconds()
    if ahead.all() or not ahead.any():
        return said
    quantiles = {level: values[ahead] for level, values in said.quantiles.items()}
    return Forecast(
        said.signal,
        said.entity,
        said.made_at,
        said.step,
        said.times[ahead],
        quantiles,
        said.model,
        said.score,
        buffers=said.buffers,
    )


def _lead(lead: LeadTime) -> dict[str, Any]:
    return {
        "seconds": lead.seconds,
        "source": lead.source,
        "starts": lead.starts,
        "gpus_free": lead.gpus_free,
        "parts": [{"name": part.name, "seconds": part.seconds, "source": part.source} for part in lead.parts],
    }


def _data(case: Case) -> dict[str, Any]:
    facts = case.facts
    return {
        "slots": facts.slots,
        "missing": facts.missing,
        "held": facts.held,
        "negative": facts.negative,
        "days": round(facts.days, 2),
        "confidence": facts.confidence,
    }


def _cautions(told: Told) -> list[dict[str, Any]]:
    """What a reader must know beside the numbers."""
    case, facts, found = told.case, told.case.facts, []
    service, lead = case.service, told.lead

    def note(code: str, **arguments: object) -> None:
        found.append({"code": code, "arguments": {name: str(value) for name, value in arguments.items()}})

    if timedelta(seconds=lead.seconds) > told.horizon:
        note("lead_beyond_horizon", lead=format_duration(lead.seconds), horizon=format_duration(told.horizon))
    if facts.is_new:
        note("new_service", days=f"{facts.days:.1f}")
    if facts.missing or facts.held:
        note("data_missing", missing=facts.missing, held=facts.held, slots=facts.slots)
    if facts.negative:
        note("negative_values", n=facts.negative)
    if service.ready_replicas < service.current_replicas:
        waiting_for = service.current_replicas - service.ready_replicas
        note("not_ready", n=waiting_for, current=service.current_replicas)
    if case.load.doubted and case.load.load.newest is not None and case.load.newest is not None:
        note("spike_doubted", load=f"{case.load.load.newest:.4g}", believed=f"{case.load.newest:.4g}")
    if service.quota_gpus is not None and service.quota_gpus < service.floor * _group(case):
        note("quota_below_floor", quota=service.quota_gpus, floor=service.floor)
    for each in () if case.promise is None else case.promise.facts.get("missed", ()):
        missed = each["binds"]
        promise = {"sli": missed["sli"].upper(), "seconds": f"{missed['seconds']:g}"}
        note("slo_out_of_reach", **promise, share=f"{missed['quantile']:.4g}")
    if lead.gpus_free is not None and lead.gpus_free < _group(case):
        note("no_gpu_free", free=lead.gpus_free, wanted=_group(case))
    return found


def _group(case: Case) -> int:
    """GPUs of one replica."""
    return case.calibration.tensor_parallel * case.calibration.pipeline_parallel


def _judged(said: Forecast) -> dict[str, Any]:
    return {
        "model": said.model,
        "why": [{"text": each.text, "arguments": dict(each.arguments)} for each in said.why],
        "wape": said.score.wape,
        "wape_rival": said.score.wape_rival,
        "coverage90": said.score.coverage90,
        "folds": said.score.folds,
        "pinball": said.score.pinball,
        "peak_error": said.score.peak_error,
        "quantile": prescale.P95,
    }


def _basis(case: Case) -> dict[str, Any]:
    calibration, chosen = case.calibration, case.service.chosen
    return {
        "origin": calibration.origin,
        "samples": calibration.samples,
        "startup_seconds": calibration.startup_seconds,
        "startup_source": calibration.startup_source,
        "source": calibration.source if calibration.origin == "measured" else calibration.origin,
        "measured_at": _instant(calibration.measured_at),
        "valid_until": _instant(calibration.valid_until),
        "chosen": None if chosen is None else {"text": chosen[0], "arguments": dict(chosen[1])},
    }


def _instant(at: datetime | None) -> str | None:
    return None if at is None else rfc3339(at)


def _clock(text: str) -> str:
    return text[11:16] + " UTC"
