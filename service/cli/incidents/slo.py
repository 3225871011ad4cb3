"""``outrider slo``: validate, list and import SLOs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from outrider.errors import ConfigError
from outrider.text.i18n import translate
from outrider.vocabulary.slo import BURNS, Slo
from outrider.vocabulary.units import format_duration
from service.cli.core import tables
from service.cli.core.common import NO, ON_A_TERMINAL, YES, Context, leaf
from service.config import settings as settings_file
from service.config import slo_import

app = typer.Typer(help="Manage SLOs.", no_args_is_help=ON_A_TERMINAL)


@leaf(app, "validate", example="outrider slo validate outrider.yaml")
def validate(context: Context, file: Annotated[Path, typer.Argument(help="Configuration file.")]) -> int:
    """Validate the SLOs of a configuration: file, line, key, expected value, events needed for an alert."""
    loaded = None
    try:
        loaded, problems, _ = settings_file.review(file)
    except ConfigError as error:
        if not error.problems:
            raise
        problems = list(error.problems)
    slo_problems = [item for item in problems if loaded is None or item.key.startswith("slos")]
    slos = [] if slo_problems or loaded is None else [_slo_json(item) for item in loaded.resolved_slos]
    result = {
        "valid": not slo_problems,
        "errors": [{"line": item.line, "key": item.key, "message": item.message} for item in slo_problems],
        "slos": slos,
    }

    def text(_: Any) -> str:
        key = "cli.slo_invalid" if slo_problems else "cli.slo_valid"
        lines = [translate(key, context.language, file=file, count=len(slo_problems or slos)), *map(str, slo_problems)]
        return "\n".join(lines)

    context.show(result, text)
    return NO if slo_problems else YES


@leaf(app, "list", example="outrider slo list -o json")
def list_(context: Context) -> None:
    """List configured SLOs with the burn rates that alert."""
    slos = [_slo_json(slo) for slo in context.settings().resolved_slos]
    context.show(slos, lambda shown: _table(shown, translate("cli.slo_none", context.language)))


@leaf(app, "import", example="outrider slo import sloth.yaml > slos.yaml")
def import_(
    context: Context,
    file: Annotated[Path, typer.Argument(help="File of OpenSLO v1, Sloth prometheus/v1 or Pyrra v1alpha1.")],
) -> None:
    """Convert OpenSLO, Sloth or Pyrra objectives to the slos section; rejects those without a matching signal."""
    slos = slo_import.read(file)
    context.show(slos, lambda shown: yaml.safe_dump({"slos": shown}, allow_unicode=True, sort_keys=False).rstrip())


def _slo_json(slo: Slo) -> dict[str, Any]:
    return {
        "name": slo.name,
        "service": str(slo.service) if slo.service else None,
        "signal": slo.total[0].name,
        "tenant": slo.tenant,
        "where": {key: list(values) for key, values in slo.where.items()},
        "limit_seconds": slo.limit_seconds,
        "objective": slo.objective,
        "window_seconds": slo.window.total_seconds(),
        "least_events": slo.least_events,
        "least_bad": slo.least_bad,
        "burns": [
            {
                "factor": burn.factor,
                "bad_ratio": burn.factor * (1.0 - slo.objective),
                "long_seconds": burn.long.total_seconds(),
                "short_seconds": burn.short.total_seconds(),
                "priority": (slo.page if burn.pages else slo.ticket).value,
            }
            for burn in BURNS
        ],
    }


def _table(shown: list[dict[str, Any]], empty: str) -> str:
    heads = ["slo", "service", "of", "limit", "objective", "window"]
    heads += [f"{burn.factor:g}x in {format_duration(burn.long)}" for burn in BURNS]
    rows = [
        [
            row["name"],
            row["service"] or "each",
            row["signal"],
            "-" if row["limit_seconds"] is None else f"{row['limit_seconds']:g} s",
            f"{row['objective'] * 100:g} %",
            f"{row['window_seconds'] / 86400:g} d",
            *(f"{burn['priority']} from {burn['bad_ratio'] * 100:.3g} %" for burn in row["burns"]),
        ]
        for row in shown
    ]
    return tables.table(heads, rows, empty=empty)
