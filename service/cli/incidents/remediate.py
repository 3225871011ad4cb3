"""``outrider remediate``: list, plan, approve, reject, pause, audit."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from outrider.documents import serialization
from outrider.documents.summaries import word
from outrider.errors import UsageError
from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import format_duration
from service.cli.core import client, tables
from service.cli.core.common import ON_A_TERMINAL, Context, leaf
from service.incidents.remediation_preview import RemediationPreview, step_document
from service.wiring import remediation as wiring_remediation
from service.wiring import stores as wiring_stores

app = typer.Typer(help="List, approve, reject and pause remediation actions.", no_args_is_help=ON_A_TERMINAL)

Fault = Annotated[str | None, typer.Option("--fault", help="Fault id of the vocabulary, for example gpu-lost.")]
Entity = Annotated[
    str | None, typer.Option("--entity", help="Faulty entity: its name, kind/name or cluster/kind/namespace/name.")
]
ActionId = Annotated[str, typer.Argument(help="Action id.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")]


@leaf(app, "list", example="outrider remediate list -o json")
def list_actions(context: Context, limit: Limit = 200) -> None:
    """List actions, newest first, including refused ones with the reason."""
    with wiring_stores.state_reader(context.settings()) as store:
        selected = store.actions(limit=limit)
    context.show(
        [serialization.action(action) for action in selected], lambda shown: tables.actions(shown, context.language)
    )


@leaf(app, "plan", example="outrider remediate plan --fault gpu-lost --entity node-3 -o json")
def plan(context: Context, fault: Fault = None, entity: Entity = None) -> None:
    """Show the steps for open incidents, or for a named fault, with each guard's answer and the exact requests."""
    if (fault is None) != (entity is None):
        raise UsageError("--fault and --entity belong together", hint="outrider remediate plan --fault F --entity E")
    settings = context.settings()
    with wiring_stores.stores(settings) as (state, metrics):
        preview = RemediationPreview(
            state,
            metrics,
            wiring_remediation.actuator(settings),
            wiring_remediation.policy(settings),
            settings.collect.interval,
        )
        planned = preview.of_fault(fault, entity) if fault and entity else preview.of_open_incidents()
    context.show(
        [
            serialization.planned_action(row.action, row.guards, row.requests, row.error)
            | step_document(row.step, row.missing)
            for row in planned
        ],
        lambda shown: _steps(shown, context.language),
    )


def _steps(shown: list[dict[str, Any]], language: Language) -> str:
    """Each action with the objections of its guards and its requests."""
    if not shown:
        return translate("cli.no_steps", language)
    blocks = []
    for row in shown:
        lines = [tables.actions([row], language)]
        lines += [
            f"  {answer['name']}: {word('decision_reason', answer['reason'], language)}"
            for answer in row["guards"]
            if answer["verdict"] != "allowed"
        ]
        lines += _conditions(row, language)
        for request in row["requests"]:
            lines += [f"  {request['method']} {request['url']}", f"    {json.dumps(request['body'])}"]
        if row["error"]:
            lines.append(f"  {row['error']}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _conditions(row: dict[str, Any], language: Language) -> list[str]:
    """Preconditions and the check of a step."""
    lines = [
        translate(
            "cli.step_missing" if check == row["missing"] else "cli.step_requires",
            language,
            check=_name(check, language),
        )
        for check in row["require"]
    ]
    if row["verify"]:
        after = format_duration(row["timeout_seconds"])
        lines.append(translate("cli.step_verifies", language, check=_name(row["verify"], language), after=after))
    return [f"  {line}" for line in lines]


def _name(check: str, language: Language) -> str:
    name, _, value = check.partition(" ")
    return f"{word('condition', name, language)} {value}".strip()


@leaf(app, "approve", example="outrider remediate approve a-3f2a91c0")
def approve(context: Context, action: ActionId) -> None:
    """Approve a waiting action."""
    context.show(client.write(context, "POST", f"/actions/{quote(action, safe='')}/approve"))


@leaf(app, "reject", example="outrider remediate reject a-3f2a91c0")
def reject(context: Context, action: ActionId) -> None:
    """Reject a waiting action."""
    context.show(client.write(context, "POST", f"/actions/{quote(action, safe='')}/reject"))


@leaf(app, "pause", example="outrider remediate pause")
def pause(context: Context) -> None:
    """Pause all actions until ``resume``; detection and notifications continue."""
    context.show(client.write(context, "POST", "/remediation/pause"))


@leaf(app, "resume", example="outrider remediate resume")
def resume(context: Context) -> None:
    """Resume actions after ``pause``."""
    context.show(client.write(context, "POST", "/remediation/resume"))


@leaf(app, "audit", example="outrider remediate audit --limit 50 -o json")
def audit(context: Context, limit: Limit = 200) -> None:
    """Show the audit log of decisions, newest first."""
    with wiring_stores.state_reader(context.settings()) as store:
        records = store.audit(limit=limit)
    context.show(
        [serialization.audit(record) for record in records], lambda shown: tables.audit(shown, context.language)
    )
