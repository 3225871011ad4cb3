"""``outrider db``: upgrade, check, back up, restore, prune, copy."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.clock import SystemClock, parse_rfc3339
from outrider.text.i18n import translate
from outrider.vocabulary.units import format_value
from service.cli.core import tables
from service.cli.core.common import NO, ON_A_TERMINAL, YES, Context, leaf
from service.cli.core.progress import bars
from service.ops import databases, history_copy
from service.wiring import stores as wiring_stores

app = typer.Typer(help="Manage the databases.", no_args_is_help=ON_A_TERMINAL)


@leaf(app, "copy", example="outrider db copy --days 30")
def copy(
    context: Context,
    days: Annotated[float, typer.Option(min=0.01, help="Days to copy, for example 30.")] = 15.0,
    since: Annotated[str | None, typer.Option(help="Start time (RFC 3339), instead of a span.")] = None,
    until: Annotated[str | None, typer.Option(help="End time (RFC 3339). Default: now.")] = None,
) -> None:
    """Copy values from store.url to the server of store.metrics. Can be repeated after an interruption."""
    end = parse_rfc3339(until) if until else SystemClock().now()
    start = parse_rfc3339(since) if since else end - timedelta(days=days)
    with bars(context) as progress:
        report = history_copy.run(context.settings(), start, end, progress)
    context.show(report)


@leaf(app, "upgrade", example="outrider db upgrade")
def upgrade(context: Context) -> None:
    """Create the databases, or upgrade them to the schema of this version."""
    context.show({"revision": wiring_stores.upgrade(context.settings())}, lambda shown: f"schema {shown['revision']}")


@leaf(app, "check", example="outrider db check --deep -o json")
def check(
    context: Context,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every value and every record.")] = False,
) -> int:
    """Check the store for damage. Read-only; safe while the engine runs."""
    with bars(context) as progress:
        report = databases.check(context.settings(), deep=deep, progress=progress)
    context.show(report, lambda shown: _checked(context, shown))
    return YES if report["sound"] else NO


@leaf(app, "backup", example="outrider db backup /backups/outrider.tar.zst --force")
def backup(
    context: Context,
    file: Annotated[Path, typer.Argument(help="File to write; compressed if its name ends in .zst.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write the whole store to one consistent file, while the engine runs."""
    with bars(context) as progress:
        report = databases.backup(context.settings(), file, SystemClock().now(), force=force, progress=progress)
    context.show(
        report,
        lambda shown: translate(
            "db.backed_up",
            context.language,
            file=shown["file"],
            size=format_value(shown["bytes"], "bytes"),
            took=format_value(shown["seconds"], "seconds"),
            revision=shown["revision"],
        ),
    )


@leaf(app, "restore", example="outrider db restore /backups/outrider.tar.zst")
def restore(
    context: Context,
    file: Annotated[Path, typer.Argument(help="Backup file of `outrider db backup`.")],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Replace a store that has rows: SQLite files are moved aside, tables are emptied."
        ),
    ] = False,
) -> None:
    """Restore a backup, also into the other kind of database. The engine must be stopped."""
    with bars(context) as progress:
        report = databases.restore(context.settings(), file, SystemClock().now(), force=force, progress=progress)
    context.show(report, lambda shown: _restored(context, shown))


@leaf(app, "prune", example="outrider db prune")
def prune(
    context: Context,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Also rebuild the files at minimum size; the engine must be stopped.")
    ] = False,
) -> None:
    """Run due maintenance now: compaction, roll-ups, retention, free space."""
    with bars(context) as progress:
        report = databases.prune(context.settings(), SystemClock().now(), vacuum=vacuum, progress=progress)
    context.show(report, lambda shown: _pruned(context, shown))


def _checked(context: Context, shown: dict[str, Any]) -> str:
    language, lines = context.language, []
    for database in shown["databases"]:
        rows = [[table["name"], str(table["rows"])] for table in database["tables"] if table["rows"]]
        lines.append(
            translate(
                "db.database",
                language,
                place=database["place"],
                size=format_value(database["bytes"], "bytes"),
                revision=database["revision"] or "-",
            )
        )
        lines.append(tables.table([translate("db.table", language), translate("db.rows", language)], rows, empty=""))
        lines += [translate("db.note", language, note=note) for note in database["notes"]]
        for problem in database["problems"]:
            lines.append(translate("db.problem", language, message=problem["message"]))
            lines.append(f"  {problem['hint']}")
    lines.append(translate("db.sound" if shown["sound"] else "db.damaged", language))
    return "\n".join(line for line in lines if line)


def _restored(context: Context, shown: dict[str, Any]) -> str:
    language = context.language
    lines = [
        translate(
            "db.restored",
            language,
            file=shown["file"],
            made_at=shown["made_at"],
            engine=shown["taken_from"],
            took=format_value(shown["seconds"], "seconds"),
            revision=shown["revision"],
        )
    ]
    return "\n".join([*lines, *(translate("db.moved_aside", language, file=path) for path in shown["moved_aside"])])


def _pruned(context: Context, shown: dict[str, Any]) -> str:
    language = context.language
    done = [
        tables.table(
            [translate("db.upkeep", language), ""],
            [[name, str(count)] for name, count in (*shown["done"].items(), *shown["removed"].items())],
            empty=translate("db.nothing_due", language),
        )
    ]
    sizes = [
        translate(
            "db.bytes",
            language,
            place=database["place"],
            before=format_value(database["bytes_before"], "bytes"),
            after=format_value(database["bytes_after"], "bytes"),
        )
        for database in shown["databases"]
    ]
    return "\n".join([*done, *sizes])
