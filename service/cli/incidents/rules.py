"""``outrider rules``: list alert rules, and test them with time series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
