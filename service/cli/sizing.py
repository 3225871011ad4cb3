"""``outrider capacity calibrate|fit|cost``: what one replica does, whether a model fits, and what serving it costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.i18n import translate
from outrider.model import Calibration
from service.cli.amounts import amount
from service.cli.common import NO, Context, duration_of, leaf

SOURCES = {"locust": "load_test"}
"""Names of sources in the store, where they differ."""


class Purchase(StrEnum):
    """A contract."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"
    RESERVED = "reserved"
    OWNED = "owned"


ModelOption = Annotated[str | None, typer.Option("--model", help="a known model, such as Llama-3.1-70B")]
ConfigOption = Annotated[Path | None, typer.Option("--config-json", help="the model's own config.json")]
ParametersOption = Annotated[
    float | None, typer.Option("--parameters", help="billions, where config.json does not tell", min=0.0)
]
BitsOption = Annotated[float, typer.Option("--bits", help="of a weight: 16, 8 or 4")]
KvBitsOption = Annotated[float, typer.Option("--kv-bits", help="of a value in the KV cache")]
UtilisationOption = Annotated[float, amount("--utilisation", "ratio", "share of GPU memory the engine takes")]
SequencesOption = Annotated[int, typer.Option("--max-sequences", help="the engine's own limit", min=1)]
TtftOption = Annotated[float | None, amount("--ttft", "second", "promised time to first token")]
TpotOption = Annotated[float | None, amount("--tpot", "second", "promised time per further token")]


def add(app: typer.Typer) -> None:
    """Put the commands into ``outrider capacity``."""
    leaf(app, "calibrate", example="outrider capacity calibrate --from-store --service chat -o json")(calibrate)
    leaf(app, "fit", example="outrider capacity fit --model Llama-3.1-70B --gpu H100 --tp 4 --context 8192")(fit)
    leaf(
        app,
        "cost",
        example="outrider capacity cost --model Llama-3.1-8B --qps 40 --prompt 600 --tokens 250 --tpot 60ms",
    )(cost)


def slo_of(ttft: float | None, tpot: float | None) -> Any:
    """The promise of two options; what is not given is not promised."""
    from planner.queueing import Slo  # noqa: PLC0415 - numpy, which --help does without

    for option, value in (("--ttft", ttft), ("--tpot", tpot)):
        if value is not None and value <= 0:
            raise UsageError(f"{option} must be above 0, not {value:g}", hint="leave it out where nothing is promised")
    return Slo(inf if ttft is None else ttft, inf if tpot is None else tpot)


def shape_of(model: str | None, config: Path | None, parameters: float | None) -> Any:
    """The model of the options. Raises UsageError when none is given or it cannot be read."""
    from planner import shapes  # noqa: PLC0415

    if config is None:
        if model is None:
            raise UsageError("which model?", hint=f"give --config-json, or --model: {', '.join(shapes.known())}")
        return shapes.model(model)
    try:
        document = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"{config} cannot be read: {error}", hint="give the model's config.json") from error
    if not isinstance(document, dict):
        raise UsageError(f"{config} holds no object", hint="give the model's config.json")
    billions = None if parameters is None else parameters * 1e9
    return shapes.of_config(document, name=model or config.parent.name, parameters=billions)


def calibrate(
    context: Context,
    from_store: Annotated[bool, typer.Option("--from-store", help="from live engines (default)")] = False,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="URL of a server to load until its knee")] = None,
    import_file: Annotated[
        Path | None, typer.Option("--import", help="result of vllm bench serve, LLMPerf or K6")
    ] = None,
    service: Annotated[str | None, typer.Option("--service", help="only this service")] = None,
    gpu_type: Annotated[str, typer.Option("--gpu-type", help="what the server runs on")] = "unknown",
    tp: Annotated[int, typer.Option("--tp", help="tensor parallel", min=1)] = 1,
    pp: Annotated[int, typer.Option("--pp", help="pipeline parallel", min=1)] = 1,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    tokens: Annotated[float | None, amount("--tokens", "token/request", "generated per request")] = None,
    prompt: Annotated[float, amount("--prompt", "token/request", "of the load test's prompts")] = 256.0,
    span: Annotated[str, typer.Option("--span", help="how far back the store is read")] = "24h",
    steps: Annotated[str, typer.Option("--steps", help="concurrency of the load test")] = "1,2,4,8,16,32,64,128",
    step_time: Annotated[str, typer.Option("--step-time", help="of each step of the load test")] = "30s",
    model: Annotated[str | None, typer.Option("--model", help="that the server is asked for")] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="bearer token of the server")] = None,
    engine_version: Annotated[str, typer.Option("--engine-version", help="of the server")] = "",
    valid: Annotated[str, typer.Option("--valid", help="how long a load test or an import counts")] = "30d",
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="store a load test or an import for the plan")] = True,
    show: Annotated[bool, typer.Option("--show", help="list what is stored")] = False,
) -> int | None:
    """Measure tokens per request, batch and tokens per second of a sequence; exit 1 when nothing can be said."""
    chosen = [from_store, endpoint is not None, import_file is not None, show]
    if sum(chosen) > 1:
        raise UsageError("--from-store, --endpoint, --import and --show exclude each other", hint="give one of them")
    from service.cli import calibrations  # noqa: PLC0415

    if show:
        return calibrations.show(context, service)
    lasts = calibrations.valid_for(duration_of("--valid", valid))
    if endpoint is None and import_file is None:
        return _calibrate_store(context, service, duration_of("--span", span))
    slo = slo_of(ttft, tpot)
    if import_file is not None:
        from service import sizing  # noqa: PLC0415

        source, found, points = sizing.of_file(import_file, slo, tokens=tokens)
        name = service or import_file.stem
    else:
        from service import loadtest  # noqa: PLC0415

        assert endpoint is not None
        plan = loadtest.LoadPlan(
            url=endpoint,
            model=model,
            steps=loadtest.steps_of(steps),
            step_seconds=duration_of("--step-time", step_time).total_seconds(),
            prompt_tokens=int(prompt),
            output_tokens=int(tokens or 128),
            slo=slo,
            token=None if token_file is None else loadtest.token_of(token_file),
        )
        source, (found, points) = "locust", loadtest.run(plan, _tell if context.progress else None)
        name = service or model or loadtest.host_of(endpoint)
    where = {"gpu_type": gpu_type, "tensor_parallel": tp, "pipeline_parallel": pp}
    of = {"model": model or "", "engine_version": engine_version, "valid": lasts, "source": SOURCES.get(source, source)}
    return _show_test(context, source, name, found, points, where | of, keep=keep)


def _tell(point: Any) -> None:
    """A step of a load test, for people who wait."""
    typer.echo(f"  {point.concurrency:g} at once: {point.tokens_per_second:.0f} tokens/s", err=True)


def _calibrate_store(context: Context, service: str | None, span: timedelta) -> int | None:
    from planner.calibrate import NotCalibrated  # noqa: PLC0415
    from service import sizing, wiring  # noqa: PLC0415

    settings = context.settings()
    with wiring.stores(settings) as (state, metrics):
        newest = state.cycles(limit=1)
        if not newest and service is None:
            found: list[Any] = []
        else:
            at = newest[0].at if newest else None
            if at is None:
                raise UsageError(f"no service is named {service!r}", hint="nothing has been collected yet")
            found = sizing.of_store(settings, metrics, state.topology(), at, service=service, span=span)
    shown = [
        sizing.refused(one) | {"why": one.text(context.language)}
        if isinstance(one, NotCalibrated)
        else sizing.as_dict(one)
        for one in sorted(found, key=lambda one: isinstance(one, NotCalibrated))
    ]
    # one object, as agreed; all of them where there are more
    first = shown[0] if shown else {"service": service, "samples": 0, "reason": "nothing_collected"}
    empty = dict.fromkeys(("gpu_type", "tokens_per_request", "batch", "tokens_per_second_per_sequence"))
    context.show({**empty, **first, "calibrations": shown}, lambda _: _calibrations(context, shown))
    return None if any(isinstance(one, Calibration) for one in found) else NO


def _calibrations(context: Context, shown: list[dict[str, Any]]) -> str:
    lines = []
    for one in shown:
        if one["reason"] is not None:
            lines.append(translate("capacity.not_calibrated", context.language, service=one["service"], why=one["why"]))
            continue
        lines.append(_calibrated(context, one))
        if one["intervals"]:
            spans = {name: f"{span['low']:.4g}-{span['high']:.4g}" for name, span in one["intervals"].items()}
            lines.append(
                "  "
                + translate(
                    "capacity.calibrated_interval",
                    context.language,
                    tokens=spans.get("tokens_per_request", "-"),
                    batch=spans.get("batch", "-"),
                    speed=spans.get("tokens_per_second_per_sequence", "-"),
                )
            )
    return "\n".join(lines) or "no service is known yet"


def _calibrated(context: Context, one: Mapping[str, Any]) -> str:
    return translate(
        "capacity.calibrated",
        context.language,
        service=one["service"],
        gpu_type=one["gpu_type"],
        tokens=f"{one['tokens_per_request']:.4g}",
        batch=f"{one['batch']:.4g}",
        speed=f"{one['tokens_per_second_per_sequence']:.4g}",
        samples=one["samples"],
        origin=one["origin"],
    )


def _show_test(
    context: Context, source: str, name: str, found: Any, points: list[Any], where: dict[str, Any], *, keep: bool
) -> int | None:
    from outrider.clock import SystemClock  # noqa: PLC0415
    from planner.calibrate import from_knee  # noqa: PLC0415
    from planner.knee import NoKnee  # noqa: PLC0415
    from service import sizing  # noqa: PLC0415
    from service.cli import calibrations  # noqa: PLC0415

    steps = [sizing.point_dict(point) for point in points]
    figures = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
    if isinstance(found, NoKnee):
        why = translate(f"capacity.knee_{found.reason.value}", context.language)
        nothing = {"service": name, "gpu_type": where["gpu_type"], **dict.fromkeys(figures), "samples": 0}
        result = nothing | {"reason": found.reason.value, "source": source, "steps": steps, "why": why}
        context.show(result, lambda _: translate("capacity.not_calibrated", context.language, service=name, why=why))
        return NO
    made = from_knee(found, calibrations.entity_of(context, name), at=SystemClock().now(), **where)
    if keep:
        calibrations.keep(context, made)
    said = sizing.as_dict(made) | {
        "kept": keep,
        "valid_until": rfc3339(made.valid_until) if keep and made.valid_until else None,
        "source": source,
        "knee": found.reason.value,
        "max_sequences": found.sequences,
        "tokens_per_second": found.point.tokens_per_second,
        "peak_tokens_per_second": found.peak_tokens_per_second,
        "steps": steps,
    }
    limit = translate(
        "capacity.calibrated_limit",
        context.language,
        sequences=found.sequences,
        reason=translate(f"capacity.knee_{found.reason.value}", context.language),
        peak=f"{found.peak_tokens_per_second:.4g}",
    )
    context.show(said, lambda shown: f"{_calibrations(context, [shown])}\n  {limit}")
    return None


def fit(
    context: Context,
    gpu_type: Annotated[str, typer.Option("--gpu", help="GPU type, such as H100")],
    model: ModelOption = None,
    config_json: ConfigOption = None,
    parameters: ParametersOption = None,
    tp: Annotated[int, typer.Option("--tp", help="tensor parallel", min=1)] = 1,
    pp: Annotated[int, typer.Option("--pp", help="pipeline parallel", min=1)] = 1,
    bits: BitsOption = 16.0,
    kv_bits: KvBitsOption = 16.0,
    utilisation: UtilisationOption = 0.9,
    context_tokens: Annotated[int | None, typer.Option("--context", help="tokens of a sequence", min=1)] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", help="sequences at once", min=1)] = 1,
    max_sequences: SequencesOption = 256,
) -> int | None:
    """Say whether a model fits a GPU type, and the largest context x concurrency; exit 1 when it does not."""
    from planner.fit import GIBIBYTE, NoFit, Setup, processes, slices  # noqa: PLC0415
    from planner.fit import fit as fit_model  # noqa: PLC0415
    from planner.gpus import gpu  # noqa: PLC0415

    shape, spec = shape_of(model, config_json, parameters), gpu(gpu_type)
    setup = Setup(tp, pp, bits, kv_bits, utilisation, sequences=max_sequences)
    found = fit_model(shape, spec, setup, context=context_tokens, concurrency=concurrency)
    head = {"model": shape.name, "gpu_type": spec.name, "tp": tp, "pp": pp, "bits": bits}
    if isinstance(found, NoFit):
        said = found.text(context.language)
        largest = {"context": found.context or None, "concurrency": found.concurrency or None}
        result = {"fits": False, **head, "reason": found.reason.value, "largest": largest}
        context.show(result | {"remedies": list(found.remedies), "why": said}, lambda _: said)
        return NO
    usual = context_tokens or found.context
    cuts = slices(shape, spec, setup, context=usual, concurrency=concurrency)
    count, share = processes(shape, spec, setup, context=usual, concurrency=concurrency)
    numbers = {
        "parameters": f"{shape.parameters / 1e9:.4g}",
        "bits": f"{bits:g}",
        "tp": tp,
        "pp": pp,
        "weights": f"{found.weights_bytes / GIBIBYTE:.1f}",
        "budget": setup.token_budget,
        "overhead": f"{found.overhead_bytes / GIBIBYTE:.1f}",
        "memory": f"{spec.memory_bytes / GIBIBYTE:.1f}",
        "utilisation": f"{utilisation:g}",
        "room": f"{found.kv_bytes / GIBIBYTE:.1f}",
        "per_token": f"{found.kv_bytes_per_token / 1024:.1f}",
        "block": setup.block,
        "tokens": found.kv_tokens,
        "concurrency": found.concurrency,
        "context": found.context,
        "longest": found.longest,
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
        "weights_bytes": found.weights_bytes,
        "overhead_bytes": found.overhead_bytes,
        "kv_bytes_per_token": found.kv_bytes_per_token,
        "kv_tokens": found.kv_tokens,
        "largest": {"context": found.context, "concurrency": found.concurrency},
        "longest_context": found.longest,
        "mig_slices": [cut.name for cut in cuts],
        "mps_replicas_per_gpu": max(count, 1) if setup.gpus == 1 else None,
        "source": spec.specs_source,
        "derivation": lines,
    }
    context.show(result, lambda shown: "\n".join(shown["derivation"]))
    return None


def cost(
    context: Context,
    qps: Annotated[float, amount("--qps", "request/second", "requests per second at the peak")],
    prompt: Annotated[float, amount("--prompt", "token/request", "tokens of a prompt")],
    tokens: Annotated[float, amount("--tokens", "token/request", "tokens generated per request")],
    model: ModelOption = None,
    config_json: ConfigOption = None,
    parameters: ParametersOption = None,
    mean_qps: Annotated[float | None, amount("--mean-qps", "request/second", "over the day")] = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    cached: Annotated[float, amount("--cached", "ratio", "of prompts found in the prefix cache")] = 0.0,
    buffer: Annotated[float, amount("--buffer", "ratio", "headroom above the peak")] = 0.25,
    bits: BitsOption = 16.0,
    kv_bits: KvBitsOption = 16.0,
    utilisation: UtilisationOption = 0.9,
    max_sequences: SequencesOption = 256,
    gpu_types: Annotated[list[str] | None, typer.Option("--gpu", help="only these types; may be repeated")] = None,
    regions: Annotated[list[str] | None, typer.Option("--region", help="where the data may go")] = None,
    within: Annotated[str | None, typer.Option("--within", help="the GPUs must be there, such as 1h")] = None,
    losses: Annotated[int, typer.Option("--losses", help="replicas that may be lost at any time", min=0)] = 0,
    spot_ratio: Annotated[float, amount("--spot-ratio", "ratio", "most capacity on spot")] = 1.0,
    whole_nodes: Annotated[bool, typer.Option("--whole-nodes", help="GPUs come as whole nodes")] = False,
) -> int | None:
    """Compare GPU types: the front of cost against latency, exact; exit 1 when nothing serves the load."""
    from planner import cost as costs  # noqa: PLC0415
    from planner.fit import Setup  # noqa: PLC0415
    from planner.gpus import gpu, gpus  # noqa: PLC0415
    from planner.queueing import Work  # noqa: PLC0415

    offers = [setting.offer() for setting in context.settings().gpus] or costs.default_offers(gpus())
    if gpu_types:
        wanted = {gpu(name).name for name in gpu_types}
        offers = [offer for offer in offers if offer.gpu.name in wanted] or [costs.Offer(gpu(n)) for n in gpu_types]
    request = costs.Request(
        shape=shape_of(model, config_json, parameters),
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
    )
    answer = costs.compare(request, offers)
    lines = costs.lines(request, answer, context.language)
    result = {
        "model": request.shape.name,
        "need_requests_per_second": answer.need,
        "slo_kept": answer.slo_kept,
        "front": [costs.describe(request, answer, mix) for mix in answer.front],
        "refused": [{"offer": name, "reason": why.value, "detail": text} for name, why, text in answer.refused],
        "reason": None if answer.nothing is None else answer.nothing.reason.value,
        "derivation": list(lines),
    }
    context.show(result, lambda shown: "\n".join(shown["derivation"]))
    return None if answer.front and answer.slo_kept else NO
