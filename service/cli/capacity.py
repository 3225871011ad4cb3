"""``outrider capacity``: how many GPUs, when, and the arithmetic behind it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider import jsonable
from outrider.errors import UsageError
from outrider.i18n import Language, translate
from outrider.model import NoRecommendation, Recommendation
from outrider.summaries import word
from outrider.units import parse_duration
from planner import capacity, reasoning
from planner.backtest import Trace, parse_trace
from planner.replay import figure, score
from service import wiring
from service.cli import buying, emitted, sizing, tables
from service.cli.amounts import amount
from service.cli.common import ON_A_TERMINAL, Context, instant_of, leaf
from service.cli.emitted import KINDS
from service.cli.progress import bars

app = typer.Typer(help="How many GPUs, and when.", no_args_is_help=ON_A_TERMINAL)
sizing.add(app)
buying.add(app)


class BatchPer(StrEnum):
    """What the batch is counted per."""

    REPLICA = "replica"
    GPU = "gpu"


@leaf(
    app, "formula", example="outrider capacity formula --qps 40 --tokens 300 --batch 32 --tokens-per-second 25 --tp 4"
)
def formula(
    context: Context,
    qps: Annotated[float, amount("--qps", "request/second", "requests per second at the peak")],
    batch: Annotated[float, amount("--batch", "sequence", "sequences running at once")],
    tokens: Annotated[float | None, amount("--tokens", "token/request", "tokens generated per request")] = None,
    tokens_per_second: Annotated[
        float | None, amount("--tokens-per-second", "token/second*sequence", "of one running sequence")
    ] = None,
    seconds: Annotated[
        float | None, amount("--seconds", "second/request", "in service, instead of tokens and their speed")
    ] = None,
    batch_per: Annotated[
        BatchPer, typer.Option("--batch-per", help="what the batch is counted per")
    ] = BatchPer.REPLICA,
    buffer: Annotated[float, amount("--buffer", "ratio", "headroom, a ratio")] = 0.25,
    tp: Annotated[int, typer.Option("--tp", help="tensor parallel")] = 1,
    pp: Annotated[int, typer.Option("--pp", help="pipeline parallel")] = 1,
) -> None:
    """Count replicas and GPUs: N = qps x tokens / (batch x tokens per second) x (1 + buffer)."""
    found = capacity.formula(
        qps=qps,
        tokens=tokens,
        batch=batch,
        batch_per=batch_per.value,
        tokens_per_second=tokens_per_second,
        seconds=seconds,
        buffer=buffer,
        tp=tp,
        pp=pp,
    )
    context.show(found.as_dict(), lambda _: "\n".join(found.lines(context.language)))


@leaf(app, "replay", example="outrider capacity replay traffic.csv --startup 5m -o json")
def replay(
    context: Context,
    csv: Annotated[list[Path], typer.Argument(help="CSV with time_utc, requests_per_second")],
    startup: Annotated[str, typer.Option("--startup", help="from launch to the first answer")] = "5m",
    plot: Annotated[Path | None, typer.Option("--plot", help="folder to draw one SVG a trace into")] = None,
) -> None:
    """Replay the scaling loop on traffic traces against static peak, HPA, KEDA-like, cron, Knative and an oracle."""
    with bars(context) as progress:
        found = score.replay(traces_of(csv), startup=parse_duration(startup), progress=progress)
    drawn = []
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)
        for trace in found.traces:
            path = plot / f"{trace.name}.svg"
            path.write_text(figure.svg(trace, found.startup), encoding="utf-8")
            drawn.append(str(path))
    context.show({**found.as_dict(), "plots": drawn}, lambda shown: _replay_table(shown, context))


def _replay_table(shown: dict[str, Any], context: Context) -> str:
    rivals = list(shown["rival_settings"])
    heads = ["name", "gpu_hours_ratio", "requests_waiting_over_2s_ratio", "oracle_ratio", "times_oracle"]
    heads += [*(f"{name}_ratio" for name in rivals), "reversals_within_30min"]
    rows = [[row["name"], *(_share(row[head]) for head in heads[1:])] for row in shown["traces"]]
    table = tables.table([head.removesuffix("_ratio").replace("_", " ") for head in heads], rows, empty="-")
    said = translate(
        "cli.replay_summary",
        context.language,
        mean=_share(shown["mean_gpu_hours_ratio"]),
        times=f"{shown['mean_times_oracle']:.2f}",
        worst=f"{shown['worst_requests_waiting_over_2s_ratio']:.2%}",
    )
    return "\n".join([table, said, *shown["plots"]])


def _share(value: float | None) -> str:
    return "-" if value is None else (str(value) if isinstance(value, int) else f"{value:.4f}")


def traces_of(paths: list[Path]) -> list[Trace]:
    """Read traces. Raises UsageError naming the file that cannot be read."""
    found = []
    for path in paths:
        try:
            found.append(parse_trace(path.read_text(encoding="utf-8"), path.stem))
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(
                f"{path} cannot be read: {why}", hint="give CSV files with time_utc and requests_per_second"
            ) from error
    return found


@leaf(app, "plan", example="outrider capacity plan --service chat -o json")
def plan(
    context: Context,
    service: Annotated[str | None, typer.Option("--service", help="only this service")] = None,
    at: Annotated[str | None, typer.Option("--at", help="plan as of this instant, RFC 3339")] = None,
) -> None:
    """Say how many replicas each service needs, when they must start, and why."""
    made = _recommendations(context, service, at)
    context.show(
        [jsonable.recommendation(item) for item in made], lambda shown: tables.recommendations(shown, context.language)
    )


@leaf(app, "explain", example="outrider capacity explain --service chat")
def explain(
    context: Context,
    service: Annotated[str | None, typer.Option("--service", help="only this service")] = None,
    at: Annotated[str | None, typer.Option("--at", help="plan as of this instant, RFC 3339")] = None,
) -> None:
    """Print the derivation of each recommendation, with units."""
    made = _recommendations(context, service, at)

    context.show(
        [jsonable.recommendation(item, context.language) for item in made],
        lambda _: (
            "\n\n".join(_explained(item, context.language) for item in made)
            or translate("cli.no_services", context.language)
        ),
    )


@leaf(app, "emit", example="outrider capacity emit --service chat --format hpa,kustomize --out manifests")
def emit(
    context: Context,
    service: Annotated[str | None, typer.Option("--service", help="only this service")] = None,
    formats: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(KINDS)}; several with commas; default: as configured")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder to write the documents into")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="print what git apply takes against the folder --out")] = False,
    send: Annotated[bool, typer.Option("--send", help="send them to what planner.scaling.emit names")] = False,
    for_real: Annotated[bool, typer.Option("--for-real", help="without it --send is a dry run")] = False,
) -> None:
    """Render the newest plan for what scales: HPA, KEDA, Knative, kustomize, a webhook; send it where configured."""
    emitted.emit(context, service, formats, out, diff=diff, send=send, for_real=for_real)


def _explained(item: Recommendation | NoRecommendation, language: Language) -> str:
    """One service: the answer, then every step to it; without an answer, why there is none."""
    if isinstance(item, NoRecommendation):
        detail = translate(item.detail, language, **item.arguments) if item.detail else ""
        said = {"service": item.service.name, "reason": word("plan_reason", item.reason, language)}
        return translate("cli.explain_none", language, **said) + (f" ({detail})" if detail else "")
    head = {"service": item.service.name, "replicas": item.target_replicas, "gpus": item.gpus}
    return "\n".join([translate("cli.explain_head", language, **head), *reasoning.lines(item, language)])


def _recommendations(context: Context, service: str | None, at: str | None) -> list[Recommendation | NoRecommendation]:
    instant = instant_of("--at", at) if at else None
    made = wiring.plan_now(context.settings(), instant)
    names = [item.service.name for item in made.recommendations]
    if service is not None and service not in names:
        raise UsageError(f"no service is named {service!r}", hint=f"known services: {', '.join(names) or 'none yet'}")
    return [item for item in made.recommendations if service in (None, item.service.name)]
