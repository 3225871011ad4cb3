"""``outrider capacity``: replicas and GPUs needed, start times, and the derivation."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.documents import serialization
from outrider.model import Incident, NoRecommendation, Plan, Recommendation
from outrider.text.i18n import Language, translate
from outrider.text.unknown_names import no_such
from outrider.topology import Topology
from planner.capacity import derivation
from planner.capacity import formula as capacity_formula
from planner.performance import slo_capacity
from service.cli.capacity import (
    applying,
    as_of,
    buffers,
    buy,
    calibrate,
    costing,
    plan_documents,
    pools,
    replay,
    sizing,
    split,
    steering,
    strategies,
    warm,
)
from service.cli.capacity.plan_documents import KINDS
from service.cli.capacity.slo_options import PlanOptions
from service.cli.core import tables
from service.cli.core.amounts import amount
from service.cli.core.common import ON_A_TERMINAL, Context, instant_of, leaf
from service.engine import fleet_state
from service.planning import capacity_summary, role_pools
from service.wiring import planning as wiring_planning
from service.wiring import stores as wiring_stores

AtOption = Annotated[
    str | None,
    typer.Option("--at", help="Plan as of this time (RFC 3339, for example 2026-11-21T08:00:00Z). Default: now."),
]

app = typer.Typer(help="Plan capacity: replicas and GPUs needed, start times, cost.", no_args_is_help=ON_A_TERMINAL)


class BatchPer(StrEnum):
    """Unit that the batch size refers to."""

    REPLICA = "replica"
    GPU = "gpu"


@leaf(
    app, "formula", example="outrider capacity formula --qps 40 --tokens 300 --batch 32 --tokens-per-second 25 --tp 4"
)
def formula(
    context: Context,
    qps: Annotated[float, amount("--qps", "request/second", "Peak requests per second")],
    batch: Annotated[float, amount("--batch", "sequence", "Sequences running at once")],
    tokens: Annotated[float | None, amount("--tokens", "token/request", "Tokens generated per request")] = None,
    tokens_per_second: Annotated[
        float | None,
        amount("--tokens-per-second", "token/(second*sequence)", "Generation speed of one running sequence"),
    ] = None,
    seconds: Annotated[
        float | None,
        amount("--seconds", "second/request", "Service time per request, instead of tokens and tokens per second"),
    ] = None,
    batch_per: Annotated[BatchPer, typer.Option("--batch-per", help="Unit of --batch.")] = BatchPer.REPLICA,
    buffer: Annotated[float | None, amount("--buffer", "ratio", "Headroom; default 0.25")] = None,
    errors: Annotated[
        Path | None,
        typer.Option(
            "--errors", help="File of forecast errors, one ratio per line; the buffer is their 95th percentile."
        ),
    ] = None,
    buffer_of: Annotated[
        str | None, typer.Option("--buffer-of", help="Service whose measured forecast error is the buffer.")
    ] = None,
    tp: Annotated[int, typer.Option("--tp", help="Tensor parallel size.")] = 1,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline parallel size.")] = 1,
) -> None:
    """Compute replicas and GPUs with the capacity formula.

    N = qps x tokens / (batch x tokens per second) x (1 + buffer).
    """
    chosen = buffers.buffer_of(context, buffer, errors, buffer_of)
    result = capacity_formula.formula(
        qps=qps,
        tokens=tokens,
        batch=batch,
        batch_per=batch_per.value,
        tokens_per_second=tokens_per_second,
        seconds=seconds,
        buffer=chosen.value,
        tp=tp,
        pp=pp,
        buffer_source=chosen.source,
    )
    lines = [*result.lines(context.language)]
    if chosen.source == "measured":
        lines.append(derivation.buffer_line(chosen.as_dict(), context.language))
    context.show({**result.as_dict(), "buffer": chosen.as_dict()}, lambda _: "\n".join(lines))


@leaf(app, "plan", example="outrider capacity plan --service chat -o json")
def plan(
    context: Context,
    options: PlanOptions,
    at: AtOption = None,
) -> None:
    """Plan replicas and GPUs per service, with start times and reasons."""
    items = _recommendations(context, at, options)
    context.show(
        _as_json(items, context, at),
        lambda shown: "\n".join(
            [
                tables.recommendations(shown, context.language) if shown else _nobody(context),
                *(row["sentence"] for row in shown if row["load_incidents"]),
                *_notes(items, context.language),
                *_as_of(context, shown, at),
            ]
        ),
    )


@leaf(app, "explain", example="outrider capacity explain --service chat --ttft 1s --tpot 50ms")
def explain(
    context: Context,
    options: PlanOptions,
    at: AtOption = None,
) -> None:
    """Print the derivation of each recommendation, with units."""
    items = _recommendations(context, at, options)

    def text(shown: list[dict[str, Any]]) -> str:
        rows = zip(items, shown, strict=True)
        parts = [*(_explained(item, row["sentence"], context.language) for item, row in rows)]
        return "\n\n".join([*parts, *_as_of(context, shown, at)]) or _nobody(context)

    context.show(_as_json(items, context, at), text)


@leaf(app, "emit", example="outrider capacity emit --service chat --format hpa,kustomize --out manifests")
def emit(
    context: Context,
    service: Annotated[
        str | None, typer.Option("--service", help="Render the plan of this service only. Default: all services.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option("--format", help=f"Formats, separated by commas: {', '.join(KINDS)}. Default: as configured."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write the documents to.")] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Print a patch against the folder --out, for git apply.")
    ] = False,
    send: Annotated[
        bool, typer.Option("--send", help="Send the documents to the receivers of planner.scaling.emit.")
    ] = False,
    for_real: Annotated[
        bool, typer.Option("--for-real", help="Execute --send; without this option it is a dry run.")
    ] = False,
    apply: applying.Apply = False,
    yes: applying.Confirmed = False,
) -> None:
    """Render the newest plan as HPA, KEDA, Knative or kustomize documents, send it, or apply its cron scalers."""
    applying.checked(apply=apply, yes=yes)
    plan_documents.emit(
        context, service, formats, out, diff=diff, send=send, for_real=for_real, apply=apply, confirmed=yes
    )


calibrate.add(app)
costing.add(app)
replay.add(app)
sizing.add(app)
what_if = typer.Typer(
    help="Explore alternatives: strategies, reservations, pools, spares, routing, faster starts.",
    no_args_is_help=ON_A_TERMINAL,
)
for topic in (strategies, buy, pools, split, steering, warm):
    topic.add(what_if)
    topic.add(app, hidden=True)  # aliases from before the group existed
app.add_typer(what_if, name="what-if")


def _as_json(
    items: Sequence[Recommendation | NoRecommendation], context: Context, at: str | None
) -> list[dict[str, Any]]:
    """The recommendations with their state."""
    incidents, topology = _open_incidents(context, instant_of("--at", at) if at else None)
    return [
        {
            **serialization.recommendation(item, context.language),
            **capacity_summary.document(item, incidents, topology, context.language),
            "age_seconds": as_of.age_seconds(item.made_at),
        }
        for item in items
    ]


def _open_incidents(context: Context, at: datetime | None) -> tuple[Sequence[Incident], Topology]:
    """The incidents that are open now or were at a time, and the topology with role pools as services."""
    settings = context.settings()
    if not wiring_stores.has_store(settings):
        return (), Topology()
    with wiring_stores.state_reader(settings) as state:
        incidents = fleet_state.open_incidents(state) if at is None else fleet_state.incidents_at(state, at)
        return incidents, role_pools.with_pools(state.topology(at))


def _as_of(context: Context, shown: list[dict[str, Any]], at: str | None) -> list[str]:
    instant = instant_of("--at", at) if at else None
    return as_of.note(shown, context.settings(), instant, context.language)


def _nobody(context: Context) -> str:
    """Message for an empty list of services, with a hint if no configuration was found."""
    unset = "" if context.configured else translate("cli.no_configuration", context.language)
    return translate("cli.no_services", context.language) + unset


def _explained(item: Recommendation | NoRecommendation, sentence: str, language: Language) -> str:
    """State and derivation of one service, or the reason why there is none."""
    if isinstance(item, NoRecommendation):
        detail = translate(item.detail, language, **item.arguments) if item.detail else ""
        return sentence + (f" ({detail})" if detail else "")
    return "\n".join([sentence, *derivation.lines(item, language)])


def _notes(items: Sequence[Recommendation | NoRecommendation], language: Language) -> list[str]:
    """SLOs that do not bound a plan, each with the reason."""
    notes = []
    for item in items:
        facts = item.derivation.get("slo") if isinstance(item, Recommendation) else None
        for entry in item.derivation.get("cautions", ()) if isinstance(item, Recommendation) else ():
            if entry["code"] == "quota_below_floor":
                note = derivation.caution(entry, language)
                notes.append(translate("cli.note_of_service", language, service=item.service.name, note=note))
        if facts and facts["objectives"] and facts["verdict"] not in ("bounded", "loose"):
            note = slo_capacity.lines(facts, language)[-1]
            notes.append(translate("cli.note_of_service", language, service=item.service.name, note=note))
    return notes


def _recommendations(context: Context, at: str | None, options: PlanOptions) -> list[Recommendation | NoRecommendation]:
    instant, settings = instant_of("--at", at) if at else None, context.settings()
    if not wiring_stores.has_store(settings):
        newest = Plan()
    else:
        if instant is not None:
            as_of.check(settings, instant)
        newest = wiring_planning.plan_now(settings, instant, options.overrides())
    service, names = options.service, [item.service.name for item in newest.recommendations]
    if service is not None and service not in names:
        raise no_such("service", service, names)
    return [item for item in newest.recommendations if service in (None, item.service.name)]
