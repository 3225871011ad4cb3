"""``outrider drill``: inject faults into a simulated fleet and score the response."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from outrider import log
from outrider.errors import UsageError
from outrider.text.i18n import Language
from outrider.vocabulary.units import parse_duration
from service.cli.core import figure_tables, tables
from service.cli.core.common import NO, YES, Context, leaf
from service.cli.core.progress import bars
from service.drills import commands, remote_drill
from service.drills.cluster.drill import Order

app = typer.Typer(no_args_is_help=True, help="Inject faults into a simulated fleet and score the response.")
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the fleet, its load and the faulted entity.")]
Api = Annotated[str | None, typer.Option("--api", help="URL of a running platform that monitors a simulated fleet.")]


@leaf(app, "list", example="outrider drill list -o json")
def list_(context: Context) -> None:
    """List the scenarios. `drill run` also accepts the id of a fault or a state."""
    context.show(commands.list_scenarios(), lambda shown: _listed(shown, context.language))


@leaf(app, "run", example="outrider drill run gpu-lost --seed 7 -o json")
def run(
    context: Context,
    fault: Annotated[str, typer.Argument(help="Fault or scenario of `outrider drill list`.")],
    seed: Seed = 7,
    load: Annotated[str | None, typer.Option("--load", help="Load shape, for example diurnal or bursty.")] = None,
    api: Api = None,
    kubernetes: Annotated[
        str | None,
        typer.Option(
            "--kubernetes",
            metavar="NAMESPACE",
            help="Inject into this namespace of a real cluster; it needs the label outrider.io/drill-consent=true.",
        ),
    ] = None,
    workload: Annotated[
        str | None, typer.Option("--workload", help="With --kubernetes: Deployment to break. Default: the only one.")
    ] = None,
    lasts: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="With --kubernetes: duration of the fault, such as 5m.")
    ] = "5m",
    apply: Annotated[
        bool, typer.Option("--apply", help="With --kubernetes: inject. Default: print the exact requests.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="With --kubernetes: only undo what an interrupted drill left.")
    ] = False,
) -> int:
    """Inject one fault. Exits 0 if it was detected, named and repaired (if it has a remedy)."""
    log.configure(level="critical")  # failures are injected
    if kubernetes is not None:
        order = Order(fault, kubernetes, parse_duration(lasts), seed, workload)
        return _on_cluster(context, order, api, apply=apply, restore=restore)
    if apply or restore or workload is not None:
        raise UsageError("--apply, --restore and --workload belong to --kubernetes", hint="add --kubernetes NAMESPACE")
    if api is not None and load is not None:
        raise UsageError(
            "--load applies to a private fleet only",
            hint="omit --load, or omit --api to use a private fleet",
        )
    with bars(context) as progress:
        if api is None:
            result = commands.run_one(fault, seed=seed, load=load, progress=progress)
        else:
            token = remote_drill.token_for(api, context.settings)
            result = commands.run_live(fault, api=api, token=token, seed=seed, progress=progress)
    context.show(result, lambda shown: _result(shown, context.language))
    return YES if result["passed"] else NO


def _on_cluster(context: Context, order: Order, api: str | None, *, apply: bool, restore: bool) -> int:
    settings = context.settings()
    if restore:
        context.show(commands.restore_cluster(order.namespace, settings), _plain)
        return YES
    if not apply:
        context.show(commands.plan_on_cluster(order, settings), _plain)
        return YES
    if api is None:
        hint = "set --api to the platform that monitors the cluster: it marks its messages as a drill"
        raise UsageError("--apply needs --api", hint=hint)
    with bars(context) as progress:
        token = remote_drill.token_for(api, context.settings)
        result = commands.run_on_cluster(order, settings, api=api, token=token, progress=progress)
    context.show(result, lambda shown: _result(shown, context.language))
    return YES if result["passed"] else NO


def _plain(shown: dict[str, Any]) -> str:
    """Requests and restored paths as YAML: they are meant to be read, and copied."""
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120).rstrip()


@leaf(app, "score", example="outrider drill score --seed 11 -o json")
def score(
    context: Context,
    seed: Seed = 11,
    only: Annotated[list[str] | None, typer.Option("--only", help="Scenario id. Repeatable.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of processes.")] = 2,
) -> None:
    """Run every scenario on private platforms and print the scores."""
    log.configure(level="critical")
    with bars(context) as progress:
        result = commands.score_all(seed=seed, only=only, workers=workers, progress=progress)
    context.show(result, lambda shown: _scored(shown, context.language))


@leaf(app, "export", example="outrider drill export ./fault-benchmark --seed 21")
def export(
    context: Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder for the data set.")],
    seed: Seed = 21,
    only: Annotated[list[str] | None, typer.Option("--only", help="Scenario id. Repeatable.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of processes.")] = 2,
) -> None:
    """Write the labeled data set: signals as Parquet, truth as JSON, a README with the license."""
    log.configure(level="critical")
    with bars(context) as progress:
        result = commands.export(folder, seed=seed, only=only, workers=workers, progress=progress)
    context.show(result, lambda shown: _exported(shown, folder, context.language))


def _exported(shown: dict[str, Any], folder: Path, language: Language) -> str:
    size = f"{shown['bytes'] / 1e6:.1f}"
    return figure_tables.localize("exported", language, scenarios=shown["scenarios"], megabytes=size, folder=folder)


def _listed(rows: list[dict[str, Any]], language: Language) -> str:
    cells = [
        [
            row["id"],
            ", ".join(row["faults"]),
            figure_tables.localize("yes", language) if row["negative"] else "",
            row["load"],
            f"{row['minutes']:g}",
        ]
        for row in rows
    ]
    headings = figure_tables.heads(language, "scenario", "faults", "negative", "load", "minutes")
    return tables.table(headings, cells, empty=figure_tables.localize("no_scenarios", language))


def _result(shown: dict[str, Any], language: Language) -> str:
    plain = {name: value for name, value in shown.items() if name not in ("truth", "verdicts")}
    parts = [_figures(plain, language)]
    if shown["negative"]:
        parts.append(figure_tables.localize("is_no_fault", language, fault=shown["fault"]))
    else:
        judged = [_verdict(verdict, language) for verdict in shown["verdicts"]]
        headings = figure_tables.heads(language, "fault", "named", "on", "put_right", "passed")
        parts.append(tables.table(headings, judged, empty=""))
    return "\n\n".join(parts)


def _figures(plain: dict[str, Any], language: Language) -> str:
    rows = [
        [figure_tables.figure(name, language), figure_tables.cell(value, language, name)]
        for name, value in plain.items()
    ]
    return tables.table(figure_tables.heads(language, "figure", "value"), rows, empty="")


def _verdict(judged: dict[str, Any], language: Language) -> list[str]:
    named = judged["named"]
    repaired = (
        figure_tables.cell(judged["remediated"], language)
        if judged["has_remedy"]
        else figure_tables.localize("no_remedy", language)
    )
    cause = [named["fault"], named["entity"]["name"]] if named else ["-", "-"]
    return [judged["fault"], *cause, repaired, figure_tables.cell(judged["passed"], language)]


def _scored(shown: dict[str, Any], language: Language) -> str:
    plain = {name: value for name, value in shown.items() if not isinstance(value, dict | list)}
    parts = [_figures(plain, language), _by_fault(shown["by_fault"], language)]
    if shown["by_storm"]:
        of_storms = ("alerts", "pages", "folding_ratio", "pairwise_precision", "pairwise_recall", "pairwise_f1")
        rows = [
            [storm, *(figure_tables.cell(storm_scores[name], language) for name in of_storms)]
            for storm, storm_scores in shown["by_storm"].items()
        ]
        parts.append(tables.table(figure_tables.heads(language, "storm", *of_storms), rows, empty=""))
    if shown["reliability"]:
        reliability = [
            [
                f"{row['from']:g} - {row['to']:g}",
                *(figure_tables.cell(row[name], language) for name in ("answers", "confidence", "right")),
            ]
            for row in shown["reliability"]
        ]
        headings = figure_tables.heads(language, "confidence", "answers", "mean", "right")
        parts.append(tables.table(headings, reliability, empty=""))
    return "\n\n".join(parts)


def _by_fault(by_fault: dict[str, Any], language: Language) -> str:
    rows = [
        [
            fault,
            f"{row['detected']}/{row['events']}",
            *(
                figure_tables.cell(row[name], language, name)
                for name in ("median_delay_seconds", "ac1", "remediated_ratio")
            ),
            ", ".join(f"{name} {count}" for name, count in row["named_instead"].items()),
        ]
        for fault, row in by_fault.items()
    ]
    headings = figure_tables.heads(language, "fault", "found", "delay", "ac1", "repaired", "named_instead")
    return tables.table(headings, rows, empty="")
