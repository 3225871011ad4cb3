"""Step times of an unmeasured engine from data sheets: a prior, replaced by measurements.

Decoding reads every weight once a step, and the KV cache of its sequences: it is bound by memory bandwidth. Prompts are
bound by dense arithmetic. Tensor-parallel groups exchange two vectors a layer and token over their link.
"""

from __future__ import annotations

from outrider.text.i18n import Language, translate
from planner.performance.gpu_catalog import GpuSpec
from planner.performance.memory_fit import Fit, Setup
from planner.performance.model_specs import ModelShape
from planner.performance.queueing import Bounds, StepTimes

BANDWIDTH_RATIO = 0.75
"""Prior: share of the data-sheet bandwidth that decode kernels reach."""
ARITHMETIC_RATIO = 0.5
"""Prior: share of dense FLOPS that prompt computation reaches."""
STEP_SECONDS = 2e-3
"""Prior: scheduling, sampling and launch of one step."""
FRONT_SECONDS = 0.01
"""Prior: HTTP and tokenizer."""
SPREAD = (0.6, 1.5)
"""Published throughput relative to the prior: 90 % of the 41 in ``tests/planner/published.yaml`` lie in between.

They are from engines tuned for speed at full load, on groups of up to four.
"""
WIDE, WIDE_LEAST = 4, 0.45
"""For larger groups the single known figure is this share of the prior (docs/explanation/capacity.md)."""
_PCIE_BYTES = 25e9
_EXCHANGE_SECONDS, _EXCHANGE_PCIE_SECONDS = 15e-6, 3e-5
# 15 us per exchange: step time of one request beyond reading weights, on TP 2 (NIM 1.8.0, 18.9 ms) and on TP 4
# (LMDeploy 0.1.0, 30.9 ms)


def source_in(language: Language, tensor_parallel: int = 1) -> str:
    """Source text of data-sheet step times, with the deviation of published figures."""
    low, high = WIDE_LEAST if tensor_parallel > WIDE else SPREAD[0], SPREAD[1]
    return translate("capacity.source_sheets", language, low=f"{low:g}", high=f"{high:g}")


SOURCE = source_in("en")


def step_times(shape: ModelShape, gpu: GpuSpec, setup: Setup) -> StepTimes:
    """Step times of one replica. Every step reads all weights, also of experts: a full batch uses all of them."""
    bandwidth = gpu.bandwidth * BANDWIDTH_RATIO
    arithmetic = gpu.flops(setup.bits) * ARITHMETIC_RATIO * setup.tp
    weights = shape.parameters * setup.bits / 8.0 / setup.tp
    kv = shape.kv_values(setup.tp, shape.layers) * setup.kv_bits / 8.0
    fixed, exchange = _exchange(shape, gpu, setup)
    token = 2.0 * shape.active / arithmetic + exchange
    return StepTimes(
        base=STEP_SECONDS * setup.pp + weights / bandwidth + fixed,
        sequence=token / setup.pp,
        context=kv / bandwidth / setup.pp,
        prompt=token / setup.pp,
        front=FRONT_SECONDS,
        source=source_in("en", setup.tp),
    )


def bounds(memory: Fit, setup: Setup) -> Bounds:
    """Returns the limits of a replica that fits."""
    return Bounds(setup.sequences, float(memory.kv_tokens), setup.token_budget, setup.block)


def _exchange(shape: ModelShape, gpu: GpuSpec, setup: Setup) -> tuple[float, float]:
    """Seconds of the exchanges of a step: fixed, and for each token (ring all-reduce, twice a layer)."""
    if setup.tp == 1:
        return 0.0, 0.0
    wait, rate = (_EXCHANGE_SECONDS, gpu.link / 2.0) if gpu.link else (_EXCHANGE_PCIE_SECONDS, _PCIE_BYTES)
    vector = shape.hidden * 2.0 * 2.0 * (setup.tp - 1) / setup.tp
    return 2.0 * shape.layers * wait, 2.0 * shape.layers * vector / (rate * 0.7)
