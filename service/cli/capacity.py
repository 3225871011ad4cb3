"""``outrider capacity``: how many GPUs, when, and the arithmetic behind it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from outrider import jsonable
from outrider.errors import UsageError
from outrider.i18n import translate
from outrider.model import NoRecommendation, Recommendation
from outrider.summaries import word
from planner import capacity
from service import wiring
from service.cli import scaling, tables
from service.cli.common import ON_A_TERMINAL, Context, instant_of, leaf

app = typer.Typer(help="How many GPUs, and when.", no_args_is_help=ON_A_TERMINAL)
scaling.add(app)


class BatchPer(StrEnum):
    """What the batch is counted per."""

    REPLICA = "replica"
    GPU = "gpu"


@leaf(
    app, "formula", example="outrider capacity formula --qps 40 --tokens 300 --batch 32 --tokens-per-second 25 --tp 4"
)
def formula(
    context: Context,
    qps: Annotated[float, typer.Option("--qps", help="requests per second at the peak")],
    tokens: Annotated[float, typer.Option("--tokens", help="tokens generated per request")],
    batch: Annotated[float, typer.Option("--batch", help="sequences running at once")],
    tokens_per_second: Annotated[float, typer.Option("--tokens-per-second", help="of one running sequence")],
    batch_per: Annotated[
        BatchPer, typer.Option("--batch-per", help="what the batch is counted per")
    ] = BatchPer.REPLICA,
    buffer: Annotated[float, typer.Option("--buffer", help="headroom, a ratio")] = 0.25,
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
        buffer=buffer,
        tp=tp,
        pp=pp,
    )
    context.show(found.as_dict(), lambda _: "\n".join(found.lines(context.language)))


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

    def table(_: Any) -> str:
        blocks = []
        for item in made:
            if isinstance(item, Recommendation):
                lines = [*capacity.derivation_lines(item.derivation, context.language), _bounds(context, item)]
                blocks.append(
                    "\n".join([f"{item.service.name}: {item.target_replicas} replicas, {item.gpus} GPUs", *lines])
                )
            else:
                blocks.append(f"{item.service.name}: no recommendation ({item.reason})")
        return "\n\n".join(blocks) or "no service is known yet"

    context.show([jsonable.recommendation(item) for item in made], table)


def _bounds(context: Context, item: Recommendation) -> str:
    """The last step: from what the formula asks for to what is recommended."""
    return translate(
        "cli.explain_target",
        context.language,
        now=item.derivation.get("need_now") or "-",
        floor=item.floor,
        ceiling=item.ceiling,
        binding=word("binding", item.binding, context.language),
        target=item.target_replicas,
    )


def _recommendations(context: Context, service: str | None, at: str | None) -> list[Recommendation | NoRecommendation]:
    instant = instant_of("--at", at) if at else None
    made = wiring.plan_now(context.settings(), instant)
    names = [item.service.name for item in made.recommendations]
    if service is not None and service not in names:
        raise UsageError(f"no service is named {service!r}", hint=f"known services: {', '.join(names) or 'none yet'}")
    return [item for item in made.recommendations if service in (None, item.service.name)]
