"""Sizing of prefill and decode pools: tries GPU group sizes of both and returns the cheapest pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from outrider.errors import UsageError
from outrider.text.i18n import Language, fill
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
class SizingRequest:
    """Model, work, SLO and allowed GPUs of each pool; ``link`` is bytes per second per GPU, None a prior.

    ``prefill_times`` and ``decode_times`` are measured step times, valid for one group size.
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
class PoolSizing:
    """The cheapest pair of pools. ``cost_per_hour`` uses prior prices of the GPU types."""

    pools: Pools
    prefill_tp: int
    decode_tp: int
    cost_per_hour: float
    mixed_cost_per_hour: float | None

    def as_dict(self, language: Language = "en") -> dict[str, Any]:
        """Returns plain values, with the derivation as lines."""
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


def refused(refusal: NoPools, language: Language = "en") -> dict[str, Any]:
    """Returns the same keys if no sizes meet the SLO."""
    empty = dict.fromkeys(("prefill", "decode", "gpus", "cost_per_hour", "mixed"))
    return {
        "kept": False,
        **empty,
        "reason": refusal.reason.value,
        "best_seconds": refusal.best,
        "derivation": [refusal.text(language)],
    }


def answer(request: SizingRequest) -> PoolSizing | NoPools:
    """Returns the cheapest pair that meets the SLO, else the refusal closest to it.

    Raises UsageError if the model does not fit any group size of a GPU type.
    """
    best: PoolSizing | None = None
    nearest: NoPools | None = None
    decode = list(_pool_options(request, request.decode_gpu, request.decode_groups, request.decode_times))
    for prefill_tp, first in _pool_options(request, request.prefill_gpu, request.prefill_groups, request.prefill_times):
        for decode_tp, second in decode:
            pools = disaggregated.size(
                first, second, _link(request, prefill_tp), request.work, request.qps, request.slo, buffer=request.buffer
            )
            if isinstance(pools, NoPools):
                nearest = min((nearest or pools, pools), key=lambda refusal: refusal.best)
                continue
            cost = pools.prefill.gpus * request.prefill_gpu.price + pools.decode.gpus * request.decode_gpu.price
            if best is None or (cost, pools.ttft) < (best.cost_per_hour, best.pools.ttft):
                mixed = None if pools.mixed is None else pools.mixed.gpus * request.decode_gpu.price
                best = PoolSizing(pools, prefill_tp, decode_tp, cost, mixed)
    if best is not None:
        return best
    assert nearest is not None
    return nearest


def answer_dict(request: SizingRequest, language: Language = "en") -> dict[str, Any]:
    """Returns ``answer`` as plain values; ``kept`` is False if no sizes meet the SLO. Raises UsageError."""
    result = answer(request)
    fields = refused(result, language) if isinstance(result, NoPools) else result.as_dict(language)
    return {"model": request.shape.name, **fields}


def groups_of(option: str, size: int | None) -> Sequence[int]:
    """Returns the group sizes to try: the given one, else 1, 2, 4 and 8."""
    if size is None:
        return GROUPS
    if size < 1:
        raise UsageError(f"{option} must be 1 or more, not {size}", hint="omit it to try 1, 2, 4 and 8")
    return (size,)


def _pool_options(
    request: SizingRequest, gpu: GpuSpec, groups: Sequence[int], times: StepTimes | None
) -> Iterator[tuple[int, PoolRole]]:
    length = min(request.shape.context, int(request.work.prompt + request.work.output) + 1)
    last, any_fits = None, False
    for tp in groups:
        if tp > gpu.node:
            continue
        setup = replace(request.setup, tp=tp)
        memory = fit(request.shape, gpu, setup, context=length)
        if isinstance(memory, NoFit):
            last = memory
            continue
        any_fits = True
        steps = times or roofline.step_times(request.shape, gpu, setup)
        name = f"{gpu.name} TP {tp}" + (f" PP {setup.pp}" if setup.pp > 1 else "")
        yield tp, PoolRole(steps, roofline.bounds(memory, setup), setup.gpus, name)
    if not any_fits:
        reason = last.text() if last is not None else fill("a node has {n} [GPU|GPUs]", n=gpu.node)
        raise UsageError(
            f"{request.shape.name} does not fit {gpu.name}: {reason}", hint="choose another type, TP or bits"
        )


def _link(request: SizingRequest, tp: int) -> Link:
    rate = prefill.NETWORK_BYTES if request.link is None else request.link
    if not (isfinite(rate) and rate > 0):
        raise UsageError(f"--link must be above 0, not {rate:g}", hint="bytes per second per GPU, such as 50e9")
    return prefill.link_of(request.shape, replace(request.setup, tp=tp), rate)
