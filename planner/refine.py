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
from functools import lru_cache
from math import inf, isfinite
from typing import Any, Literal

from outrider.errors import UsageError
from outrider.i18n import Language, translate
from outrider.model import LIVE, Calibration
from planner import measured, queueing, roofline
from planner.fit import NoFit, Setup, fit
from planner.gpus import known_gpu
from planner.queueing import SAFE_LOAD, AtSlo, Bounds, Prediction, Slo, StepTimes, Work
from planner.shapes import ModelShape

LEAST_RATIO = 0.05
"""A rate below this share of the calibrated one is that of an idle replica: the model errs by more than it tells."""
_MOST_CACHED = 0.99  # of a prompt, at least its last block is computed

_at_slo = lru_cache(maxsize=4096)(queueing.at_slo)  # a bisection of 10 ms, asked again by every plan and command


@dataclass(frozen=True, slots=True)
class Objective:
    """``quantile`` of requests get their first token (ttft), or each further one (tpot), within ``seconds``."""

    sli: Literal["ttft", "tpot"]
    seconds: float
    quantile: float = 0.95
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse promises that mean nothing."""
        if not (isfinite(self.seconds) and self.seconds > 0 and 0 < self.quantile < 1):
            raise UsageError(
                f"a promise of {self.seconds:g} s for {self.quantile:g} of requests",
                hint="give seconds above 0 and a share between 0 and 1",
            )

    @property
    def slo(self) -> Slo:
        """As the queueing model takes it."""
        return Slo(**{self.sli: self.seconds}, quantile=self.quantile)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a service beside its calibration; None where it is not.

    ``model`` is what engines call it, ``shape`` what that is (``no_shape``: why it is not known). ``prompt`` is tokens
    of a prompt, ``cached_ratio`` the share of them that the prefix cache holds, ``kv_tokens`` the KV cache of a
    replica as its page tells, ``sequences`` the engine's own limit. ``pool``: it does prefill or decode only.
    ``as_run``: prompts are those of the running service, so that what runs at once there has room; not of a question.
    """

    objectives: tuple[Objective, ...] = ()
    model: str = ""
    shape: ModelShape | None = None
    no_shape: str = ""
    prompt: float | None = None
    cached_ratio: float = 0.0
    kv_tokens: float | None = None
    sequences: int | None = None
    bits: float = 16.0
    pool: bool = False
    as_run: bool = True


class Verdict(StrEnum):
    """Whether the promise bounds the formula, and why not."""

    BOUNDED = "bounded"
    LOOSE = "loose"  # the calibrated load keeps the promise
    OUT_OF_REACH = "out_of_reach"  # no load keeps any of them, or next to none
    NO_OBJECTIVE = "no_objective"
    POOL = "pool"
    NO_CALIBRATION = "no_calibration"
    NO_GPU = "no_gpu"
    NO_SHAPE = "no_shape"
    NO_PROMPT = "no_prompt"
    NO_FIT = "no_fit"


@dataclass(frozen=True, slots=True)
class Refined:
    """``calibration`` is what the formula counts with; ``facts`` are plain values for the derivation."""

    calibration: Calibration
    verdict: Verdict
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The key ``slo`` of a derivation."""
        return {"refines": self.verdict is Verdict.BOUNDED, "verdict": self.verdict.value, **self.facts}


@dataclass(frozen=True, slots=True)
class _Case:
    """A replica that the model can be asked about; ``factor`` is its step times over those of data sheets."""

    times: StepTimes
    bounds: Bounds
    work: Work
    factor: float
    kv_source: str


def refined(calibration: Calibration, known: Known) -> Refined:
    """The calibration bounded by what keeps the promise, or as it is with the reason. Raises nothing.

    Of several objectives the one with the least rate binds; those that no load keeps are in ``missed`` of the facts.
    """
    told = {"objectives": [_told(one) for one in known.objectives]}
    missing = _missing(calibration, known)
    if missing is not None:
        verdict, arguments = missing
        return Refined(calibration, verdict, {**told, "arguments": arguments})
    case = _case(calibration, known)
    if isinstance(case, NoFit):
        named = {"model": known.model, "gpu": calibration.gpu_type}
        why = {"fit": case.reason.value, "fit_arguments": dict(case.arguments)}
        return Refined(calibration, Verdict.NO_FIT, {**told, "arguments": named, **why})
    limit = calibration.batch * calibration.tokens_per_second_per_sequence / calibration.tokens_per_request
    told |= _basis(calibration, known, case, limit)
    kept: list[tuple[Objective, Prediction]] = []
    missed: list[dict[str, Any]] = []
    for one in known.objectives:
        found = _at_slo(case.times, case.bounds, case.work, one.slo)
        if not isinstance(found, AtSlo) or found.prediction.rate < LEAST_RATIO * limit:
            missed.append(_missed(one, found.prediction if isinstance(found, AtSlo) else found.best))
        else:
            kept.append((one, _counted(case, one, found, limit)))
    told["missed"] = missed
    if not kept:
        return Refined(calibration, Verdict.OUT_OF_REACH, {**told, **missed[0]})
    binding, at = min(kept, key=lambda each: each[1].rate)
    told |= _answer(binding, at)
    if at.rate >= limit:
        return Refined(calibration, Verdict.LOOSE, told)
    running = at.running
    speed = at.rate * calibration.tokens_per_request / running
    bounded = replace(calibration, batch=running, tokens_per_second_per_sequence=speed)
    return Refined(bounded, Verdict.BOUNDED, {**told, "batch": running, "tokens_per_second_per_sequence": speed})


def _counted(case: _Case, one: Objective, found: AtSlo, limit: float) -> Prediction:
    """What a replica does at the load that an objective allows; one that ends no load cuts nothing calibrated."""
    most = found.prediction.rate
    if found.binds != "stability":
        return found.prediction
    rate = SAFE_LOAD * most if most < limit else max(SAFE_LOAD * most, limit)
    return queueing.predict(case.times, case.bounds, case.work, rate, one.quantile)


def lines(facts: Mapping[str, Any], language: Language = "en") -> list[str]:
    """The step of a derivation; ``facts`` is a ``Refined.as_dict``."""
    verdict = Verdict(facts["verdict"])
    promise = _promise(facts["objectives"], language)
    if "calibrated" not in facts:
        arguments = {"promise": promise, **facts.get("arguments", {})}
        if "fit" in facts:
            arguments["why"] = translate(f"capacity.no_fit_{facts['fit']}", language, **facts["fit_arguments"])
        return [translate(f"plan.slo_{verdict.value}", language, **arguments)]
    before, seats = facts["calibrated"], facts["seats"]
    figures = {
        "promise": promise,
        "prompt": f"{facts['prompt']:.4g}",
        "cached": f"{facts['cached_ratio']:.0%}",
        "model": facts["model"],
        "gpu": facts["gpu_type"],
        "factor": f"{facts['factor']:.2f}",
        "seats": seats,
        "kv": f"{facts['kv_tokens']:,.0f}",
        "kv_source": translate(f"plan.slo_kv_{facts['kv_source']}", language),
        "before": f"{before['requests_per_second']:.4g}",
        "batch_before": f"{before['batch']:.4g}",
        "speed_before": f"{before['tokens_per_second_per_sequence']:.4g}",
    }
    said = [translate("plan.slo_basis", language, **figures)]
    if verdict is Verdict.OUT_OF_REACH:
        return [*said, _out_of_reach(facts, language)]
    for name in ("requests_per_second", "batch", "tokens_per_second_per_sequence", "ttft_seconds", "tpot_seconds"):
        figures[name] = f"{facts[name]:.4g}" if name in facts else ""
    figures["binds"] = _promise([facts["binds"]], language)
    said.append(translate(f"plan.slo_{verdict.value}", language, **figures))
    return said + [_out_of_reach(one, language, "plan.slo_missed") for one in facts.get("missed", ())]


def _out_of_reach(facts: Mapping[str, Any], language: Language, key: str = "plan.slo_out_of_reach") -> str:
    """That no size keeps the promise, with what an idle replica does."""
    promise, best = _promise([facts["binds"]], language), facts["best"]
    if best["ttft_seconds"] is None or best["tpot_seconds"] is None:
        return translate("plan.slo_no_seat", language, promise=promise)
    figures = {"ttft": f"{best['ttft_seconds']:.3g}", "tpot": f"{best['tpot_seconds']:.3g}"}
    return translate(key, language, promise=promise, **figures)


def _missing(calibration: Calibration, known: Known) -> tuple[Verdict, dict[str, str]] | None:
    """The first thing without which nothing can be said; None when all is known."""
    if not known.objectives:
        return Verdict.NO_OBJECTIVE, {}
    if known.pool:
        return Verdict.POOL, {}
    if calibration.origin == "prior":
        return Verdict.NO_CALIBRATION, {}
    if known_gpu(calibration.gpu_type) is None:
        return Verdict.NO_GPU, {"gpu": calibration.gpu_type or "unknown"}
    if known.shape is None:
        return Verdict.NO_SHAPE, {"model": known.model or "-", "why": known.no_shape}
    if known.prompt is None or not (isfinite(known.prompt) and known.prompt > 0):
        return Verdict.NO_PROMPT, {}
    return None


def _case(calibration: Calibration, known: Known) -> _Case | NoFit:
    """Step times through the calibrated point, and seats within the KV cache."""
    spec, shape = known_gpu(calibration.gpu_type), known.shape
    assert spec is not None  # _missing has looked
    assert shape is not None
    work = Work(
        max(1.0, known.prompt or 1.0),
        max(1.0, calibration.tokens_per_request),
        cached_ratio=min(max(known.cached_ratio, 0.0), _MOST_CACHED),
    )
    most = known.sequences or max(1, round(calibration.batch))
    setup = Setup(calibration.tensor_parallel, calibration.pipeline_parallel, known.bits, sequences=most)
    held = fit(shape, spec, setup)
    kv_tokens, source = known.kv_tokens, "page"
    if kv_tokens is None:
        if isinstance(held, NoFit):
            return held
        kv_tokens, source = float(held.kv_tokens), "sheets"
    bounds = Bounds(most, kv_tokens, max(setup.token_budget, 2 * most), setup.block)
    needed = calibration.batch * (work.context + setup.block / 2.0)
    seen = calibration.origin == "measured" and (source == "sheets" or (calibration.source == LIVE and known.as_run))
    if seen and kv_tokens < needed:
        # so many were seen running at once: they had room, whatever data sheets say, and the page's cache holds more
        # of them than their lengths tell where prompts share what is cached
        bounds, source = replace(bounds, kv_tokens=needed * (1.0 + 1e-9)), "seen"
    prior = roofline.step_times(shape, spec, setup)
    factor = measured.factor(prior, calibration, work)
    return _Case(measured.scaled(prior, factor), bounds, work, factor, source)


def _basis(calibration: Calibration, known: Known, case: _Case, limit: float) -> dict[str, Any]:
    return {
        "model": known.shape.name if known.shape else known.model,
        "gpu_type": calibration.gpu_type,
        "prompt": case.work.prompt,
        "cached_ratio": case.work.cached_ratio,
        "kv_tokens": case.bounds.kv_tokens,
        "kv_source": case.kv_source,
        "seats": queueing.seats(case.bounds, case.work),
        "factor": case.factor,
        "calibrated": {
            "batch": calibration.batch,
            "tokens_per_second_per_sequence": calibration.tokens_per_second_per_sequence,
            "requests_per_second": limit,
        },
    }


def _answer(binding: Objective, at: Prediction) -> dict[str, Any]:
    return {
        "binds": _told(binding),
        "requests_per_second": at.rate,
        "ttft_seconds": at.ttft,
        "tpot_seconds": at.tpot,
    }


def _missed(objective: Objective, idle: Prediction) -> dict[str, Any]:
    """What an idle replica does; None where not even one request has a seat."""
    best = {"ttft_seconds": idle.ttft, "tpot_seconds": idle.tpot}
    return {"binds": _told(objective), "best": {name: each if each < inf else None for name, each in best.items()}}


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
