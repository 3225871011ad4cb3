"""``outrider drill``: break a simulated fleet on purpose and see what the platform makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider import log
from outrider.errors import UsageError
from service.cli import tables
from service.cli.common import NO, YES, Context, leaf
from service.cli.progress import bars
from service.drills import commands, live

app = typer.Typer(no_args_is_help=True, help="Break a simulated fleet on purpose and score what was seen.")
Seed = Annotated[int, typer.Option("--seed", min=0, help="of the fleet, its load and the entity that breaks")]
Api = Annotated[str | None, typer.Option("--api", help="URL of a running platform that watches a simulated fleet")]


@leaf(app, "list", example="outrider drill list -o json")
def list_(context: Context) -> None:
    """Show every scenario. `drill run` takes each fault and state by its own id, too."""
    context.show(commands.listed(), _listed)


@leaf(app, "run", example="outrider drill run gpu-lost --seed 7 -o json")
def run(
    context: Context,
    fault: Annotated[str, typer.Argument(help="a fault or scenario of `outrider drill list`")],
    seed: Seed = 7,
    load: Annotated[str | None, typer.Option("--load", help="shape of the load, such as diurnal or bursty")] = None,
    api: Api = None,
) -> int:
    """Inject one fault. The answer is yes when it was found, named, and repaired if there is a remedy."""
    log.configure(level="critical")  # what breaks here is meant to
    if api is not None and load is not None:
        raise UsageError(
            "--load shapes a private fleet's load; a running fleet has its own",
            hint="leave --load out, or --api for a private fleet",
        )
    with bars(context) as progress:
        if api is None:
            result = commands.run_one(fault, seed=seed, load=load, progress=progress)
        else:
            token = live.token_for(api, context.settings)
            result = commands.run_live(fault, api=api, token=token, seed=seed, progress=progress)
    context.show(result, _result)
    return YES if result["passed"] else NO


@leaf(app, "score", example="outrider drill score --seed 11 -o json")
def score(
    context: Context,
    seed: Seed = 11,
    only: Annotated[list[str] | None, typer.Option("--only", help="a scenario id; may be repeated")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="processes")] = 2,
    baselines: Annotated[bool, typer.Option(help="score simple detectors on the same runs, too")] = True,
) -> None:
    """Run every scenario on private platforms and print the table."""
    log.configure(level="critical")
    with bars(context) as progress:
        result = commands.score_all(seed=seed, only=only, workers=workers, baselines=baselines, progress=progress)
    context.show(result, _scored)


@leaf(app, "export", example="outrider drill export ./fault-benchmark --seed 21")
def export(
    context: Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where the data set goes; new or empty")],
    seed: Seed = 21,
    only: Annotated[list[str] | None, typer.Option("--only", help="a scenario id; may be repeated")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="processes")] = 2,
) -> None:
    """Write the labelled data set: signals as Parquet, truth as JSON, a README with the licence."""
    log.configure(level="critical")
    with bars(context) as progress:
        result = commands.export(folder, seed=seed, only=only, workers=workers, progress=progress)
    context.show(result, lambda shown: f"{shown['scenarios']} scenarios, {shown['bytes'] / 1e6:.1f} MB in {folder}")


def _listed(rows: list[dict[str, Any]]) -> str:
    cells = [
        [row["id"], ", ".join(row["faults"]), "yes" if row["negative"] else "", row["load"], f"{row['minutes']:g}"]
        for row in rows
    ]
    return tables.table(["scenario", "faults", "negative", "load", "minutes"], cells, empty="no scenarios")


def _result(shown: dict[str, Any]) -> str:
    plain = {name: value for name, value in shown.items() if name not in ("truth", "verdicts")}
    rows = [[name.replace("_", " "), _cell(value)] for name, value in plain.items()]
    parts = [tables.table(["", "seed " + str(shown["seed"])], rows, empty="")]
    if shown["negative"]:
        parts.append(f"{shown['fault']} is no fault: it passes when no incident of P0 to P2 is opened.")
    else:
        judged = [_verdict(one) for one in shown["verdicts"]]
        parts.append(tables.table(["fault", "named", "on", "put right", "passed"], judged, empty=""))
    return "\n\n".join(parts)


def _verdict(judged: dict[str, Any]) -> list[str]:
    named = judged["named"]
    mended = _cell(judged["remediated"]) if judged["has_remedy"] else "has no automatic remedy"
    cause = [named["fault"], named["entity"]["name"]] if named else ["-", "-"]
    return [judged["fault"], *cause, mended, _cell(judged["passed"])]


def _scored(shown: dict[str, Any]) -> str:
    figures = [
        [name.replace("_", " "), _cell(value)] for name, value in shown.items() if not isinstance(value, dict | list)
    ]
    faults = [
        [
            fault,
            f"{row['detected']}/{row['events']}",
            _cell(row["median_delay_seconds"]),
            _cell(row["ac1"]),
            _cell(row["remediated_ratio"]),
            ", ".join(f"{name} {count}" for name, count in row["named_instead"].items()),
        ]
        for fault, row in shown["by_fault"].items()
    ]
    parts = [
        tables.table(["figure", ""], figures, empty=""),
        tables.table(["fault", "found", "delay s", "AC@1", "repaired", "named instead"], faults, empty=""),
    ]
    if shown["by_storm"]:
        names = ["alerts", "pages", "folding_ratio", "pairwise_precision", "pairwise_recall", "pairwise_f1"]
        rows = [[storm, *(_cell(found[name]) for name in names)] for storm, found in shown["by_storm"].items()]
        parts.append(tables.table(["storm", *(name.replace("_", " ") for name in names)], rows, empty=""))
    if shown["reliability"]:
        believed = [
            [f"{row['from']:g} - {row['to']:g}", *(_cell(row[name]) for name in ("answers", "confidence", "right"))]
            for row in shown["reliability"]
        ]
        parts.append(tables.table(["confidence said", "answers", "mean", "right"], believed, empty=""))
    if shown.get("baselines"):
        names = ["precision", "recall", "median_delay_seconds", "ac1", "right_abstention", "false_pages"]
        rows = [[one, *(_cell(found[name]) for name in names)] for one, found in shown["baselines"].items()]
        parts.append(tables.table(["baseline", *(name.replace("_", " ") for name in names)], rows, empty=""))
    return "\n\n".join(parts)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
