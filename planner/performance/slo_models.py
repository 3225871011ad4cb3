"""Queueing models of replicas: the load that each serves within an SLO.

Three kinds: a replica that does both, one of a decode pool (steps without prompts, seats of whole sequences) and one of
a prefill pool (prompts one after the other, then a link). Each is scaled to its calibrated point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Any, Protocol

from outrider.model import LIVE, Calibration
from planner.performance import measured, prefill, queueing, roofline
from planner.performance.gpu_catalog import GpuSpec
from planner.performance.headroom import capacity_per_second
from planner.performance.memory_fit import NoFit, Setup, fit
from planner.performance.model_specs import ModelShape
from planner.performance.prefill import Link, PoolRole
from planner.performance.queueing import AtSlo, Bounds, OutOfReach, Prediction, Slo, StepTimes, Work
from planner.performance.service_facts import PREFILL, ServiceFacts

_MOST_CACHED = 0.99  # of a prompt: at least its last block is computed
_MOST_SEATS = 65_536  # above any engine's limit; the state chain is as long

_at_slo = lru_cache(maxsize=4096)(queueing.at_slo)  # a bisection of 10 ms, repeated by every plan and command
_prompts_at_slo = lru_cache(maxsize=4096)(prefill.prompts_at_slo)


class Replica(Protocol):
    """Queueing model of one replica; ``facts`` are plain values for the derivation."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Inputs of the model."""
        ...

    def at_slo(self, slo: Slo) -> AtSlo | OutOfReach:
        """Returns the largest load that meets an SLO."""
        ...

    def predict(self, rate: float, quantile: float) -> Prediction:
        """Returns the latencies at a load, in requests per second."""
        ...


@dataclass(frozen=True, slots=True)
class GeneratingReplica:
    """A replica that generates tokens, and computes prompts unless it is in a decode pool."""

    times: StepTimes
    bounds: Bounds
    work: Work
    facts: Mapping[str, Any]

    def at_slo(self, slo: Slo) -> AtSlo | OutOfReach:
        """Returns the largest load that meets an SLO."""
        return _at_slo(self.times, self.bounds, self.work, slo)

    def predict(self, rate: float, quantile: float) -> Prediction:
        """Returns the latencies at a load, in requests per second."""
        return queueing.predict(self.times, self.bounds, self.work, rate, quantile)


@dataclass(frozen=True, slots=True)
class PrefillReplica:
    """A replica of a prefill pool; ``after`` seconds of the TTFT are left to the decode replica."""

    side: PoolRole
    link: Link
    work: Work
    after: float
    facts: Mapping[str, Any]

    def at_slo(self, slo: Slo) -> AtSlo | OutOfReach:
        """Returns the largest load that meets a TTFT objective."""
        return _prompts_at_slo(self.side, self.link, self.work, slo, self.after)

    def predict(self, rate: float, quantile: float) -> Prediction:
        """Returns the latencies at a load, in requests per second."""
        return prefill.prompts_at(self.side, self.link, self.work, rate, quantile, self.after)


def replica(calibration: Calibration, service: ServiceFacts, spec: GpuSpec, shape: ModelShape) -> Replica | NoFit:
    """Returns the model of the calibrated replica."""
    cached = min(max(service.cached_ratio, 0.0), _MOST_CACHED) if isfinite(service.cached_ratio) else 0.0
    work = Work(max(1.0, service.prompt or 1.0), max(1.0, calibration.tokens_per_request), cached_ratio=cached)
    if service.pool == PREFILL:
        return _prompting(calibration, service, spec, shape, work)
    return _answering(calibration, service, spec, shape, work)


def _answering(
    calibration: Calibration, service: ServiceFacts, spec: GpuSpec, shape: ModelShape, work: Work
) -> GeneratingReplica | NoFit:
    """Step times through the calibrated point, and seats within the KV cache."""
    most = min(max(1, service.sequences or round(calibration.batch)), _MOST_SEATS)
    setup = _setup(calibration, service, most)
    memory = fit(shape, spec, setup)
    kv_tokens, source = service.kv_tokens, "page"
    if kv_tokens is None or not isfinite(kv_tokens):
        if isinstance(memory, NoFit):
            return memory
        kv_tokens, source = float(memory.kv_tokens), "sheets"
    bounds = Bounds(most, kv_tokens, max(setup.token_budget, 2 * most), setup.block)
    needed = calibration.batch * (work.context + setup.block / 2.0)
    is_observed = calibration.origin == "measured" and (
        source == "sheets" or (calibration.source == LIVE and service.as_run)
    )
    if is_observed and kv_tokens < needed:
        # So many sequences were observed running at once, so they had room, whatever the data sheets give.
        # The reported cache holds more of them than their lengths suggest if prompts share cached blocks.
        bounds, source = replace(bounds, kv_tokens=needed * (1.0 + 1e-9)), "seen"
    prior = roofline.step_times(shape, spec, setup)
    if service.pool:
        prior, bounds = prefill.decoding(PoolRole(prior, bounds, setup.gpus))
    factor = measured.factor(prior, calibration, work)
    facts = _facts(calibration, shape, work, factor)
    facts |= {"kv_tokens": bounds.kv_tokens, "kv_source": source, "seats": queueing.seats(bounds, work)}
    return GeneratingReplica(measured.scale(prior, factor), bounds, work, facts)


def _prompting(
    calibration: Calibration, service: ServiceFacts, spec: GpuSpec, shape: ModelShape, work: Work
) -> PrefillReplica:
    """Prompts through the calibrated point: a busy replica finishes one prompt per service time."""
    setup = _setup(calibration, service, 1)
    bounds = Bounds(setup.sequences, token_budget=setup.token_budget, block=setup.block)
    prior = roofline.step_times(shape, spec, setup)
    seconds = min(1.0, calibration.batch) / capacity_per_second(calibration, 1, buffer=0.0)
    factor = seconds / prefill.prompt_seconds(PoolRole(prior, bounds, setup.gpus), work)
    times = measured.scale(prior, factor)
    link, source = prefill.link_of(shape, setup), "prior"
    if (
        calibration.origin == "measured" and link.seconds(work.prompt) > seconds
    ):  # so many were observed to cross the link
        link, source = Link(link.bytes_per_token, work.prompt * link.bytes_per_token / seconds, 0.0), "seen"
    after = times.decode(1.0, work.context)
    facts = _facts(calibration, shape, work, factor)
    facts |= {"pool": service.pool, "prompt_seconds": seconds, "link": link.rate, "link_source": source}
    facts |= {"transfer_seconds": link.seconds(work.prompt), "step_seconds": after}
    return PrefillReplica(PoolRole(times, bounds, setup.gpus), link, work, after, facts)


def _setup(calibration: Calibration, service: ServiceFacts, sequences: int) -> Setup:
    return Setup(calibration.tensor_parallel, calibration.pipeline_parallel, service.bits, sequences=sequences)


def _facts(calibration: Calibration, shape: ModelShape, work: Work, factor: float) -> dict[str, Any]:
    return {
        "model": shape.name,
        "gpu_type": calibration.gpu_type,
        "prompt": work.prompt,
        "cached_ratio": work.cached_ratio,
        "factor": factor,
        "calibrated": {
            "batch": calibration.batch,
            "tokens_per_second_per_sequence": calibration.tokens_per_second_per_sequence,
            "requests_per_second": capacity_per_second(calibration, 1, buffer=0.0),
        },
    }
