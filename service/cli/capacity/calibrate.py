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
    tokens: Annotated[float | None, amount("--tokens", "token/request", "Tokens generated per request")] = None,
    prompt: Annotated[float, amount("--prompt", "token/request", "Prompt length in the load test")] = 256.0,
    span: Annotated[
        str | None, typer.Option("--span", help="Span of the store to read. Default: 24h, or 8d if these have no load.")
    ] = None,
    steps: Annotated[
        str, typer.Option("--steps", help="Concurrency of each step of the load test, separated by commas.")
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
    from service.cli.capacity import stored_calibrations  # noqa: PLC0415

    if show:
        space, name = stored_calibrations.named(service, namespace)
        return stored_calibrations.show(context, name, space)
    space, service = stored_calibrations.named(service, namespace)
    validity = stored_calibrations.valid_for(duration_of("--valid", valid))
    if endpoint is None and import_file is None:
        return _calibrate_store(context, service, space, duration_of("--span", span) if span else None)
    slo = slo_of(ttft, tpot)
    if tokens is not None and tokens <= 0:
        raise UsageError(f"--tokens must be above 0, not {tokens:g}", hint="omit it for 128 or the value in the file")
    hardware = {"gpu_type": gpu_type, "tensor_parallel": tp, "pipeline_parallel": pp}
    options = {"model": model or "", "engine_version": engine_version, "valid": validity}
    if import_file is not None:
        from service.capacity import pending_loadtests, sizing  # noqa: PLC0415

        pending = pending_loadtests.of_file(import_file)
        if pending is not None:
            return _import_pending(context, pending, (space, service), slo, hardware | options, keep=keep)
        source, saturation, points = sizing.of_file(import_file, slo, tokens=tokens)
        subject = stored_calibrations.entity_of(context, service or import_file.stem, space, stored=keep)
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
        subject = stored_calibrations.entity_of(
            context, name, space, stored=keep
        )  # fails before a test that takes minutes
        source, (saturation, points) = "locust", loadtest.run(plan, _print_step if context.progress else None)
    options["source"] = SOURCES.get(source, source)
    return _show_test(context, source, subject, saturation, points, hardware | options, slo, keep=keep)


def _import_pending(
    context: Context,
    pending: Any,
    named: tuple[str | None, str | None],
    slo: Any,
    options: Mapping[str, Any],
    *,
    keep: bool,
) -> int | None:
    """Stores a load test that could not be stored before; options override what the file states."""
    from planner.performance.queueing import Slo  # noqa: PLC0415
    from planner.performance.saturation_point import saturation_point  # noqa: PLC0415
    from service.cli.capacity import stored_calibrations  # noqa: PLC0415

    space, service = named
    defaults = {"gpu_type": "unknown", "tensor_parallel": 1, "pipeline_parallel": 1, "model": "", "engine_version": ""}
    fields = {
        name: getattr(pending, name) if options[name] == value else options[name] for name, value in defaults.items()
    }
    objectives = pending.slo if slo == Slo() else slo
    subject = stored_calibrations.entity_of(
        context, service or pending.service, space or pending.namespace, stored=keep
    )
    fields |= {"source": pending.source, "at": pending.measured_at, "valid": pending.valid}
    points = list(pending.points)
    return _show_test(
        context, pending.source, subject, saturation_point(points, objectives), points, fields, objectives, keep=keep
    )


def _print_step(point: Any) -> None:
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
            calibrations: list[Any] = []
        else:
            at = newest[0].at if newest else None
            if at is None:
                raise UsageError(f"no service is named {service!r}", hint="no metrics have been collected yet")
            topology = state.topology()
            calibrations = sizing.of_store(
                settings, metrics, topology, at, service=service, namespace=namespace, span=span
            )
    shown = [
        sizing.refused(item) | {"why": item.text(context.language)}
        if isinstance(item, NoCalibration)
        else sizing.as_dict(item)
        for item in sorted(calibrations, key=lambda item: isinstance(item, NoCalibration))
    ]
    # the first calibration as one object; all of them under calibrations
    first = shown[0] if shown else {"service": service, "samples": 0, "reason": "nothing_collected"}
    empty = dict.fromkeys(("gpu_type", "tokens_per_request", "batch", "tokens_per_second_per_sequence"))
    context.show({**empty, **first, "calibrations": shown}, lambda _: _calibrations(context, shown))
    return None if any(isinstance(item, Calibration) for item in calibrations) else NO


def _calibrations(context: Context, shown: list[dict[str, Any]]) -> str:
    lines = []
    for row in shown:
        if row["reason"] is not None:
            lines.append(translate("capacity.not_calibrated", context.language, service=row["service"], why=row["why"]))
            continue
        lines.append(_calibrated(context, row))
        if row["intervals"]:
            spans = {name: f"{span['low']:.4g}-{span['high']:.4g}" for name, span in row["intervals"].items()}
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


def _calibrated(context: Context, row: Mapping[str, Any]) -> str:
    return translate(
        "capacity.calibrated",
        context.language,
        service=row["service"],
        gpu_type=row["gpu_type"],
        tokens=f"{row['tokens_per_request']:.4g}",
        batch=f"{row['batch']:.4g}",
        speed=f"{row['tokens_per_second_per_sequence']:.4g}",
        samples=row["samples"],
        origin=row["origin"],
    )


def _show_test(
    context: Context,
    source: str,
    subject: EntityRef,
    saturation: Any,
    points: list[Any],
    fields: dict[str, Any],
    slo: Any,
    *,
    keep: bool,
) -> int | None:
    from outrider.clock import SystemClock  # noqa: PLC0415
    from planner.performance.calibrate import from_saturation_point  # noqa: PLC0415
    from planner.performance.saturation_point import NoSaturationPoint  # noqa: PLC0415
    from service.capacity import sizing  # noqa: PLC0415
    from service.cli.capacity import stored_calibrations  # noqa: PLC0415

    steps = [sizing.point_dict(point) for point in points]
    figures = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
    if isinstance(saturation, NoSaturationPoint):
        reason = translate(f"capacity.knee_{saturation.reason.value}", context.language)
        name = subject.name
        empty = {"service": name, "gpu_type": fields["gpu_type"], **dict.fromkeys(figures), "samples": 0}
        result = empty | {"reason": saturation.reason.value, "source": source, "steps": steps, "why": reason}
        context.show(result, lambda _: translate("capacity.not_calibrated", context.language, service=name, why=reason))
        return NO
    calibration = from_saturation_point(saturation, subject, **{"at": SystemClock().now(), **fields})
    if keep and source == "locust":
        stored_calibrations.keep_test(context, calibration, points, slo)
    elif keep:  # the imported file is not copied
        stored_calibrations.keep(context, calibration)
    note = stored_calibrations.note_of(context, fields["gpu_type"])
    document = sizing.as_dict(calibration) | {
        "kept": keep,
        "valid_until": rfc3339(calibration.valid_until) if keep and calibration.valid_until else None,
        "source": source,
        "knee": saturation.reason.value,
        "max_sequences": saturation.sequences,
        "tokens_per_second": saturation.point.tokens_per_second,
        "peak_tokens_per_second": saturation.peak_tokens_per_second,
        "steps": steps,
        "note": note,
    }
    limit = translate(
        "capacity.calibrated_limit",
        context.language,
        sequences=saturation.sequences,
        reason=translate(f"capacity.knee_{saturation.reason.value}", context.language),
        peak=f"{saturation.peak_tokens_per_second:.4g}",
    )
    below = "".join(f"\n  {line}" for line in (limit, note) if line)
    context.show(document, lambda shown: f"{_calibrations(context, [shown])}{below}")
    return None
