"""``/capacity/disaggregated``: sizes of prefill and decode pools for a model, a workload and its SLO."""

from __future__ import annotations

from math import inf
from typing import Annotated, Any

from fastapi import APIRouter, Query

from planner.performance import model_specs
from planner.performance.gpu_catalog import gpu
from planner.performance.memory_fit import Setup
from planner.performance.queueing import Slo, Work
from service.api.context import Lang
from service.capacity import disaggregation

router = APIRouter(tags=["plan"])
Seconds = Annotated[float | None, Query(gt=0, allow_inf_nan=False)]
Tokens = Annotated[float, Query(ge=1, allow_inf_nan=False)]
Share = Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)]
Group = Annotated[int | None, Query(ge=1)]


@router.get("/capacity/disaggregated")
def disaggregated(
    lang: Lang,
    model: Annotated[str, Query(description="a known model, such as Llama-3.1-70B")],
    gpu_type: Annotated[str, Query(alias="gpu", description="GPU type of both pools, such as H100")],
    qps: Annotated[float, Query(ge=0, allow_inf_nan=False, description="requests per second at the peak")],
    prompt: Tokens,
    tokens: Tokens,
    decode_gpu: Annotated[str | None, Query(description="GPU type of the decode replicas, if different")] = None,
    ttft: Seconds = None,
    tpot: Seconds = None,
    cached: Share = 0.0,
    buffer: Share = 0.25,
    prefill_tp: Group = None,
    decode_tp: Group = None,
    link: Annotated[float | None, Query(gt=0, allow_inf_nan=False, description="bytes per second per GPU")] = None,
    bits: float = 16.0,
    kv_bits: float = 16.0,
) -> dict[str, Any]:
    """Prefill and decode replicas that meet an SLO, with the derivation; ``kept`` is false if none do.

    Same as ``outrider capacity what-if disaggregated``; units are seconds, tokens per request, bytes per second.
    """
    spec = gpu(gpu_type)
    question = disaggregation.SizingRequest(
        shape=model_specs.model(model),
        work=Work(prompt, tokens, cached_ratio=cached),
        qps=qps,
        slo=Slo(inf if ttft is None else ttft, inf if tpot is None else tpot),
        prefill_gpu=spec,
        decode_gpu=spec if decode_gpu is None else gpu(decode_gpu),
        prefill_groups=disaggregation.groups_of("prefill_tp", prefill_tp),
        decode_groups=disaggregation.groups_of("decode_tp", decode_tp),
        buffer=buffer,
        link=link,
        setup=Setup(bits=bits, kv_bits=kv_bits),
    )
    return disaggregation.answer_dict(question, lang)
