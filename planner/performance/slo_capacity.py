"""Capacity of one replica under its SLO: the queueing model bounds the formula's batch and speed.

A calibration is b concurrent sequences at v tokens per second each: b v / L requests per second of L tokens. At that
rate every seat is taken and requests queue. ``queueing`` finds the largest rate that meets each objective (TTFT, TPOT,
each for its share of requests). It uses data-sheet step times scaled to the calibrated point (``measured``), and as
many seats as fit into the KV cache. If that rate r is smaller, the formula uses the n sequences that run at r, and
their speed by Little's law:

    batch = n        tokens per second of a sequence = r L / n        so that batch x speed / L = r

An objective that no load meets bounds nothing and is reported with a warning; the others bound as usual. If an
objective is met until every seat is taken, ``SAFE_LOAD`` of that rate counts, as in ``cost``: there queues never end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite
from typing import Any

import numpy as np

from outrider.errors import OutriderError
from outrider.model import Calibration
from outrider.text.i18n import Language, translate
from planner.performance import slo_models
from planner.performance.gpu_catalog import known_gpu
from planner.performance.headroom import capacity_per_second
from planner.performance.memory_fit import NoFit
from planner.performance.queueing import SAFE_LOAD, AtSlo, Prediction
from planner.performance.service_facts import DECODE, PREFILL, Objective, ServiceFacts
from planner.performance.slo_models import Replica

LEAST_RATIO = 0.05
"""A rate below this share of the calibrated one is that of an idle replica: less than the error of the model."""
_CLOSE = 1e-3
_UNNAMED = "-"
"""Placeholder for a model without a name."""


class Verdict(StrEnum):
    """Effect of the SLO on the formula, or the reason for none."""

    BOUNDED = "bounded"
    LOOSE = "loose"  # the calibrated load meets the SLO
    OUT_OF_REACH = "out_of_reach"  # no load, or next to none, meets any objective
    NO_OBJECTIVE = "no_objective"
    POOL = "pool"  # the objectives belong to the other pool
    NO_CALIBRATION = "no_calibration"
    NO_GPU = "no_gpu"
    NO_SHAPE = "no_shape"
    NO_PROMPT = "no_prompt"
    NO_FIT = "no_fit"
    REFUSED = "refused"  # impossible figures


@dataclass(frozen=True, slots=True)
class SloCapacity:
    """``calibration`` is the one for the formula; ``facts`` are plain values for the derivation."""

    calibration: Calibration
    verdict: Verdict
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The key ``slo`` of a derivation."""
        return {"refines": self.verdict is Verdict.BOUNDED, "verdict": self.verdict.value, **self.facts}


def refine(calibration: Calibration, known: ServiceFacts) -> SloCapacity:
    """Bounds the calibration by the SLO, or returns it unchanged with the reason. Raises nothing."""
    try:
        with np.errstate(over="raise"):
            return _refine(calibration, known)
    except (OutriderError, ArithmeticError) as error:  # impossible figures must not stop the plans of other services
        facts = {
            "objectives": [_objective_dict(objective) for objective in known.objectives],
            "arguments": {"why": str(error)},
        }
        return SloCapacity(calibration, Verdict.REFUSED, facts)


def _refine(calibration: Calibration, known: ServiceFacts) -> SloCapacity:
    """Like ``refine``, but raises UsageError and ArithmeticError.

    Of several objectives the one with the smallest rate binds; those that no load meets are in ``missed`` of the facts.
    A prefill pool is responsible for TTFT, a decode pool for TPOT.
    """
    own = tuple(objective for objective in known.objectives if known.pool in ("", objective.pool))
    facts: dict[str, Any] = {"objectives": [_objective_dict(objective) for objective in own or known.objectives]}
    missing = _missing(calibration, known, own)
    if missing is not None:
        verdict, arguments = missing
        return SloCapacity(calibration, verdict, {**facts, "arguments": arguments})
    spec, shape = known_gpu(calibration.gpu_type), known.shape
    assert spec is not None  # checked by _missing
    assert shape is not None
    case = slo_models.replica(calibration, known, spec, shape)
    if isinstance(case, NoFit):
        arguments = {"model": known.model, "gpu": calibration.gpu_type}
        reason = {"fit": case.reason.value, "fit_arguments": dict(case.arguments)}
        return SloCapacity(calibration, Verdict.NO_FIT, {**facts, "arguments": arguments, **reason})
    limit = capacity_per_second(calibration, 1, buffer=0.0)
    facts |= case.facts
    met: list[tuple[Objective, Prediction]] = []
    missed: list[dict[str, Any]] = []
    for objective in own:
        result = case.at_slo(objective.slo)
        if not isinstance(result, AtSlo) or result.prediction.rate < LEAST_RATIO * limit:
            idle = result.prediction if isinstance(result, AtSlo) else result.best
            missed.append({"binds": _objective_dict(objective), "best": _latencies(idle, known.pool)})
        else:
            met.append((objective, _allowed_load(case, objective, result, limit)))
    facts["missed"] = missed
    if not met:
        return SloCapacity(calibration, Verdict.OUT_OF_REACH, {**facts, **missed[0]})
    binding, at = min(met, key=lambda entry: entry[1].rate)
    facts |= {"binds": _objective_dict(binding), "requests_per_second": at.rate, **_latencies(at, known.pool)}
    if at.rate >= limit:
        return SloCapacity(calibration, Verdict.LOOSE, facts)
    running = at.running
    speed = at.rate * calibration.tokens_per_request / running
    bounded = replace(calibration, batch=running, tokens_per_second_per_sequence=speed)
    return SloCapacity(bounded, Verdict.BOUNDED, {**facts, "batch": running, "tokens_per_second_per_sequence": speed})


def _allowed_load(case: Replica, objective: Objective, result: AtSlo, limit: float) -> Prediction:
    """Prediction at the load an objective allows; one that limits no load does not reduce the calibrated load."""
    most = result.prediction.rate
    if result.binds != "stability":
        return result.prediction
    rate = SAFE_LOAD * most if most < limit * (1.0 - _CLOSE) else max(SAFE_LOAD * most, limit)
    return case.predict(rate, objective.quantile)


def lines(facts: Mapping[str, Any], language: Language = "en") -> list[str]:
    """Text of the step of a derivation; ``facts`` is a ``SloCapacity.as_dict``."""
    verdict = Verdict(facts["verdict"])
    objectives = _objectives_text(facts["objectives"], language)
    if "calibrated" not in facts:
        arguments = {"slo": objectives, **facts.get("arguments", {})}
        if "fit" in facts:
            arguments["why"] = translate(f"capacity.no_fit_{facts['fit']}", language, **facts["fit_arguments"])
        unnamed = verdict is Verdict.NO_SHAPE and arguments.get("model") == _UNNAMED
        return [translate("plan.slo_no_model" if unnamed else f"plan.slo_{verdict.value}", language, **arguments)]
    before = facts["calibrated"]
    figures = {
        "slo": objectives,
        "prompt": f"{facts['prompt']:.4g}",
        "cached": f"{facts['cached_ratio']:.0%}",
        "model": facts["model"],
        "gpu": facts["gpu_type"],
        "factor": f"{facts['factor']:.2f}",
        "before": f"{before['requests_per_second']:.4g}",
        "batch_before": f"{before['batch']:.4g}",
        "speed_before": f"{before['tokens_per_second_per_sequence']:.4g}",
    }
    text = [_basis(facts, figures, language)]
    if verdict is Verdict.OUT_OF_REACH:
        return [*text, _out_of_reach(facts, language)]
    for name in ("requests_per_second", "batch", "tokens_per_second_per_sequence"):
        figures[name] = f"{facts[name]:.4g}" if name in facts else ""
    figures["binds"] = _objectives_text([facts["binds"]], language)
    text.append(translate(f"plan.slo_{verdict.value}", language, **figures))
    return text + [_out_of_reach(entry, language, "missed") for entry in facts.get("missed", ())]


def _basis(facts: Mapping[str, Any], figures: Mapping[str, str], language: Language) -> str:
    """Describes the modeled replica."""
    if facts.get("pool") == PREFILL:
        names = ("prompt_seconds", "transfer_seconds", "step_seconds", "link")
        values = {name: f"{facts[name]:.3g}" for name in names}
        link = translate(f"plan.slo_link_{facts['link_source']}", language)
        return translate("plan.slo_basis_prefill", language, **figures, **values, link_source=link)
    source = translate(f"plan.slo_kv_{facts['kv_source']}", language)
    kv = f"{facts['kv_tokens']:,.0f}"
    return translate("plan.slo_basis", language, **figures, seats=facts["seats"], kv=kv, kv_source=source)


def _out_of_reach(facts: Mapping[str, Any], language: Language, key: str = "out_of_reach") -> str:
    """Reports that no size meets the objective, with the latencies of an idle replica."""
    objective, best = _objectives_text([facts["binds"]], language), facts["best"]
    if None in best.values():
        return translate("plan.slo_no_seat", language, slo=objective)
    idle = translate("plan.slo_and", language).join(
        translate(f"plan.slo_idle_{name}", language, seconds=f"{value:.3g}") for name, value in best.items()
    )
    return translate(f"plan.slo_{key}", language, slo=objective, idle=idle)


def _missing(
    calibration: Calibration, known: ServiceFacts, own: tuple[Objective, ...]
) -> tuple[Verdict, dict[str, str]] | None:
    """The first missing input, None if all are known."""
    if not known.objectives:
        return Verdict.NO_OBJECTIVE, {}
    if not own:
        return Verdict.POOL, {}
    if calibration.origin == "prior":
        return Verdict.NO_CALIBRATION, {}
    if known_gpu(calibration.gpu_type) is None:
        return Verdict.NO_GPU, {"gpu": calibration.gpu_type or "unknown"}
    if known.shape is None:
        return Verdict.NO_SHAPE, {"model": known.model or _UNNAMED, "why": known.no_shape}
    if known.prompt is None or not (isfinite(known.prompt) and known.prompt > 0):
        return Verdict.NO_PROMPT, {}
    return None


def _latencies(at: Prediction, pool: str) -> dict[str, float | None]:
    """Latencies that the pool is responsible for; None if not even one request has a seat."""
    by_pool = {PREFILL: {"ttft_seconds": at.ttft}, DECODE: {"tpot_seconds": at.tpot}}
    latencies = by_pool[pool] if pool else by_pool[PREFILL] | by_pool[DECODE]
    return {name: seconds if seconds < inf else None for name, seconds in latencies.items()}


def _objective_dict(objective: Objective) -> dict[str, Any]:
    return {
        "name": objective.name or None,
        "sli": objective.sli,
        "seconds": objective.seconds,
        "quantile": objective.quantile,
    }


def _objectives_text(objectives: Any, language: Language) -> str:
    """``TTFT within 1 s for 95 % of requests and TPOT within 0.05 s for 95 % of requests``."""
    texts = [
        translate(
            "plan.slo_objective",
            language,
            sli=objective["sli"].upper(),
            seconds=f"{objective['seconds']:g}",
            share=f"{100 * objective['quantile']:g} %",
        )
        for objective in objectives
    ]
    return translate("plan.slo_and", language).join(texts)
