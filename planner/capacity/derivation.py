"""Derivation of a recommendation: every figure behind it, as plain values and as text lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from outrider.clock import rfc3339
from outrider.documents.summaries import because, word
from outrider.model import Forecast, LeadTime, ReasonText, Recommendation
from outrider.text.i18n import Language, texts, translate
from outrider.vocabulary.units import format_duration
from planner.capacity import no_action_impact, node_rounding, prescale
from planner.capacity.demand import KV_WATERMARK, DemandInputs, ReplicaDemand, apply_formula, replayed_bound
from planner.capacity.formula import Buffer, buffer_for, derivation_lines
from planner.performance import slo_capacity


@dataclass(frozen=True, slots=True)
class DerivationInputs:
    """Inputs of a recommendation. ``ordered`` and ``ready`` are served requests per second."""

    demand_inputs: DemandInputs
    count: ReplicaDemand
    goal: prescale.Target
    lead: LeadTime
    until: datetime
    ordered: float
    ready: float
    buffer: Buffer
    horizon: timedelta


def derivation(inputs: DerivationInputs) -> dict[str, Any]:
    """Returns the arithmetic as plain JSON values: formula, needs, limits, data gaps and cautions."""
    demand_inputs, count = inputs.demand_inputs, inputs.count
    load = demand_inputs.load
    formula = apply_formula(
        demand_inputs.calibration, max(load.newest or 0.0, count.ahead.value), inputs.buffer.value, inputs.buffer.source
    )
    return {
        **formula.derivation,
        "load_now": load.load.newest,
        "load_believed": load.newest,
        "load_last_half_hour": load.load.recent,
        "load_trusted": load.load.trusted,
        "capacity_now": inputs.ordered,
        "capacity_ready": inputs.ready,
        "ready_replicas": demand_inputs.service.ready_replicas,
        "need_now": count.now,
        "need_by_load": count.by_load,
        "need_by_engines": count.by_engines,
        "sequences_held": count.sequences,
        "need_by_queue": count.by_queue,
        "queue": _queue(demand_inputs),
        "need_forecast": count.forecast,
        "need_by_formula": count.by_formula,
        "need_by_bound": count.by_bound,
        "bound": {
            "out": count.bound.out,
            "hold": count.bound.hold,
            "margin": count.bound.rule.headroom,
            "basis": count.bound.rule.basis.value,
        },
        "buffer": inputs.buffer.as_dict(),
        "need_survivors": count.survivors.need,
        "survivors": _survivors(inputs),
        "limits": {
            "floor": demand_inputs.service.floor,
            "ceiling": demand_inputs.service.ceiling,
            "quota_gpus": demand_inputs.service.quota_gpus,
        },
        "peak": {
            "value": count.ahead.value,
            "quantile": count.level,
            "p95": _p95(inputs),
            "at": _instant(count.ahead.at),
            "until": rfc3339(inputs.until),
        },
        "next_24h": _next_day(inputs),
        "without": no_action_impact.facts(demand_inputs, count),
        "lead": _lead(inputs.lead),
        "data": _data(demand_inputs),
        "forecast": _forecast_score(demand_inputs.forecast),
        "calibration": _basis(demand_inputs),
        "slo": None if demand_inputs.slo is None else demand_inputs.slo.as_dict(),
        "cautions": _cautions(inputs),
    }


def replanned(reasons: Sequence[str], language: Language = "en") -> str:
    """The reasons for a plan outside the schedule, as text."""
    return ", ".join(word("replan_reason", reason, language) for reason in reasons)


def lines(recommendation: Recommendation, language: Language = "en") -> list[str]:
    """The derivation as text, one step a line; cautions come last."""
    facts = recommendation.derivation
    if "inputs" not in facts:
        return []
    text = []
    if facts.get("replanned"):
        text.append(translate("plan.step_replanned", language, why=replanned(facts["replanned"], language)))
    if facts.get("slo"):
        text += slo_capacity.lines(facts["slo"], language)
    text += derivation_lines(facts, language)
    chosen = (facts.get("calibration") or {}).get("chosen")
    if chosen:
        text.append(translate(chosen["text"], language, **chosen["arguments"]))
    if "survivors" in facts:  # a plan of an earlier version stores only the formula
        text += [*_model_lines(facts, language), *_need_lines(facts, language), *_lead_lines(facts, language)]
    by = word("binding", _bound_by(recommendation), language)
    quota = (facts.get("limits") or {}).get("quota_gpus")
    limits = {
        "floor": recommendation.floor,
        "ceiling": recommendation.ceiling,
        "by": by,
        "target": recommendation.target_replicas,
    }
    key = "plan.step_decided" if quota is None else "plan.step_decided_quota"
    text.append(
        translate(key, language, **limits, quota=quota, why=word("plan_reason", recommendation.reason, language))
    )
    if "nodes" in facts:
        text.append(node_rounding.line(facts["nodes"], language))
    covered = recommendation.target_replicas <= recommendation.current_replicas
    text += no_action_impact.when_lines(facts.get("short"), language, covered=covered)
    text += no_action_impact.lines(facts.get("without"), recommendation.current_replicas, language)
    return text + [caution(entry, language) for entry in facts.get("cautions", ())]


def _bound_by(recommendation: Recommendation) -> str:
    """The binding limit of the count: for a forecast also whether its own peak or the replayed bound decided."""
    facts = recommendation.derivation
    by_bound = facts.get("need_by_bound") or 0
    return (
        "bound"
        if recommendation.binding == "forecast" and by_bound > (facts.get("need_by_formula") or 0)
        else recommendation.binding
    )


def caution(entry: Mapping[str, Any], language: Language = "en") -> str:
    """One caution about a plan, as a sentence."""
    return translate(f"plan.caution_{entry['code']}", language, **entry["arguments"])


def _model_lines(facts: Mapping[str, Any], language: Language) -> list[str]:
    known = facts.get("forecast") or {}
    reasons = because((ReasonText(reason["text"], reason["arguments"]) for reason in known.get("why") or ()), language)
    return [translate("plan.step_model", language, model=known["model"], why=reasons)] if reasons else []


def _need_lines(facts: Mapping[str, Any], language: Language) -> list[str]:
    text = []
    if facts.get("need_by_load") is not None:
        rate = f"{facts['load_believed']:.4g}"
        text.append(translate("plan.step_now", language, rate=rate, n=facts["need_by_load"]))
    if facts.get("need_by_engines") is not None:
        sequences = f"{facts['sequences_held']:.4g}"
        text.append(translate("plan.step_engines", language, held=sequences, n=facts["need_by_engines"]))
    queue = facts.get("queue")
    if queue and facts.get("need_by_queue") is not None:
        figures = {name: f"{queue[name]:,.3g}" for name in ("growth", "arrivals")}
        figures |= {"waiting": f"{queue['waiting']:,.0f}", "n": str(facts["need_by_queue"])}
        drain = format_duration(round(queue["drain_seconds"]))
        text.append(translate("plan.step_queue", language, **figures, drain=drain))
    peak = facts["peak"]
    known = facts.get("bound")
    ahead = {
        "rate": f"{peak['value']:.4g}",
        "until": _clock(peak["until"]),
        "n": facts["need_forecast"] if known is None else facts["need_by_formula"],
        "level": f"p{100 * peak.get('quantile', prescale.P95):.0f}",
    }
    text.append(translate("plan.step_forecast", language, **ahead))
    if known is not None:
        figures = {"rate": f"{known['out']:.4g}", "margin": f"{known['margin']:g}", "n": facts["need_by_bound"]}
        text += [buffer_line(facts["buffer"], language), translate("plan.step_bound", language, **figures)]
    stay = facts["survivors"]
    figures = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in stay.items()}
    text.append(translate("plan.step_survivors", language, **figures))
    if stay["share_before"] is not None and stay["share_before"] > 1:
        times = {"n": stay["current"], "times": f"{stay['share_before']:.2g}"}
        text.append(translate("plan.step_overloaded", language, **times))
    elif stay["share_after"] is not None:
        shares = {"before": f"{stay['share_before']:.0%}", "after": f"{stay['share_after']:.0%}"}
        text.append(translate("plan.step_one_less", language, n=stay["current"], less=stay["current"] - 1, **shares))
    day = facts.get("next_24h")
    if day:
        figures = {"rate": f"{day['peak']:.4g}", "at": _clock(day["at"]) if day["at"] else "-", "n": day["replicas"]}
        text.append(translate("plan.step_next_day", language, **figures, gpus=day["gpus"]))
        if day.get("limited_by"):
            limit = word("binding", day["limited_by"], language)
            text.append(
                translate("plan.step_next_day_limited", language, needed=day["needed"], by=limit, n=figures["n"])
            )
    return text


def buffer_line(buffer: Mapping[str, Any], language: Language) -> str:
    """The buffer and its source; ``buffer`` is a ``Buffer.as_dict``."""
    if buffer["source"] != "measured":
        return translate("plan.buffer_configured", language, buffer=f"{buffer['value']:.3g}")
    figures = {"buffer": f"{buffer['value']:.3g}", "measured": f"{buffer['measured']:.3g}"}
    key = "plan.buffer_bounded" if buffer["bounded"] else "plan.buffer_measured"
    if buffer["lead_seconds"] is None:
        return translate(f"{key}_of_errors", language, **figures)
    text = translate(key, language, **figures, lead=format_duration(round(buffer["lead_seconds"])))
    wanted = buffer.get("wanted_seconds")
    if not wanted or wanted == buffer["lead_seconds"]:
        return text
    return text + translate("plan.buffer_reach", language, wanted=format_duration(round(wanted)))


def _lead_lines(facts: Mapping[str, Any], language: Language) -> list[str]:
    lead = facts["lead"]
    parts = " + ".join(
        f"{phase_name(part['name'], language)} {format_duration(round(part['seconds']))}" for part in lead["parts"]
    )
    source = word("lead_source", lead["source"], language)
    total = format_duration(round(lead["seconds"]))
    return [translate("plan.step_lead", language, parts=parts, total=total, source=source, starts=lead["starts"])]


def phase_name(name: str, language: Language = "en") -> str:
    """Display name of a part of a lead time."""
    return texts(language).get(f"words.start_phase.{name}", name.replace("_", " "))


def _survivors(inputs: DerivationInputs) -> dict[str, Any]:
    """The arithmetic of scale-in, with the load share of each replica before and after removing one."""
    survivors, current = inputs.count.survivors, inputs.demand_inputs.service.current_replicas
    raw = max(survivors.load_raw, survivors.held_raw, survivors.kv_raw)
    return {
        "need": survivors.need,
        "load_recent": survivors.load_recent,
        "load_coming": survivors.load_coming,
        "load_raw": survivors.load_raw,
        "held": survivors.held,
        "held_raw": survivors.held_raw,
        "kv_raw": survivors.kv_raw,
        "kv_watermark": KV_WATERMARK,
        "hysteresis": prescale.HYSTERESIS,
        "current": current,
        "share_before": raw / current if current else None,
        "share_after": raw / (current - 1) if current > 1 else None,
    }


def _next_day(inputs: DerivationInputs) -> dict[str, Any]:
    """Highest need of the next 24 hours, by the formula or the replayed bound, within the limits of the service.

    ``needed`` is the count without the limits, ``limited_by`` the limit that changed it.
    """
    forecast = _future_part(inputs.demand_inputs.forecast, inputs.demand_inputs.now)
    day = prescale.peak(forecast, inputs.demand_inputs.now + inputs.horizon, inputs.count.level)
    buffer = inputs.buffer.value
    if inputs.buffer.source == "measured":
        buffer = buffer_for(forecast.buffers, min(inputs.horizon.total_seconds(), max(forecast.buffers)), buffer).value
    by_formula = apply_formula(inputs.demand_inputs.calibration, day.value, buffer).replicas
    replayed = replayed_bound(inputs.demand_inputs, inputs.demand_inputs.now + inputs.horizon, timedelta(0))
    by_bound = apply_formula(inputs.demand_inputs.calibration, max(replayed.hold, replayed.out), 0.0).replicas
    needed, service, group = max(by_formula, by_bound), inputs.demand_inputs.service, _group(inputs.demand_inputs)
    quota = None if service.quota_gpus is None else service.quota_gpus // group
    highest, limit = service.ceiling, "ceiling"
    if quota is not None and quota < highest:
        highest, limit = quota, "quota"
    replicas = min(max(needed, service.floor), highest)
    changed = limit if replicas < needed else "floor"
    return {
        "peak": day.value,
        "at": _instant(day.at),
        "replicas": replicas,
        "gpus": replicas * group,
        "needed": needed,
        "limited_by": None if replicas == needed else changed,
    }


def _queue(demand_inputs: DemandInputs) -> dict[str, float] | None:
    """The queue that more replicas would serve; None without one."""
    present = demand_inputs.load.present
    if not present.queued:
        return None
    return {
        "waiting": present.queued,
        "growth": present.growth,
        "arrivals": present.arrivals or 0.0,
        "drain_seconds": demand_inputs.drain.total_seconds(),
    }


def _p95(inputs: DerivationInputs) -> float:
    return prescale.peak(inputs.demand_inputs.forecast, inputs.until).value


def _future_part(forecast: Forecast, now: datetime) -> Forecast:
    """The part of a nightly forecast that lies in the future."""
    ahead = forecast.times >= now.timestamp() - forecast.step.total_seconds()
    if ahead.all() or not ahead.any():
        return forecast
    quantiles = {level: values[ahead] for level, values in forecast.quantiles.items()}
    return Forecast(
        forecast.signal,
        forecast.entity,
        forecast.made_at,
        forecast.step,
        forecast.times[ahead],
        quantiles,
        forecast.model,
        forecast.score,
        buffers=forecast.buffers,
    )


def _lead(lead: LeadTime) -> dict[str, Any]:
    return {
        "seconds": lead.seconds,
        "source": lead.source,
        "starts": lead.starts,
        "gpus_free": lead.gpus_free,
        "parts": [{"name": part.name, "seconds": part.seconds, "source": part.source} for part in lead.parts],
    }


def _data(demand_inputs: DemandInputs) -> dict[str, Any]:
    facts = demand_inputs.facts
    return {
        "slots": facts.slots,
        "missing": facts.missing,
        "held": facts.held,
        "negative": facts.negative,
        "days": round(facts.days, 2),
        "confidence": facts.confidence,
    }


def _cautions(inputs: DerivationInputs) -> list[dict[str, Any]]:
    """Cautions for the reader, beside the numbers."""
    demand_inputs, facts, cautions = inputs.demand_inputs, inputs.demand_inputs.facts, []
    service, lead = demand_inputs.service, inputs.lead

    def note(code: str, **arguments: object) -> None:
        cautions.append({"code": code, "arguments": {name: str(value) for name, value in arguments.items()}})

    if timedelta(seconds=lead.seconds) > inputs.horizon:
        note("lead_beyond_horizon", lead=format_duration(lead.seconds), horizon=format_duration(inputs.horizon))
    if facts.is_new:
        note("new_service", days=f"{facts.days:.1f}")
    if facts.missing or facts.held:
        note("data_missing", missing=facts.missing, held=facts.held, slots=facts.slots)
    if facts.negative:
        note("negative_values", n=facts.negative)
    if service.ready_replicas < service.current_replicas:
        waiting_for = service.current_replicas - service.ready_replicas
        note("not_ready", n=waiting_for, current=service.current_replicas)
    if (
        demand_inputs.load.doubted
        and demand_inputs.load.load.newest is not None
        and demand_inputs.load.newest is not None
    ):
        note("spike_doubted", load=f"{demand_inputs.load.load.newest:.4g}", believed=f"{demand_inputs.load.newest:.4g}")
    if service.quota_gpus is not None and service.quota_gpus < service.floor * _group(demand_inputs):
        note("quota_below_floor", quota=service.quota_gpus, floor=service.floor)
    for objective in () if demand_inputs.slo is None else demand_inputs.slo.facts.get("missed", ()):
        missed = objective["binds"]
        target = {"sli": missed["sli"].upper(), "seconds": f"{missed['seconds']:g}"}
        note("slo_out_of_reach", **target, share=f"{missed['quantile']:.4g}")
    placeable, needed = service.placeable_replicas, max(inputs.count.now or 0, inputs.count.forecast)
    if placeable is not None and placeable < needed:
        note("no_gpu_placeable", n=placeable, needed=needed)
    elif lead.gpus_free is not None and lead.gpus_free < _group(demand_inputs):
        note("no_gpu_free", free=lead.gpus_free, wanted=_group(demand_inputs))
    return cautions


def _group(demand_inputs: DemandInputs) -> int:
    """GPUs of one replica."""
    return demand_inputs.calibration.tensor_parallel * demand_inputs.calibration.pipeline_parallel


def _forecast_score(forecast: Forecast) -> dict[str, Any]:
    return {
        "model": forecast.model,
        "why": [{"text": reason.text, "arguments": dict(reason.arguments)} for reason in forecast.why],
        "wape": forecast.score.wape,
        "wape_rival": forecast.score.wape_rival,
        "coverage90": forecast.score.coverage90,
        "folds": forecast.score.folds,
        "pinball": forecast.score.pinball,
        "peak_error": forecast.score.peak_error,
        "quantile": prescale.P95,
    }


def _basis(demand_inputs: DemandInputs) -> dict[str, Any]:
    calibration, chosen = demand_inputs.calibration, demand_inputs.service.chosen
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
