"""What one replica carries while it keeps its promise: the queueing model bounds the formula's batch and speed.

A calibration says that a replica runs b sequences at once at v tokens a second each: b v / L requests a second of L
tokens. At that rate every seat is taken and requests queue. ``queueing`` finds the largest rate at which each promise
(time to first token, time per further token, each for its share of requests) is kept, on data sheets' step times that
are brought to the calibrated point (``measured``), with as many seats as the KV cache holds. Where that rate r is the
smaller one, the formula counts with the n sequences that run then and with their speed by Little's law,

    batch = n        tokens per second of a sequence = r L / n        so that batch x speed / L = r

A promise that no load keeps bounds nothing and is told with a warning; the others bound as if it were not made. One
that is kept until every seat is taken is counted at ``SAFE_LOAD`` of that, as ``cost`` does: there queues never end.
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
"""A rate below this share of the calibrated one is that of an idle replica: the model errs by more than it tells."""
_CLOSE = 1e-3
_UNNAMED = "-"
"""What stands for a model that nobody names."""


class Verdict(StrEnum):
    """Whether the promise bounds the formula, and why not."""

    BOUNDED = "bounded"
    LOOSE = "loose"  # the calibrated load keeps the promise
    OUT_OF_REACH = "out_of_reach"  # no load keeps any of them, or next to none
    NO_OBJECTIVE = "no_objective"
    POOL = "pool"  # what is promised is the business of the other pool
    NO_CALIBRATION = "no_calibration"
    NO_GPU = "no_gpu"
    NO_SHAPE = "no_shape"
    NO_PROMPT = "no_prompt"
    NO_FIT = "no_fit"
    REFUSED = "refused"  # figures that no engine has


@dataclass(frozen=True, slots=True)
class SloCapacity:
    """``calibration`` is what the formula counts with; ``facts`` are plain values for the derivation."""

    calibration: Calibration
    verdict: Verdict
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The key ``slo`` of a derivation."""
        return {"refines": self.verdict is Verdict.BOUNDED, "verdict": self.verdict.value, **self.facts}


def refine(calibration: Calibration, known: ServiceFacts) -> SloCapacity:
    """The calibration bounded by what keeps the promise, or as it is with the reason. Raises nothing."""
    try:
        with np.errstate(over="raise"):
            return _refined(calibration, known)
    except (OutriderError, ArithmeticError) as error:  # figures that no engine has: nobody else's plan ends for them
        told = {"objectives": [_told(one) for one in known.objectives], "arguments": {"why": str(error)}}
        return SloCapacity(calibration, Verdict.REFUSED, told)


def _refined(calibration: Calibration, known: ServiceFacts) -> SloCapacity:
    """The same; raises UsageError and ArithmeticError.

    Of several objectives the one with the least rate binds; those that no load keeps are in ``missed`` of the facts.
    The first token is promised by a prefill pool, further ones by a decode pool.
    """
    mine = tuple(one for one in known.objectives if known.pool in ("", one.pool))
    told: dict[str, Any] = {"objectives": [_told(one) for one in mine or known.objectives]}
    missing = _missing(calibration, known, mine)
    if missing is not None:
        verdict, arguments = missing
        return SloCapacity(calibration, verdict, {**told, "arguments": arguments})
    spec, shape = known_gpu(calibration.gpu_type), known.shape
    assert spec is not None  # _missing has looked
    assert shape is not None
    case = slo_models.replica(calibration, known, spec, shape)
    if isinstance(case, NoFit):
        named = {"model": known.model, "gpu": calibration.gpu_type}
        why = {"fit": case.reason.value, "fit_arguments": dict(case.arguments)}
        return SloCapacity(calibration, Verdict.NO_FIT, {**told, "arguments": named, **why})
    limit = capacity_per_second(calibration, 1, buffer=0.0)
    told |= case.facts
    kept: list[tuple[Objective, Prediction]] = []
    missed: list[dict[str, Any]] = []
    for one in mine:
        found = case.at_slo(one.slo)
        if not isinstance(found, AtSlo) or found.prediction.rate < LEAST_RATIO * limit:
            idle = found.prediction if isinstance(found, AtSlo) else found.best
            missed.append({"binds": _told(one), "best": _latencies(idle, known.pool)})
        else:
            kept.append((one, _counted(case, one, found, limit)))
    told["missed"] = missed
    if not kept:
        return SloCapacity(calibration, Verdict.OUT_OF_REACH, {**told, **missed[0]})
    binding, at = min(kept, key=lambda each: each[1].rate)
    told |= {"binds": _told(binding), "requests_per_second": at.rate, **_latencies(at, known.pool)}
    if at.rate >= limit:
        return SloCapacity(calibration, Verdict.LOOSE, told)
    running = at.running
    speed = at.rate * calibration.tokens_per_request / running
    bounded = replace(calibration, batch=running, tokens_per_second_per_sequence=speed)
    return SloCapacity(bounded, Verdict.BOUNDED, {**told, "batch": running, "tokens_per_second_per_sequence": speed})


def _counted(case: Replica, one: Objective, found: AtSlo, limit: float) -> Prediction:
    """What a replica does at the load that an objective allows; one that ends no load cuts nothing calibrated."""
    most = found.prediction.rate
    if found.binds != "stability":
        return found.prediction
    rate = SAFE_LOAD * most if most < limit * (1.0 - _CLOSE) else max(SAFE_LOAD * most, limit)
    return case.predict(rate, one.quantile)


def lines(facts: Mapping[str, Any], language: Language = "en") -> list[str]:
    """The step of a derivation; ``facts`` is a ``SloCapacity.as_dict``."""
    verdict = Verdict(facts["verdict"])
    promise = _promise(facts["objectives"], language)
    if "calibrated" not in facts:
        arguments = {"promise": promise, **facts.get("arguments", {})}
        if "fit" in facts:
            arguments["why"] = translate(f"capacity.no_fit_{facts['fit']}", language, **facts["fit_arguments"])
        unnamed = verdict is Verdict.NO_SHAPE and arguments.get("model") == _UNNAMED
        return [translate("plan.slo_no_model" if unnamed else f"plan.slo_{verdict.value}", language, **arguments)]
    before = facts["calibrated"]
    figures = {
        "promise": promise,
        "prompt": f"{facts['prompt']:.4g}",
        "cached": f"{facts['cached_ratio']:.0%}",
        "model": facts["model"],
        "gpu": facts["gpu_type"],
        "factor": f"{facts['factor']:.2f}",
        "before": f"{before['requests_per_second']:.4g}",
        "batch_before": f"{before['batch']:.4g}",
        "speed_before": f"{before['tokens_per_second_per_sequence']:.4g}",
    }
    said = [_basis(facts, figures, language)]
    if verdict is Verdict.OUT_OF_REACH:
        return [*said, _out_of_reach(facts, language)]
    for name in ("requests_per_second", "batch", "tokens_per_second_per_sequence"):
        figures[name] = f"{facts[name]:.4g}" if name in facts else ""
    figures["binds"] = _promise([facts["binds"]], language)
    said.append(translate(f"plan.slo_{verdict.value}", language, **figures))
    return said + [_out_of_reach(one, language, "missed") for one in facts.get("missed", ())]


def _basis(facts: Mapping[str, Any], figures: Mapping[str, str], language: Language) -> str:
    """Of what replica the model speaks."""
    if facts.get("pool") == PREFILL:
        names = ("prompt_seconds", "transfer_seconds", "step_seconds", "link")
        told = {one: f"{facts[one]:.3g}" for one in names}
        link = translate(f"plan.slo_link_{facts['link_source']}", language)
        return translate("plan.slo_basis_prefill", language, **figures, **told, link_source=link)
    source = translate(f"plan.slo_kv_{facts['kv_source']}", language)
    kv = f"{facts['kv_tokens']:,.0f}"
    return translate("plan.slo_basis", language, **figures, seats=facts["seats"], kv=kv, kv_source=source)


def _out_of_reach(facts: Mapping[str, Any], language: Language, key: str = "out_of_reach") -> str:
    """That no size keeps the promise, with what an idle replica does."""
    promise, best = _promise([facts["binds"]], language), facts["best"]
    if None in best.values():
        return translate("plan.slo_no_seat", language, promise=promise)
    idle = translate("plan.slo_and", language).join(
        translate(f"plan.slo_idle_{name}", language, seconds=f"{each:.3g}") for name, each in best.items()
    )
    return translate(f"plan.slo_{key}", language, promise=promise, idle=idle)


def _missing(
    calibration: Calibration, known: ServiceFacts, mine: tuple[Objective, ...]
) -> tuple[Verdict, dict[str, str]] | None:
    """The first thing without which nothing can be said; None when all is known."""
    if not known.objectives:
        return Verdict.NO_OBJECTIVE, {}
    if not mine:
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
    """Those that a replica answers for; None where not even one request has a seat."""
    every = {PREFILL: {"ttft_seconds": at.ttft}, DECODE: {"tpot_seconds": at.tpot}}
    mine = every[pool] if pool else every[PREFILL] | every[DECODE]
    return {name: each if each < inf else None for name, each in mine.items()}


def _told(one: Objective) -> dict[str, Any]:
    return {"name": one.name or None, "sli": one.sli, "seconds": one.seconds, "quantile": one.quantile}


def _promise(objectives: Any, language: Language) -> str:
    """``TTFT within 1 s for 95 % of requests and TPOT within 0.05 s for 95 % of requests``."""
    each = [
        translate(
            "plan.slo_promise",
            language,
            sli=one["sli"].upper(),
            seconds=f"{one['seconds']:g}",
            share=f"{100 * one['quantile']:g} %",
        )
        for one in objectives
    ]
    return translate("plan.slo_and", language).join(each)
