"""``outrider rules``: list alert rules, and test them with time series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from alerts.rules import files as rule_files
from outrider.documents.summaries import rule_name
from outrider.errors import ConfigError
from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import format_duration
from service.cli.core import tables
from service.cli.core.common import NO, ON_A_TERMINAL, YES, Context, leaf

if TYPE_CHECKING:
    from alerts.rules.parser import RuleEntry
    from service.rules.fixture_run import CheckResult
    from service.rules.prometheus_import import ImportedRules

app = typer.Typer(help="List, test, import and export alert rules.", no_args_is_help=ON_A_TERMINAL)


@leaf(app, "list", example="outrider rules list -o json")
def list_(context: Context) -> None:
    """List all alert rules, also those that are off, with condition, priority and pack."""
    rules = context.settings().rules
    entries = rule_files.load_entries(rules.files, rules.enable)
    rows = [_rule_json(entry, context.language) for entry in entries]
    context.show(rows, lambda shown: _rules_table(shown, context.language))


@leaf(app, "test", example="outrider rules test my-rules-test.yaml -o json")
def test(
    context: Context, file: Annotated[list[Path], typer.Argument(help="Test files, in the form of promtool's.")]
) -> int:
    """Test alert rules with time series: expected alerts against those that fire. Exits 1 if any test fails."""
    from service.rules import fixture_file, fixture_run  # noqa: PLC0415 - imports the whole detection

    settings = context.settings()
    try:
        fixtures = [fixture_file.read(path, settings) for path in file]
    except ConfigError as error:
        raise _listed(error) from error
    results = [(fixture.file, result) for fixture in fixtures for result in fixture_run.run(fixture)]
    cases = [_case_json(path, result) for path, result in results]
    failed = sum(not case["passed"] for case in cases)
    document = {"passed": len(cases) - failed, "failed": failed, "cases": cases}
    context.show(document, lambda shown: _cases_text(shown, context.language))
    return NO if failed else YES


@leaf(app, "import", example="outrider rules import prometheus-rules.yaml --out imported.yaml")
def import_(
    context: Context,
    file: Annotated[Path, typer.Argument(help="PrometheusRule object, or a rule file of Prometheus.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Rules file to write, for rules.files. Default: none is written.")
    ] = None,
) -> int:
    """Translate Prometheus alert rules. Names each rule that has no translation; exits 1 if there is one."""
    from service.rules import prometheus_import  # noqa: PLC0415 - reads every adapter

    imported = prometheus_import.read(file)
    if out is not None:
        out.write_text(_rules_file(imported), encoding="utf-8")
    document = {
        "file": None if out is None else str(out),
        "rules": imported.rules,
        "left_out": [
            {"name": rule.name, "group": rule.group, "line": rule.line, "reason": rule.reason}
            for rule in imported.left_out
        ],
        "notes": [{"rule": note.rule, "text": note.text} for note in imported.notes],
    }
    context.show(document, lambda shown: _import_text(shown, imported, context.language))
    return NO if imported.left_out else YES


@leaf(app, "export", example="outrider rules export -o yaml > outrider-alerts.yaml")
def export_(
    context: Context,
    adapter: Annotated[
        str | None,
        typer.Option(help="Read the metrics of this adapter. Default: the series that store.metrics receives."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print a rule file of Prometheus instead of a PrometheusRule object.")
    ] = False,
) -> None:
    """Print the alert rules in force for a Prometheus. Rules that PromQL cannot express are named on standard error."""
    from collectors.mapping import registry  # noqa: PLC0415 - not needed by the other commands
    from service.rules import prometheus_export  # noqa: PLC0415
    from service.wiring import detectors as wiring_detectors  # noqa: PLC0415

    rules = wiring_detectors.rules(context.settings())
    known = None if adapter is None else registry.adapter(adapter)
    exported = prometheus_export.export(rules, context.language, known)
    for name, reason in exported.left_out.items():
        typer.echo(f"left out: {name}: {reason}", err=True)
    context.show(exported.document["spec"] if plain else exported.document)


def _rules_file(imported: ImportedRules) -> str:
    """A rules file with the notes and the rules that were left out as comments."""
    comments = [f"# {note.rule}: {note.text}" for note in imported.notes]
    comments += [f"# left out: {rule.name} (line {rule.line}): {rule.reason}" for rule in imported.left_out]
    rules = yaml.safe_dump({"version": 1, "rules": imported.rules}, allow_unicode=True, sort_keys=False, width=110)
    return "".join(f"{' '.join(line.split())}\n" for line in comments) + rules


def _import_text(shown: dict[str, Any], imported: ImportedRules, language: Language) -> str:
    counted = translate("cli.rules_imported", language, imported=len(imported.rules), left_out=len(imported.left_out))
    lines = [_rules_file(imported).rstrip()] if shown["file"] is None else []
    lines += [f"{rule.name} (line {rule.line}): {rule.reason}" for rule in imported.left_out]
    return "\n".join((*lines, counted))


def _listed(error: ConfigError) -> ConfigError:
    """Prints every mistake of a file on standard error. Returns the error without a reference to another command."""
    for problem in error.problems[1:]:
        typer.echo(str(problem), err=True)
    return ConfigError(error.message, error.problems, hint="fix these lines") if error.problems else error


def _rule_json(entry: RuleEntry, language: Language) -> dict[str, Any]:
    rule = entry.rule
    return {
        "name": rule.name,
        "title": rule_name(rule.name, language),
        "kind": rule.kind.value,
        "enabled": entry.enabled,
        "pack": entry.pack or None,
        "expr": rule.expr,
        "where": {key: list(values) for key, values in rule.where.items()},
        "faults": list(rule.faults),
        "detectors": list(rule.detectors),
        "priority": rule.priority.value if rule.priority else None,
        "wait_seconds": rule.wait.total_seconds(),
        "clear_seconds": rule.clear.total_seconds(),
        "absent": rule.absent.value,
        "instead_of": list(rule.instead_of),
        "runbook": rule.runbook or None,
    }


def _rules_table(rows: list[dict[str, Any]], language: Language) -> str:
    names = ("rule", "on", "pack", "priority", "wait", "condition")
    lines = [
        [
            row["name"],
            translate("cli.rule_on" if row["enabled"] else "cli.rule_off", language),
            row["pack"] or "-",
            row["priority"] or "-",
            format_duration(row["wait_seconds"]),
            row["expr"] or ", ".join((*row["faults"], *row["detectors"])),
        ]
        for row in rows
    ]
    return tables.table(tables.heads(language, *names), lines, empty="")


def _case_json(file: Path, result: CheckResult) -> dict[str, Any]:
    from service.rules.fixture_run import labels_of  # noqa: PLC0415

    check = result.check
    return {
        "file": str(file),
        "line": check.line,
        "test": result.test.name,
        "eval_seconds": check.after.total_seconds(),
        "alertname": check.alertname,
        "passed": not result.differences,
        "differences": list(result.differences),
        "found": [labels_of(alert) for alert in result.found],
    }


def _cases_text(shown: dict[str, Any], language: Language) -> str:
    lines = []
    for case in shown["cases"]:
        if not case["passed"]:
            at = format_duration(case["eval_seconds"])
            lines.append(f"{case['file']}:{case['line']}: {case['test']}, {at}:")
            lines += [f"  {difference}" for difference in case["differences"]]
    lines.append(translate("cli.rules_tested", language, passed=shown["passed"], failed=shown["failed"]))
    return "\n".join(lines)
