"""The command tree."""

from __future__ import annotations

import sys
from importlib import metadata

import typer

from service.cli.core import common, entry, lazy
from service.cli.core.common import Context, leaf
from service.cli.core.lazy import LazyCommand

COMMANDS = {
    "demo": LazyCommand(
        "service.cli.ops.demo",
        "add",
        "Run the whole loop on a simulated fleet: GPU lost, traffic surge, hung engine.",
        long_running=True,
    ),
    "serve": LazyCommand(
        "service.cli.ops.serve",
        "add",
        "Run the platform: engine, API and dashboard, each restarted if it exits.",
        long_running=True,
    ),
    "run-engine": LazyCommand("service.cli.ops.serve", "add", "Run the engine only.", hidden=True, long_running=True),
    "run-api": LazyCommand("service.cli.ops.serve", "add", "Run the API only.", hidden=True, long_running=True),
    "agent": LazyCommand(
        "service.cli.ops.agent",
        "add",
        "Serve metrics of local NVIDIA devices and the kernel log, in dcgm-exporter format.",
        long_running=True,
    ),
    "replay": LazyCommand(
        "service.cli.ops.replay",
        "add",
        "Replay recorded metrics pages through the same cycle at their own timestamps.",
        long_running=True,
    ),
    "record": LazyCommand(
        "service.cli.ops.record",
        "add",
        "Record the metrics pages of every target, for outrider replay.",
        long_running=True,
    ),
    "doctor": LazyCommand(
        "service.cli.ops.collect",
        "add_doctor",
        "Report available, missing and deprecated metrics per target, and the features affected.",
    ),
    "probe": LazyCommand("service.cli.ops.probe", "add", "Run all probes once. Exits 1 if any fails."),
    "config": LazyCommand("service.cli.ops.config", "app", "Create and validate the configuration."),
    "collect": LazyCommand("service.cli.ops.collect", "app", "Collect once, export recording rules, import history."),
    "audit": LazyCommand("service.cli.ops.audit", "app", "Audit workload manifests for misconfiguration."),
    "alerts": LazyCommand(
        "service.cli.incidents.alerts", "alerts_app", "List, acknowledge, resolve and silence alerts."
    ),
    "incidents": LazyCommand(
        "service.cli.incidents.alerts", "incidents_app", "List, show and assign incidents; comments and follow-ups."
    ),
    "oncall": LazyCommand("service.cli.incidents.oncall", "app", "Show who is on call, and change it for a time."),
    "rules": LazyCommand("service.cli.incidents.rules", "app", "List, test, import and export alert rules."),
    "feedback": LazyCommand(
        "service.cli.incidents.feedback", "app", "Record verdicts on alerts and tune rules with them."
    ),
    "capacity": LazyCommand(
        "service.cli.capacity.plan", "app", "Plan capacity: replicas and GPUs needed, start times, cost."
    ),
    "slo": LazyCommand("service.cli.incidents.slo", "app", "Manage SLOs."),
    "detect": LazyCommand("service.cli.evaluation.detect", "app", "Score detection on labeled recordings."),
    "drill": LazyCommand(
        "service.cli.evaluation.drill", "app", "Inject faults into a simulated fleet and score the response."
    ),
    "knowledge": LazyCommand(
        "service.cli.incidents.knowledge", "app", "Query the graph of known faults and this fleet."
    ),
    "rootcause": LazyCommand(
        "service.cli.evaluation.rootcause", "app", "Explain incidents and score root-cause ranking."
    ),
    "forecast": LazyCommand("service.cli.evaluation.forecast", "app", "Score forecasts."),
    "remediate": LazyCommand(
        "service.cli.incidents.remediate", "app", "List, approve and reject actions; pause remediation."
    ),
    "report": LazyCommand("service.cli.ops.reports", "report_app", "Write and send reports."),
    "notify": LazyCommand("service.cli.ops.notify", "app", "Test channels; list and retry undelivered messages."),
    "db": LazyCommand("service.cli.ops.db", "app", "Manage the databases."),
}

app = typer.Typer(
    name="outrider",
    cls=lazy.group_of(COMMANDS),
    no_args_is_help=common.ON_A_TERMINAL,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Monitors, plans and repairs clusters that serve large language models."""


@leaf(app, "version", example="outrider version -o json")
def version(context: Context) -> None:
    """Print the versions of the program, of Python and of the database schema."""
    from service.config import revisions  # noqa: PLC0415 - imports the database, not needed by other commands
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
    """Runs the command line and exits with its code."""
    entry.run(app)
