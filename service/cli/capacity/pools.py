"""``outrider capacity what-if disaggregated``: sizes of prefill and decode pools."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.capacity.model_options import (
    BitsOption,
    ConfigOption,
    KvBitsOption,
    ModelOption,
    ParametersOption,
    SequencesOption,
    TpotOption,
    TtftOption,
    UtilisationOption,
    shape_of,
    slo_of,
)
from service.cli.core.amounts import amount
from service.cli.core.common import NO, Context, leaf


def add(app: typer.Typer, *, hidden: bool = False) -> None:
    """Registers the command."""
    example = (
        "outrider capacity what-if disaggregated --model Llama-3.1-70B --gpu H100 --qps 20 --prompt 3000 --tokens 200 "
        "--ttft 1.5s --tpot 40ms"
    )
    leaf(app, "disaggregated", example=example, hidden=hidden)(pools)


def pools(
    context: Context,
    qps: Annotated[float, amount("--qps", "request/second", "Peak requests per second")],
    prompt: Annotated[float, amount("--prompt", "token/request", "Prompt length")],
    tokens: Annotated[float, amount("--tokens", "token/request", "Tokens generated per request")],
    gpu_type: Annotated[
        str, typer.Option("--gpu", help="GPU type of the prefill pool, and of the decode pool by default.")
    ],
    decode_gpu: Annotated[str | None, typer.Option("--decode-gpu", help="GPU type of the decode pool.")] = None,
    model: ModelOption = None,
    config_json: ConfigOption = None,
    parameters: ParametersOption = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    prompt_cv: Annotated[
        float,
        typer.Option(
            "--prompt-cv", help="Coefficient of variation of prompt lengths (standard deviation / mean).", min=0.0
        ),
    ] = 1.0,
    output_cv: Annotated[
        float,
        typer.Option(
            "--tokens-cv", help="Coefficient of variation of output lengths (standard deviation / mean).", min=0.0
        ),
    ] = 1.0,
    cached: Annotated[float, amount("--cached", "ratio", "Share of prompt tokens found in the prefix cache")] = 0.0,
    buffer: Annotated[float, amount("--buffer", "ratio", "Headroom above the peak")] = 0.25,
    prefill_tp: Annotated[
        int | None, typer.Option("--prefill-tp", help="Tensor parallel sizes to try. Default: 1, 2, 4 and 8.")
    ] = None,
    decode_tp: Annotated[
        int | None, typer.Option("--decode-tp", help="Tensor parallel sizes to try. Default: 1, 2, 4 and 8.")
    ] = None,
    link: Annotated[
        float | None,
        amount("--link", "byte/second", "Bandwidth of one GPU's port for KV transfers; default from the GPU catalog"),
    ] = None,
    bits: BitsOption = 16.0,
    kv_bits: KvBitsOption = 16.0,
    utilisation: UtilisationOption = 0.9,
    max_sequences: SequencesOption = 256,
) -> int | None:
    """Size separate prefill and decode pools.

    Each pool has its own SLO. Exits 1 if no sizes satisfy both.
    """
    from planner.performance.gpu_catalog import gpu  # noqa: PLC0415
    from planner.performance.memory_fit import Setup  # noqa: PLC0415 - numpy, not needed by --help
    from planner.performance.queueing import Work  # noqa: PLC0415
    from service.capacity import disaggregation  # noqa: PLC0415

    spec = gpu(gpu_type)
    question = disaggregation.SizingRequest(
        shape=shape_of(model, config_json, parameters),
        work=Work(prompt, tokens, prompt_cv, output_cv, cached),
        qps=qps,
        slo=slo_of(ttft, tpot),
        prefill_gpu=spec,
        decode_gpu=spec if decode_gpu is None else gpu(decode_gpu),
        prefill_groups=disaggregation.groups_of("--prefill-tp", prefill_tp),
        decode_groups=disaggregation.groups_of("--decode-tp", decode_tp),
        buffer=buffer,
        link=link,
        setup=Setup(bits=bits, kv_bits=kv_bits, utilisation=utilisation, sequences=max_sequences),
    )
    result = disaggregation.answer_dict(question, context.language)
    context.show(result, lambda shown: "\n".join(shown["derivation"]))
    return None if result["kept"] else NO
