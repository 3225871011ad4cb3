"""Replicas that the queueing models can be asked about: what one carries while it keeps a promise.

Three sorts: one that does both, one of a decode pool (steps without prompts, seats of whole sequences) and one of a
prefill pool (prompts one after the other, then a link). Each is brought to its calibrated point.
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

_MOST_CACHED = 0.99  # of a prompt, at least its last block is computed
_MOST_SEATS = 65_536  # no engine runs as many; the chain of states is as long

_at_slo = lru_cache(maxsize=4096)(queueing.at_slo)  # a bisection of 10 ms, asked again by every plan and command
_prompts_at_slo = lru_cache(maxsize=4096)(prefill.prompts_at_slo)


class Replica(Protocol):
    """What the queueing models say of one replica at a load; ``facts`` are plain values for the derivation."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of what it was made."""
        ...

    def at_slo(self, slo: Slo) -> AtSlo | OutOfReach:
        """The largest load that keeps a promise."""
        ...

    def predict(self, rate: float, quantile: float) -> Prediction:
        """Latencies at a load, in requests a second."""
        ...


@dataclass(frozen=True, slots=True)
class Answering:
    """A replica that makes answers, and computes prompts unless its pool is that of decode."""

    times: StepTimes
    bounds: Bounds
    work: Work
    facts: Mapping[str, Any]

    def at_slo(self, slo: Slo) -> AtSlo | OutOfReach:
        """The largest load that keeps a promise."""
        return _at_slo(self.times, self.bounds, self.work, slo)

    def predict(self, rate: float, quantile: float) -> Prediction:
        """Latencies at a load, in requests a second."""
        return queueing.predict(self.times, self.bounds, self.work, rate, quantile)


@dataclass(frozen=True, slots=True)
class Prompting:
    """A replica of a prefill pool; ``after`` seconds are left to the decode replica for the first token."""

    side: PoolRole
    link: Link
    work: Work
    after: float
    facts: Mapping[str, Any]

    def at_slo(self, slo: Slo) -> AtSlo | OutOfReach:
        """The largest load that keeps a promise of first tokens."""
        return _prompts_at_slo(self.side, self.link, self.work, slo, self.after)

    def predict(self, rate: float, quantile: float) -> Prediction:
        """Latencies at a load, in requests a second."""
        return prefill.prompts_at(self.side, self.link, self.work, rate, quantile, self.after)


def replica(calibration: Calibration, known: ServiceFacts, spec: GpuSpec, shape: ModelShape) -> Replica | NoFit:
    """The replica that was calibrated."""
    cached = min(max(known.cached_ratio, 0.0), _MOST_CACHED) if isfinite(known.cached_ratio) else 0.0
    work = Work(max(1.0, known.prompt or 1.0), max(1.0, calibration.tokens_per_request), cached_ratio=cached)
    if known.pool == PREFILL:
        return _prompting(calibration, known, spec, shape, work)
    return _answering(calibration, known, spec, shape, work)


def _answering(
    calibration: Calibration, known: ServiceFacts, spec: GpuSpec, shape: ModelShape, work: Work
) -> Answering | NoFit:
    """Step times through the calibrated point, and seats within the KV cache."""
    most = min(max(1, known.sequences or round(calibration.batch)), _MOST_SEATS)
    setup = _setup(calibration, known, most)
    held = fit(shape, spec, setup)
    kv_tokens, source = known.kv_tokens, "page"
    if kv_tokens is None or not isfinite(kv_tokens):
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
    if known.pool:
        prior, bounds = prefill.decoding(PoolRole(prior, bounds, setup.gpus))
    factor = measured.factor(prior, calibration, work)
    facts = _facts(calibration, shape, work, factor)
    facts |= {"kv_tokens": bounds.kv_tokens, "kv_source": source, "seats": queueing.seats(bounds, work)}
    return Answering(measured.scaled(prior, factor), bounds, work, facts)


def _prompting(
    calibration: Calibration, known: ServiceFacts, spec: GpuSpec, shape: ModelShape, work: Work
) -> Prompting:
    """Prompts through the calibrated point: with any inside it works, so one takes the time between two that leave."""
    setup = _setup(calibration, known, 1)
    bounds = Bounds(setup.sequences, token_budget=setup.token_budget, block=setup.block)
    prior = roofline.step_times(shape, spec, setup)
    seconds = min(1.0, calibration.batch) / capacity_per_second(calibration, 1, buffer=0.0)
    factor = seconds / prefill.prompt_seconds(PoolRole(prior, bounds, setup.gpus), work)
    times = measured.scaled(prior, factor)
    link, source = prefill.link_of(shape, setup), "prior"
    if calibration.origin == "measured" and link.seconds(work.prompt) > seconds:  # as many were seen to cross
        link, source = Link(link.bytes_per_token, work.prompt * link.bytes_per_token / seconds, 0.0), "seen"
    after = times.decode(1.0, work.context)
    facts = _facts(calibration, shape, work, factor)
    facts |= {"pool": known.pool, "prompt_seconds": seconds, "link": link.rate, "link_source": source}
    facts |= {"transfer_seconds": link.seconds(work.prompt), "step_seconds": after}
    return Prompting(PoolRole(times, bounds, setup.gpus), link, work, after, facts)


def _setup(calibration: Calibration, known: ServiceFacts, sequences: int) -> Setup:
    return Setup(calibration.tensor_parallel, calibration.pipeline_parallel, known.bits, sequences=sequences)


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
