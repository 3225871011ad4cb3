"""``outrider audit``: misconfigured workloads of model services."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from collectors.kubernetes.audit import Severity
from outrider.clock import SystemClock
from outrider.text.i18n import translate
from service.cli.core import common, tables
from service.cli.core.common import ON_A_TERMINAL, Context, leaf
from service.ops import workload_audits

app = typer.Typer(help="Audit workload manifests for misconfiguration.", no_args_is_help=ON_A_TERMINAL)


@leaf(app, "workloads", example="outrider audit workloads --config outrider.yaml")
def workloads(context: Context) -> int:
    """Audit the workloads of the configured clusters once. Exits 1 if one violates a rule of high severity."""
    result = asyncio.run(workload_audits.once(context.settings(), SystemClock().now(), context.language))
    context.show(result, lambda shown: _table(shown, context))
    severe = any(item["severity"] == Severity.HIGH.value for item in result["findings"])
    return common.NO if severe else common.YES


def _table(result: dict[str, Any], context: Context) -> str:
    rows = [
        [
            translate(f"audit.severity.{item['severity']}", context.language),
            f"{item['namespace']}/{item['workload']}",
            item["rule"],
            item["found"],
            item["do"],
        ]
        for item in result["findings"]
    ]
    return tables.table(["severity", "workload", "rule", "finding", "fix"], rows, empty="no findings")
