"""The tree of commands."""

from __future__ import annotations

import sys
from importlib import metadata

import typer

from service import wiring
from service.cli import (
    agent,
    alerts,
    audit,
    capacity,
    collect,
    common,
    config,
    db,
    demo,
    drill,
    entry,
    probe,
    record,
    remediate,
    replay,
    serve,
    store,
)
from service.cli.common import Context, leaf
from store import migrate

app = typer.Typer(
    name="outrider",
    no_args_is_help=common.ON_A_TERMINAL,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Watches, plans and repairs clusters that serve large language models."""


@leaf(app, "version", example="outrider version -o json")
def version(context: Context) -> None:
    """Print the versions of the program, of Python and of the database schema."""
    revisions = migrate.revision(context.settings().store.url)
    result = {
        "version": metadata.version("outrider"),
        "python": sys.version.split()[0],
        "database": wiring.revision_text(revisions),
    }
    context.show(
        result, lambda shown: f"outrider {shown['version']} (Python {shown['python']}, schema {shown['database']})"
    )


demo.add(app)
serve.add(app)
agent.add(app)
replay.add(app)
record.add(app)
collect.add_doctor(app)
probe.add(app)
for name, group in {
    "config": config.app,
    "collect": collect.app,
    "audit": audit.app,
    "alerts": alerts.alerts_app,
    "incidents": alerts.incidents_app,
    "capacity": capacity.app,
    "drill": drill.app,
    "forecast": store.forecast_app,
    "remediate": remediate.app,
    "report": store.report_app,
    "notify": store.notify_app,
    "db": db.app,
}.items():
    app.add_typer(group, name=name)


def main() -> None:
    """Run the command line and leave with its exit code."""
    entry.run(app)
