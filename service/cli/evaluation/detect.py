"""``outrider detect``: score the shipped detectors on labeled recordings."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import UsageError
from outrider.text.i18n import Language
from outrider.vocabulary.units import parse_duration
from service.cli.core import figure_tables, tables
from service.cli.core.common import ON_A_TERMINAL, Context, leaf
from service.cli.core.progress import bars
from service.evaluation import detection

app = typer.Typer(no_args_is_help=ON_A_TERMINAL, help="Score detection on labeled recordings.")
_COLUMNS = ("event_f1", "precision", "recall", "false_alarms_per_day", "median_delay_seconds", "vus_pr")


class Layout(StrEnum):
    """Layout of labeled recordings on disk."""

    SERVERS = "servers"
    NAB = "nab"


@leaf(app, "backtest", example="outrider detect backtest --format servers ./servers --step 5m --budget 0.25 -o json")
def backtest(
    context: Context,
    folder: Annotated[Path, typer.Argument(metavar="DATA", help="Folder with labeled recordings.")],
    layout: Annotated[Layout, typer.Option("--format", help="Layout of the recordings.")],
    step: Annotated[
        str, typer.Option("--step", help="Sampling interval of the servers layout, for example 1m.")
    ] = "5m",
    budget: Annotated[
        float, typer.Option("--budget", help="Budget of false alarms per entity-day.")
    ] = detection.BUDGET,
) -> None:
    """Run the frozen configuration causally over labeled recordings and score it."""
    seconds = parse_duration(step).total_seconds()
    if seconds <= 0:
        raise UsageError(f"--step is {step}", hint="give the sampling interval, for example 5m")
    if not 0 < budget <= 100:
        raise UsageError(f"--budget is {budget:g}", hint="give false alarms per entity-day, above 0, for example 0.25")
    with bars(context) as progress:
        if layout is Layout.NAB:
            result = detection.nab_corpus(folder, budget=budget, progress=progress)
        else:
            result = detection.servers(folder, step_seconds=seconds, budget=budget, progress=progress)
    context.show(result, lambda shown: _table(shown, context.language))


def _table(shown: dict[str, Any], language: Language) -> str:
    rows = {**shown["by_entity"], figure_tables.localize("all", language): shown}
    cells = [
        [name, *(figure_tables.cell(row[column], language, column) for column in _COLUMNS)]
        for name, row in rows.items()
    ]
    headings = figure_tables.heads(language, "entity") + [figure_tables.figure(column, language) for column in _COLUMNS]
    table = tables.table(headings, cells, empty=figure_tables.localize("no_entities", language))
    score = shown.get("nab_standard")
    return (
        table if score is None else f"{table}\n{figure_tables.localize('nab_standard', language, score=f'{score:.1f}')}"
    )
