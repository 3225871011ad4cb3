"""``outrider capacity cost``: GPU types, group sizes and contracts by cost and latency."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.clock import SystemClock, rfc3339
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
from service.cli.core.common import NO, Context, duration_of, leaf


def add(app: typer.Typer) -> None:
    """Registers the command."""
    example = "outrider capacity cost --model Llama-3.1-8B --qps 40 --prompt 600 --tokens 250 --tpot 60ms"
    leaf(app, "cost", example=example)(cost)


def cost(
    context: Context,
    qps: Annotated[float, amount("--qps", "request/second", "Peak requests per second")],
    prompt: Annotated[float, amount("--prompt", "token/request", "Prompt length")],
    tokens: Annotated[float, amount("--tokens", "token/request", "Tokens generated per request")],
    model: ModelOption = None,
    config_json: ConfigOption = None,
    parameters: ParametersOption = None,
    mean_qps: Annotated[
        float | None, amount("--mean-qps", "request/second", "Mean requests per second over the day")
    ] = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    cached: Annotated[float, amount("--cached", "ratio", "Share of prompt tokens found in the prefix cache")] = 0.0,
    buffer: Annotated[float, amount("--buffer", "ratio", "Headroom above the peak")] = 0.25,
    bits: BitsOption = 16.0,
    kv_bits: KvBitsOption = 16.0,
    utilisation: UtilisationOption = 0.9,
    max_sequences: SequencesOption = 256,
    gpu_types: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="Consider only these GPU types, or a slice such as 'H100 1g.10gb'. Repeatable."),
    ] = None,
    regions: Annotated[
        list[str] | None, typer.Option("--region", help="Regions in which the data may be processed.")
    ] = None,
    within: Annotated[
        str | None, typer.Option("--within", help="Time within which the GPUs must be available, for example 1h.")
    ] = None,
    losses: Annotated[
        int, typer.Option("--losses", help="Replicas (for slices: whole GPUs) that may fail at the same time.", min=0)
    ] = 0,
    spot_ratio: Annotated[float, amount("--spot-ratio", "ratio", "Maximum share of capacity on spot GPUs")] = 1.0,
    whole_nodes: Annotated[bool, typer.Option("--whole-nodes", help="Buy whole nodes only.")] = False,
    tp: Annotated[
        list[int] | None,
        typer.Option("--tp", help="Tensor parallel size to try. Default: 1, 2, 4 and 8. Repeatable.", min=1),
    ] = None,
    pp: Annotated[
        list[int] | None,
        typer.Option("--pp", help="Pipeline parallel size to try. Default: 1, 2 and 4. Repeatable.", min=1),
    ] = None,
    slices: Annotated[
        bool,
        typer.Option("--slices/--no-slices", help="Include MIG slices of GPUs that support them, if the model fits."),
    ] = True,
    mps: Annotated[
        bool, typer.Option("--mps/--no-mps", help="Include MPS shares: 2 to 4 engines on one GPU, without isolation.")
    ] = False,
    measured: Annotated[
        bool, typer.Option("--measured/--no-measured", help="Use the stored load tests of the model.")
    ] = True,
) -> int | None:
    """Compare GPU types by cost and latency (exact Pareto front).

    Exits 1 if no GPU type can serve the load.
    """
    from planner.cost import cost_text  # noqa: PLC0415
    from planner.cost import optimizer as costs  # noqa: PLC0415 - numpy, not needed by --help
    from planner.cost.offers import select_offers  # noqa: PLC0415
    from planner.performance.gpu_catalog import gpu, gpus  # noqa: PLC0415
    from planner.performance.memory_fit import Setup  # noqa: PLC0415
    from planner.performance.queueing import Work  # noqa: PLC0415
    from service.capacity import stored_loadtests  # noqa: PLC0415

    settings, shape = context.settings(), shape_of(model, config_json, parameters)
    tests = stored_loadtests.of_model(settings, shape.name, SystemClock().now(), bits) if measured else []
    offers = [setting.offer() for setting in settings.gpus] or costs.default_offers(gpus())
    if gpu_types:
        offers = select_offers(offers, {gpu(name).name: gpu(name) for name in gpu_types})
    request = costs.CostRequest(
        shape=shape,
        work=Work(prompt, tokens, cached_ratio=cached),
        qps=qps,
        slo=slo_of(ttft, tpot),
        mean_qps=mean_qps,
        buffer=buffer,
        setup=Setup(bits=bits, kv_bits=kv_bits, utilisation=utilisation, sequences=max_sequences),
        regions=frozenset(regions or ()),
        within=None if within is None else duration_of("--within", within).total_seconds(),
        losses=losses,
        spot_ratio=spot_ratio,
        whole_nodes=whole_nodes,
        groups=tp or costs.GROUPS,
        pipelines=pp or costs.PIPELINES,
        tests=tests,
        language=context.language,
        cuts=costs.cuts_of(mig=slices, mps=mps),
    )
    answer = costs.compare(request, offers)
    lines = cost_text.lines(request, answer, context.language)
    result = {
        "model": request.shape.name,
        "need_requests_per_second": answer.need,
        "currency": answer.currency,
        "slo_kept": answer.slo_kept,
        "front": [costs.describe(request, answer, mix) for mix in answer.front],
        "refused": [{"offer": name, "reason": reason.value, "detail": text} for name, reason, text in answer.refused],
        "reason": None if answer.nothing is None else answer.nothing.reason.value,
        "measured": [
            {
                "service": test.service.name,
                "source": test.source,
                "gpu_type": test.gpu_type,
                "tp": test.tensor_parallel,
                "pp": test.pipeline_parallel,
                "measured_at": None if test.measured_at is None else rfc3339(test.measured_at),
            }
            for test in costs.used_tests(request, offers)
        ],
        "derivation": list(lines),
    }
    context.show(result, lambda shown: "\n".join(shown["derivation"]))
    return None if answer.front and answer.slo_kept else NO
