"""``outrider capacity fit``: memory fit of a model on a GPU type."""

from __future__ import annotations

from typing import Annotated

import typer

from outrider.text.i18n import translate
from service.cli.capacity.model_options import (
    BitsOption,
    ConfigOption,
    KvBitsOption,
    ModelOption,
    ParametersOption,
    SequencesOption,
    UtilisationOption,
    shape_of,
)
from service.cli.core.common import NO, Context, leaf


def add(app: typer.Typer) -> None:
    """Registers the command."""
    leaf(app, "fit", example="outrider capacity fit --model Llama-3.1-70B --gpu H100 --tp 4 --context 8192")(fit)


def fit(
    context: Context,
    gpu_type: Annotated[str, typer.Option("--gpu", help="GPU type, for example H100.")],
    model: ModelOption = None,
    config_json: ConfigOption = None,
    parameters: ParametersOption = None,
    tp: Annotated[int, typer.Option("--tp", help="Tensor parallel size.", min=1)] = 1,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline parallel size.", min=1)] = 1,
    bits: BitsOption = 16.0,
    kv_bits: KvBitsOption = 16.0,
    utilisation: UtilisationOption = 0.9,
    context_tokens: Annotated[
        int | None,
        typer.Option("--context", help="Context length per sequence in tokens, for example 8192.", min=1),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Concurrent sequences to fit.", min=1)] = 1,
    max_sequences: SequencesOption = 256,
) -> int | None:
    """Check whether a model fits a GPU type, and print the largest context x concurrency.

    Exits 1 if it does not fit.
    """
    from planner.performance.gpu_catalog import gpu  # noqa: PLC0415
    from planner.performance.memory_fit import GIBIBYTE, NoFit, Setup, processes, slices  # noqa: PLC0415
    from planner.performance.memory_fit import fit as fit_model  # noqa: PLC0415

    shape, spec = shape_of(model, config_json, parameters), gpu(gpu_type)
    setup = Setup(tp, pp, bits, kv_bits, utilisation, sequences=max_sequences)
    memory = fit_model(shape, spec, setup, context=context_tokens, concurrency=concurrency)
    head = {"model": shape.name, "gpu_type": spec.name, "tp": tp, "pp": pp, "bits": bits}
    if isinstance(memory, NoFit):
        message = memory.text(context.language)
        largest = {"context": memory.context or None, "concurrency": memory.concurrency or None}
        result = {"fits": False, **head, "reason": memory.reason.value, "largest": largest}
        context.show(result | {"remedies": list(memory.remedies), "why": message}, lambda _: message)
        return NO
    tokens = context_tokens or memory.context
    cuts = slices(shape, spec, setup, context=tokens, concurrency=concurrency)
    count, share = processes(shape, spec, setup, context=tokens, concurrency=concurrency)
    numbers = {
        "parameters": f"{shape.parameters / 1e9:.4g}",
        "bits": f"{bits:g}",
        "tp": tp,
        "pp": pp,
        "weights": f"{memory.weights_bytes / GIBIBYTE:.1f}",
        "budget": setup.token_budget,
        "overhead": f"{memory.overhead_bytes / GIBIBYTE:.1f}",
        "memory": f"{spec.memory_bytes / GIBIBYTE:.1f}",
        "utilisation": f"{utilisation:g}",
        "room": f"{memory.kv_bytes / GIBIBYTE:.1f}",
        "per_token": f"{memory.kv_bytes_per_token / 1024:.1f}",
        "block": setup.block,
        "tokens": memory.kv_tokens,
        "concurrency": memory.concurrency,
        "context": memory.context,
        "longest": memory.longest,
    }
    lines = [
        translate(f"capacity.fit_{step}", context.language, **numbers)
        for step in ("weights", "overhead", "room", "kv", "answer")
    ]
    if cuts:
        lines.append(translate("capacity.fit_slices", context.language, slices=", ".join(cut.name for cut in cuts)))
    if count > 1:
        lines.append(translate("capacity.fit_processes", context.language, count=count, utilisation=f"{share:.2f}"))
    result = {
        "fits": True,
        **head,
        "weights_bytes": memory.weights_bytes,
        "overhead_bytes": memory.overhead_bytes,
        "kv_bytes_per_token": memory.kv_bytes_per_token,
        "kv_tokens": memory.kv_tokens,
        "largest": {"context": memory.context, "concurrency": memory.concurrency},
        "longest_context": memory.longest,
        "mig_slices": [cut.name for cut in cuts],
        "mps_replicas_per_gpu": max(count, 1) if setup.gpus == 1 else None,
        "source": spec.specs_source,
        "derivation": lines,
    }
    context.show(result, lambda shown: "\n".join(shown["derivation"]))
    return None
