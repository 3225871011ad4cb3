"""Prefill and decode apart: tries group sizes of both pools and takes what needs the least money, for CLI and API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from outrider.errors import UsageError
from outrider.text.i18n import Language
from planner.capacity import disaggregated
from planner.capacity.disaggregated import NoPools, Pools
from planner.performance import prefill, roofline
from planner.performance.gpu_catalog import GpuSpec
from planner.performance.memory_fit import NoFit, Setup, fit
from planner.performance.model_specs import ModelShape
from planner.performance.prefill import Link, PoolRole
from planner.performance.queueing import Slo, StepTimes, Work

GROUPS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Question:
    """A model, its work and promise, and what each pool may run on; ``link`` is bytes a second of a GPU, None a prior.

    ``prefill_times`` and ``decode_times`` are measured step times, which hold for one group size.
    """

    shape: ModelShape
    work: Work
    qps: float
    slo: Slo
    prefill_gpu: GpuSpec
    decode_gpu: GpuSpec
    prefill_groups: Sequence[int] = GROUPS
    decode_groups: Sequence[int] = GROUPS
    buffer: float = 0.25
    link: float | None = None
    setup: Setup = field(default_factory=Setup)
    prefill_times: StepTimes | None = None
    decode_times: StepTimes | None = None


@dataclass(frozen=True, slots=True)
class Sized:
    """The cheapest pair of pools. ``cost_per_hour`` is at prior prices of the GPU types."""

    pools: Pools
    prefill_tp: int
    decode_tp: int
    cost_per_hour: float
    mixed_cost_per_hour: float | None

    def as_dict(self, language: Language = "en") -> dict[str, Any]:
        """Plain values, with the derivation as lines."""
        return {
            "kept": True,
            **disaggregated.as_dict(self.pools),
            "prefill_tp": self.prefill_tp,
            "decode_tp": self.decode_tp,
            "cost_per_hour": self.cost_per_hour,
            "mixed_cost_per_hour": self.mixed_cost_per_hour,
            "reason": None,
            "derivation": disaggregated.lines(self.pools, language),
        }


def refused(found: NoPools, language: Language = "en") -> dict[str, Any]:
    """The same keys where the promise cannot be kept."""
    empty = dict.fromkeys(("prefill", "decode", "gpus", "cost_per_hour", "mixed"))
    said = found.text(language)
    return {"kept": False, **empty, "reason": found.reason.value, "best_seconds": found.best, "derivation": [said]}


def answer(asked: Question) -> Sized | NoPools:
    """The cheapest pair that keeps the promise, else the refusal that came nearest.

    Raises UsageError when the model fits no group of one of the types.
    """
    best: Sized | None = None
    nearest: NoPools | None = None
    decode = list(_sides(asked, asked.decode_gpu, asked.decode_groups, asked.decode_times))
    for prefill_tp, first in _sides(asked, asked.prefill_gpu, asked.prefill_groups, asked.prefill_times):
        for decode_tp, second in decode:
            found = disaggregated.size(
                first, second, _link(asked, prefill_tp), asked.work, asked.qps, asked.slo, buffer=asked.buffer
            )
            if isinstance(found, NoPools):
                nearest = min((nearest or found, found), key=lambda one: one.best)
                continue
            cost = found.prefill.gpus * asked.prefill_gpu.price + found.decode.gpus * asked.decode_gpu.price
            if best is None or (cost, found.ttft) < (best.cost_per_hour, best.pools.ttft):
                mixed = None if found.mixed is None else found.mixed.gpus * asked.decode_gpu.price
                best = Sized(found, prefill_tp, decode_tp, cost, mixed)
    if best is not None:
        return best
    assert nearest is not None
    return nearest


def told(asked: Question, language: Language = "en") -> dict[str, Any]:
    """The answer as plain values; ``kept`` False where no sizes keep the promise. Raises UsageError as ``answer``."""
    found = answer(asked)
    said = refused(found, language) if isinstance(found, NoPools) else found.as_dict(language)
    return {"model": asked.shape.name, **said}


def groups_of(option: str, given: int | None) -> Sequence[int]:
    """The group sizes to try: the given one, else the usual ones."""
    if given is None:
        return GROUPS
    if given < 1:
        raise UsageError(f"{option} must be 1 or more, not {given}", hint="leave it out to try 1, 2, 4 and 8")
    return (given,)


def _sides(
    asked: Question, gpu: GpuSpec, groups: Sequence[int], times: StepTimes | None
) -> Iterator[tuple[int, PoolRole]]:
    length = min(asked.shape.context, int(asked.work.prompt + asked.work.output) + 1)
    last, any_fits = None, False
    for tp in groups:
        if tp > gpu.node:
            continue
        setup = replace(asked.setup, tp=tp)
        held = fit(asked.shape, gpu, setup, context=length)
        if isinstance(held, NoFit):
            last = held
            continue
        any_fits = True
        steps = times or roofline.step_times(asked.shape, gpu, setup)
        name = f"{gpu.name} TP {tp}" + (f" PP {setup.pp}" if setup.pp > 1 else "")
        yield tp, PoolRole(steps, roofline.bounds(held, setup), setup.gpus, name)
    if not any_fits:
        why = last.text() if last is not None else f"a node has {gpu.node} GPUs"
        raise UsageError(f"{asked.shape.name} does not fit {gpu.name}: {why}", hint="choose another type, TP or bits")


def _link(asked: Question, tp: int) -> Link:
    rate = prefill.NETWORK_BYTES if asked.link is None else asked.link
    if not (isfinite(rate) and rate > 0):
        raise UsageError(f"--link must be above 0, not {rate:g}", hint="bytes a second of one GPU's port, such as 50e9")
    return prefill.link_of(asked.shape, replace(asked.setup, tp=tp), rate)
