"""The tree of commands."""

from __future__ import annotations

import sys
from importlib import metadata

import typer

from service.cli.core import common, entry, lazy
from service.cli.core.common import Context, leaf
from service.cli.core.lazy import Place

PLACES = {
    "demo": Place(
        "service.cli.ops.demo",
        "add",
        "Run the whole loop on a simulated fleet: GPU lost, traffic surge, hung engine.",
        goes_on=True,
    ),
    "serve": Place(
        "service.cli.ops.serve",
        "add",
        "Run the platform: engine, API and dashboard, each a process that is started again when it dies.",
        goes_on=True,
    ),
    "run-engine": Place("service.cli.ops.serve", "add", "Run the engine alone.", hidden=True, goes_on=True),
    "run-api": Place("service.cli.ops.serve", "add", "Run the API alone.", hidden=True, goes_on=True),
    "agent": Place(
        "service.cli.ops.agent",
        "add",
        "Serve what the NVIDIA devices and the kernel of this machine say, in dcgm-exporter's names.",
        goes_on=True,
    ),
    "replay": Place(
        "service.cli.ops.replay", "add", "Run recorded pages through the same cycle at their own times.", goes_on=True
    ),
    "record": Place(
        "service.cli.ops.record",
        "add",
        "Record the pages of every target as they come; outrider replay reads the folder.",
        goes_on=True,
    ),
    "doctor": Place(
        "service.cli.ops.collect",
        "add_doctor",
        "Say which signals each target has, lacks or spells in an old way, and what that disables.",
    ),
    "probe": Place(
        "service.cli.ops.probe", "add", "Ask doors of services once; the answer is no when one of them fails."
    ),
    "config": Place("service.cli.ops.config", "app", "Write a configuration, check one."),
    "collect": Place("service.cli.ops.collect", "app", "Collect by hand."),
    "audit": Place("service.cli.ops.audit", "app", "Look for what will go wrong."),
    "alerts": Place("service.cli.incidents.alerts", "alerts_app", "Read alerts and act on them."),
    "incidents": Place("service.cli.incidents.alerts", "incidents_app", "Read incidents and their story."),
    "feedback": Place(
        "service.cli.incidents.feedback", "app", "Say which alerts were useful, and make rules better by it."
    ),
    "capacity": Place("service.cli.capacity.plan", "app", "How many GPUs, and when."),
    "slo": Place("service.cli.incidents.slo", "app", "What services promise, and when it burns."),
    "detect": Place("service.cli.evaluation.detect", "app", "Statistical detection on recordings."),
    "drill": Place(
        "service.cli.evaluation.drill", "app", "Break a simulated fleet on purpose and score what was seen."
    ),
    "knowledge": Place(
        "service.cli.incidents.knowledge", "app", "What is known of faults and of this fleet, as one graph."
    ),
    "rootcause": Place("service.cli.evaluation.rootcause", "app", "Which one thing is broken."),
    "forecast": Place("service.cli.evaluation.forecast", "app", "Forecasts."),
    "remediate": Place("service.cli.incidents.remediate", "app", "What Outrider did, would do, and asks for."),
    "report": Place("service.cli.ops.reports", "report_app", "Reports."),
    "notify": Place("service.cli.ops.reports", "notify_app", "Notification channels."),
    "db": Place("service.cli.ops.db", "app", "The database."),
}

app = typer.Typer(
    name="outrider",
    cls=lazy.group_of(PLACES),
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
    from service.config import revisions  # noqa: PLC0415 - with the database, what other commands do without
    from store import migrate  # noqa: PLC0415

    result = {
        "version": metadata.version("outrider"),
        "python": sys.version.split()[0],
        "database": revisions.text(migrate.revision(context.settings().store.url)),
    }
    context.show(
        result, lambda shown: f"outrider {shown['version']} (Python {shown['python']}, schema {shown['database']})"
    )


def main() -> None:
    """Run the command line and leave with its exit code."""
    entry.run(app)
