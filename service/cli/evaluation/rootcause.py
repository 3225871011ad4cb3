"""``outrider rootcause``: accuracy of root-cause ranking, and explanations."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from detectors.rca import explanation, explanation_text
from outrider.errors import UsageError
from outrider.text.i18n import Language
from service.cli.core import figure_tables, tables
from service.cli.core.common import ON_A_TERMINAL, Context, leaf
from service.cli.core.progress import bars
from service.evaluation import rootcause
from service.evaluation.rootcause import RankedIncident, RootCauseBacktest
from service.incidents import incident_actions
from service.wiring import stores as wiring_stores

app = typer.Typer(help="Explain incidents and score root-cause ranking.", no_args_is_help=ON_A_TERMINAL)


class Format(StrEnum):
    """Formats of labeled incidents."""

    PETSHOP = "petshop"


_BACKTESTS = {Format.PETSHOP: rootcause.backtest}


@app.callback()
def _group() -> None:
    """Explain incidents and score root-cause ranking."""


@leaf(app, "backtest", example="outrider rootcause backtest --format petshop low_traffic -o json")
def backtest(
    context: Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DATA", help="One traffic folder: graph.csv, noissue, train, test.")
    ],
    kind: Annotated[Format, typer.Option("--format", help="Format of the labeled incidents.")] = Format.PETSHOP,
) -> None:
    """Rank the causes of labeled incidents over a call graph and score the ranking."""
    with bars(context) as progress:
        result = _BACKTESTS[kind](folder, timer=time.perf_counter, progress=progress)
    context.show(result.as_dict(), lambda _: _table(result, context.language))


@leaf(app, "explain", example="outrider rootcause explain inc-20261121T0805-3f2a --lang zh")
def explain(context: Context, incident: Annotated[str, typer.Argument(help="Incident id.")]) -> None:
    """Explain an incident: cause, supporting and contradicting evidence, alternatives, next checks, owner."""
    with wiring_stores.state_reader(context.settings()) as store:
        stored = store.incident(incident)
        if stored is None:
            raise UsageError(f"no incident has the id {incident!r}", hint="list them with outrider incidents list")
        actions = incident_actions.of_incident(store, stored, store.topology())
    explained = explanation.explain(stored, context.settings().knowledge.catalog(), actions)
    context.show(
        explanation_text.as_json(explained, context.language),
        lambda _: explanation_text.text(explained, context.language),
    )


def _table(result: RootCauseBacktest, language: Language) -> str:
    """Totals, scores by part and by kind, then each incident whose cause was not ranked first."""
    groups = [(figure_tables.localize("all", language), result.cases)]
    groups += [(figure_tables.localize(f"part.{name}", language), cases) for name, cases in result.parts().items()]
    groups += [(_kind(cases[0], language), cases) for cases in result.kinds().values()]
    rows = [
        [name, str(len(cases)), f"{result.top(1, cases):.3f}", f"{result.top(3, cases):.3f}"] for name, cases in groups
    ]
    text = tables.table(figure_tables.heads(language, "incidents", "cases", "top1", "top3"), rows, empty="-")
    missed = [
        [f"{case.part}/{case.name}", case.cause, str(case.place or "-"), ", ".join(case.named) or case.reason]
        for case in result.cases
        if case.place != 1
    ]
    headings = figure_tables.heads(language, "not_first", "cause", "place", "named")
    missed_table = tables.table(headings, missed, empty=figure_tables.localize("every_first", language))
    seconds = result.as_dict()["seconds_per_case"]
    return f"{text}\n\n{missed_table}\n\n{figure_tables.localize('ms_a_case', language, ms=f'{seconds * 1000:.1f}')}"


def _kind(case: RankedIncident, language: Language) -> str:
    symptom = figure_tables.localize(f"symptom.{case.symptom}", language)
    return figure_tables.localize("kind", language, symptom=symptom, cause=case.cause)
