"""Predefined fleets: for the demo, for drills with their standby, and of any size.

The constants are priors for a plausible fleet, from public figures (H100 TP2 with a 70 B model: 1,294 output tokens/s
at batch <= 64; tens of GB of weights load in 0.5 to 2 minutes).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from outrider.errors import UsageError
from simulator.spec.devices import GPU_TYPES, GpuType, gpu_type
from simulator.spec.parts import (
    ENGINE_KINDS,
    EngineModel,
    FleetSpec,
    Lengths,
    PoolSpec,
    ServiceSpec,
    StartupSpec,
    TenantSpec,
    TrafficSpec,
)

__all__ = [
    "ENGINE_KINDS",
    "GPU_TYPES",
    "EngineModel",
    "FleetSpec",
    "GpuType",
    "Lengths",
    "PoolSpec",
    "ServiceSpec",
    "StartupSpec",
    "TenantSpec",
    "TrafficSpec",
    "default_spec",
    "drill_spec",
    "spec_of",
    "standby_spec",
]

H100 = "NVIDIA H100 80GB HBM3"
NODE_GPUS = 8
# From this size on, ticks and slices are coarser, so that a step of 15 s stays far faster than real time.
COARSE_FROM_GPUS, COARSE_SECONDS = 512, 5.0
DRILL_SECONDS = 3.0  # a fifth of a scrape interval
USED_RATIO = 0.8  # used share of the devices of a type; the others are spare

_CHAT = EngineModel(
    model="chat-70b-instruct-fp8",
    step_seconds=0.0145,
    step_per_sequence_seconds=1.2e-4,
    step_per_context_token_seconds=2.2e-8,
    prefill_per_token_seconds=3.0e-5,
    max_sequences=96,
    token_budget=8192,
    kv_blocks=5120,
    max_model_length=16384,
)
_CODE = EngineModel(
    model="code-14b-instruct",
    step_seconds=0.0085,
    step_per_sequence_seconds=9.0e-5,
    step_per_context_token_seconds=2.5e-8,
    prefill_per_token_seconds=2.0e-5,
    max_sequences=64,
    token_budget=8192,
    kv_blocks=6144,
    max_model_length=16384,
)
_MIXTURE = replace(_CHAT, model="mixture-235b-a22b-fp8", step_seconds=0.021, max_sequences=128, kv_blocks=24576)
_MIDDLE = replace(_CHAT, model="assist-32b-instruct", step_seconds=0.0115, max_sequences=64, kv_blocks=8192)
_SMALL = replace(_CODE, model="support-8b-instruct", step_seconds=0.006, max_sequences=48, kv_blocks=4096)
_TINY = replace(
    _CODE, model="classify-1b", step_seconds=0.0022, max_sequences=32, kv_blocks=4096, max_model_length=4096
)

_TALK = Lengths(prompt_mean=900, prompt_sigma=0.7, output_mean=300, output_sigma=0.6, cached_ratio=0.45)
_PROGRAM = Lengths(prompt_mean=1600, prompt_sigma=0.6, output_mean=380, output_sigma=0.7, cached_ratio=0.6)
_LABEL = Lengths(prompt_mean=400, prompt_sigma=0.5, output_mean=60, output_sigma=0.5, cached_ratio=0.5)
_OFFICE = TrafficSpec(peak_ratio=0.64, trough_ratio=0.3, weekend_ratio=0.6, peak_hour=15.5)

_CHAT_SERVICE = ServiceSpec("chat-70b", _CHAT, _TALK, tensor_parallel=4, replicas=10, ceiling=13)
_CODE_SERVICE = ServiceSpec("code-14b", _CODE, _PROGRAM, tensor_parallel=2, replicas=6, ceiling=10, traffic=_OFFICE)
_TENANTS = (
    TenantSpec("consumer", 0.6),
    TenantSpec("enterprise", 0.3, replace(_TALK, prompt_mean=1100), priority=-1),
    TenantSpec("internal", 0.1, priority=1),
)


def default_spec(size: Literal["small"] = "small") -> FleetSpec:
    """Returns the demo fleet: 2 services, 16 replicas, 8 nodes, 64 GPUs, 12 of them spare."""
    del size
    return FleetSpec("demo", (PoolSpec("h100-a", H100, 4), PoolSpec("h100-b", H100, 4)), (_CHAT_SERVICE, _CODE_SERVICE))


def drill_spec() -> FleetSpec:
    """Returns the drill fleet: 64 GPUs in 2 racks, 1 storage, 2 services with tenants, 20 spare GPUs for repairs."""
    return FleetSpec(
        "drill",
        (PoolSpec("h100-a", H100, 4), PoolSpec("h100-b", H100, 4)),
        (replace(_CHAT_SERVICE, replicas=8, tenants=_TENANTS), _CODE_SERVICE),
        slice_seconds=DRILL_SECONDS,
        tick_seconds=DRILL_SECONDS,
    )


def standby_spec() -> FleetSpec:
    """Returns the standby cluster of ``drill_spec``: the same services, sized for their full load."""
    return replace(drill_spec(), cluster="standby", prefix="standby-")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A service of large fleets, with ``share`` of the fleet's GPUs, all of one type."""

    name: str
    share: float
    gpu_type: str
    engine: EngineModel
    engine_kind: str
    lengths: Lengths
    tensor_parallel: int


_KINDS = (
    _Kind("chat-70b", 0.28, "H100", _CHAT, "vllm", _TALK, 8),
    _Kind("code-14b", 0.14, "H100", _CODE, "vllm", _PROGRAM, 4),
    _Kind("reason-235b", 0.12, "H200", _MIXTURE, "sglang", _TALK, 8),
    _Kind("assist-32b", 0.18, "A100", _MIDDLE, "tgi", _TALK, 8),
    _Kind("draft-32b", 0.14, "910B", _MIDDLE, "mindie", _TALK, 8),
    _Kind("support-8b", 0.09, "A30", _SMALL, "triton", _TALK, 4),
    _Kind("classify-1b", 0.05, "T4", _TINY, "triton", _LABEL, 2),
)


def spec_of(gpus: int, cluster: str = "fleet", *, seed: int = 7) -> FleetSpec:
    """Returns a fleet of exactly ``gpus`` GPUs, for 8 to 10,000: one type if small, six from 256 GPUs on.

    A fifth of each type is spare. ``seed`` varies the services' load and the hour of their peaks. From 512 GPUs on its
    ticks are coarser. Raises UsageError for fewer than 1 GPU.
    """
    if gpus < 1:
        raise UsageError(f"{gpus} GPUs are too few for a fleet", hint="give a number from 8 to 10000")
    random = np.random.default_rng([seed, 9])
    kinds = (
        _KINDS
        if gpus >= 256
        else tuple(replace(kind, tensor_parallel=kind.tensor_parallel // 2) for kind in _KINDS[:2])
    )
    if gpus < 2 * NODE_GPUS:
        kinds = (replace(_KINDS[1], tensor_parallel=min(2, gpus), share=1.0),)
    pools = _pools(gpus, kinds)
    services = []
    for kind in kinds:
        name = gpu_type(kind.gpu_type).name
        mine = sum(other.share for other in kinds if other.gpu_type == kind.gpu_type)
        there = sum(pool.nodes * pool.gpus_per_node for pool in pools if pool.gpu_type == name)
        most = max(1, int(there * kind.share / mine / kind.tensor_parallel))
        load = TrafficSpec(peak_ratio=float(random.uniform(0.55, 0.7)), peak_hour=float(random.uniform(9.0, 21.0)))
        services.append(
            ServiceSpec(
                kind.name,
                kind.engine.on(name),
                kind.lengths,
                kind.tensor_parallel,
                max(1, round(most * USED_RATIO)),
                most,
                load,
                engine_kind=kind.engine_kind,
                gpu_type=name,
            )
        )
    result = FleetSpec(cluster, pools, tuple(services))
    coarse = gpus >= COARSE_FROM_GPUS
    return replace(result, slice_seconds=COARSE_SECONDS, tick_seconds=COARSE_SECONDS) if coarse else result


def _pools(gpus: int, kinds: tuple[_Kind, ...]) -> tuple[PoolSpec, ...]:
    """Returns whole nodes for each type by its share; the first type gets the rest, possibly a partial node."""
    shares: dict[str, float] = {}
    for kind in kinds:
        shares[kind.gpu_type] = shares.get(kind.gpu_type, 0.0) + kind.share
    total, first = sum(shares.values()), next(iter(shares))
    nodes = {short: int(gpus / NODE_GPUS * share / total) for short, share in shares.items()}
    left = gpus - NODE_GPUS * sum(nodes.values())
    nodes[first] += left // NODE_GPUS
    names = {short: gpu_type(short).name for short in nodes}
    pools = [PoolSpec(short.lower(), names[short], count) for short, count in nodes.items() if count]
    if left % NODE_GPUS:
        pools.append(PoolSpec(f"{first.lower()}-rest", names[first], 1, gpus_per_node=left % NODE_GPUS))
    return tuple(pools)
