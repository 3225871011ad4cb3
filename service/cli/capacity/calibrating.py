"""``outrider capacity calibrate``: capacity of one replica, from live engines, a load test or a result file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.model import Calibration, EntityRef
from outrider.text.i18n import translate
from service.cli.capacity.model_options import TpotOption, TtftOption, slo_of
from service.cli.core.amounts import amount
from service.cli.core.common import NO, Context, duration_of, leaf

SOURCES = {"locust": "load_test"}
"""Names of sources in the store, where they differ."""


def add(app: typer.Typer) -> None:
    """Registers the command."""
    leaf(app, "calibrate", example="outrider capacity calibrate --from-store --service chat -o json")(calibrate)


def calibrate(
    context: Context,
    from_store: Annotated[bool, typer.Option("--from-store", help="Calibrate from live engines (default).")] = False,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", help="URL of a server to load-test up to its saturation point.")
    ] = None,
    import_file: Annotated[
        Path | None, typer.Option("--import", help="Result file of vllm bench serve, LLMPerf or K6.")
    ] = None,
    service: Annotated[str | None, typer.Option("--service", help="Service, as name or namespace/name.")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="Namespace of the service.")] = None,
    gpu_type: Annotated[str, typer.Option("--gpu-type", help="GPU type of the server, for example H100.")] = "unknown",
    tp: Annotated[int, typer.Option("--tp", help="Tensor parallel size.", min=1)] = 1,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline parallel size.", min=1)] = 1,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    tokens: Annotated[float | None, amount("--tokens", "token/request", "tokens generated per request")] = None,
    prompt: Annotated[float, amount("--prompt", "token/request", "prompt length in the load test")] = 256.0,
    span: Annotated[
        str | None, typer.Option("--span", help="Span of the store to read. Default: 24h, or 8d if these have no load.")
    ] = None,
    steps: Annotated[
        str, typer.Option("--steps", help="Highest concurrency of the load test.")
    ] = "1,2,4,8,16,32,64,128",
    step_time: Annotated[str, typer.Option("--step-time", help="Duration of each step of the load test.")] = "30s",
    model: Annotated[str | None, typer.Option("--model", help="Model to request from the server.")] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="Bearer token of the server.")] = None,
    engine_version: Annotated[str, typer.Option("--engine-version", help="Engine version of the server.")] = "",
    valid: Annotated[str, typer.Option("--valid", help="Validity of a load test or an import. Default: 30d.")] = "30d",
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Store the load test or the import for the plan.")
    ] = True,
    show: Annotated[bool, typer.Option("--show", help="List the stored calibrations.")] = False,
) -> int | None:
    """Measure tokens per request, batch size and tokens per second of one sequence.

    Exits 1 if there is not enough data.
    """
    chosen = [from_store, endpoint is not None, import_file is not None, show]
    if sum(chosen) > 1:
        raise UsageError(
            "--from-store, --endpoint, --import and --show exclude each other", hint="give only one of them"
        )
    from service.cli.capacity import calibrations  # noqa: PLC0415

    if show:
        space, name = calibrations.named(service, namespace)
        return calibrations.show(context, name, space)
    space, service = calibrations.named(service, namespace)
    lasts = calibrations.valid_for(duration_of("--valid", valid))
    if endpoint is None and import_file is None:
        return _calibrate_store(context, service, space, duration_of("--span", span) if span else None)
    slo = slo_of(ttft, tpot)
    if tokens is not None and tokens <= 0:
        raise UsageError(f"--tokens must be above 0, not {tokens:g}", hint="omit it for 128 or the value in the file")
    where = {"gpu_type": gpu_type, "tensor_parallel": tp, "pipeline_parallel": pp}
    of = {"model": model or "", "engine_version": engine_version, "valid": lasts}
    if import_file is not None:
        from service.capacity import pending_loadtests, sizing  # noqa: PLC0415

        kept = pending_loadtests.of_file(import_file)
        if kept is not None:
            return _import_kept(context, kept, (space, service), slo, where | of, keep=keep)
        source, found, points = sizing.of_file(import_file, slo, tokens=tokens)
        subject = calibrations.entity_of(context, service or import_file.stem, space, stored=keep)
    else:
        from service.capacity import loadtest  # noqa: PLC0415

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
        name = service or model or loadtest.host_of(endpoint)
        subject = calibrations.entity_of(context, name, space, stored=keep)  # before a test that takes minutes
        source, (found, points) = "locust", loadtest.run(plan, _tell if context.progress else None)
    of["source"] = SOURCES.get(source, source)
    return _show_test(context, source, subject, found, points, where | of, slo, keep=keep)


def _import_kept(
    context: Context,
    kept: Any,
    named: tuple[str | None, str | None],
    slo: Any,
    given: Mapping[str, Any],
    *,
    keep: bool,
) -> int | None:
    """Stores a load test that could not be stored before; options override what the file states."""
    from planner.performance.queueing import Slo  # noqa: PLC0415
    from planner.performance.saturation_point import knee  # noqa: PLC0415
    from service.cli.capacity import calibrations  # noqa: PLC0415

    space, service = named
    usual = {"gpu_type": "unknown", "tensor_parallel": 1, "pipeline_parallel": 1, "model": "", "engine_version": ""}
    of = {name: getattr(kept, name) if given[name] == value else given[name] for name, value in usual.items()}
    promise = kept.slo if slo == Slo() else slo
    subject = calibrations.entity_of(context, service or kept.service, space or kept.namespace, stored=keep)
    of |= {"source": kept.source, "at": kept.measured_at, "valid": kept.valid}
    points = list(kept.points)
    return _show_test(context, kept.source, subject, knee(points, promise), points, of, promise, keep=keep)


def _tell(point: Any) -> None:
    """Prints one step of a load test for interactive users."""
    typer.echo(f"  {point.concurrency:g} at once: {point.tokens_per_second:.0f} tokens/s", err=True)


def _calibrate_store(
    context: Context, service: str | None, namespace: str | None, span: timedelta | None
) -> int | None:
    from planner.performance.calibrate import NoCalibration  # noqa: PLC0415
    from service.capacity import sizing  # noqa: PLC0415
    from service.wiring import stores as wiring_stores  # noqa: PLC0415

    settings = context.settings()
    with wiring_stores.stores(settings) as (state, metrics):
        newest = state.cycles(limit=1)
        if not newest and service is None:
            found: list[Any] = []
        else:
            at = newest[0].at if newest else None
            if at is None:
                raise UsageError(f"no service is named {service!r}", hint="no metrics have been collected yet")
            topology = state.topology()
            found = sizing.of_store(settings, metrics, topology, at, service=service, namespace=namespace, span=span)
    shown = [
        sizing.refused(one) | {"why": one.text(context.language)}
        if isinstance(one, NoCalibration)
        else sizing.as_dict(one)
        for one in sorted(found, key=lambda one: isinstance(one, NoCalibration))
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
    return "\n".join(lines) or translate("capacity.calibrated_none", context.language)


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
    context: Context,
    source: str,
    subject: EntityRef,
    found: Any,
    points: list[Any],
    where: dict[str, Any],
    slo: Any,
    *,
    keep: bool,
) -> int | None:
    from outrider.clock import SystemClock  # noqa: PLC0415
    from planner.performance.calibrate import from_knee  # noqa: PLC0415
    from planner.performance.saturation_point import NoKnee  # noqa: PLC0415
    from service.capacity import sizing  # noqa: PLC0415
    from service.cli.capacity import calibrations  # noqa: PLC0415

    steps = [sizing.point_dict(point) for point in points]
    figures = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
    if isinstance(found, NoKnee):
        why = translate(f"capacity.knee_{found.reason.value}", context.language)
        name = subject.name
        nothing = {"service": name, "gpu_type": where["gpu_type"], **dict.fromkeys(figures), "samples": 0}
        result = nothing | {"reason": found.reason.value, "source": source, "steps": steps, "why": why}
        context.show(result, lambda _: translate("capacity.not_calibrated", context.language, service=name, why=why))
        return NO
    made = from_knee(found, subject, **{"at": SystemClock().now(), **where})
    if keep and source == "locust":
        calibrations.keep_test(context, made, points, slo)
    elif keep:  # its file stays where it is
        calibrations.keep(context, made)
    note = calibrations.note_of(context, where["gpu_type"])
    said = sizing.as_dict(made) | {
        "kept": keep,
        "valid_until": rfc3339(made.valid_until) if keep and made.valid_until else None,
        "source": source,
        "knee": found.reason.value,
        "max_sequences": found.sequences,
        "tokens_per_second": found.point.tokens_per_second,
        "peak_tokens_per_second": found.peak_tokens_per_second,
        "steps": steps,
        "note": note,
    }
    limit = translate(
        "capacity.calibrated_limit",
        context.language,
        sequences=found.sequences,
        reason=translate(f"capacity.knee_{found.reason.value}", context.language),
        peak=f"{found.peak_tokens_per_second:.4g}",
    )
    below = "".join(f"\n  {line}" for line in (limit, note) if line)
    context.show(said, lambda shown: f"{_calibrations(context, [shown])}{below}")
    return None
