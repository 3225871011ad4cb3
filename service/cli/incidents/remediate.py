"""``outrider remediate``: list, plan, approve, reject, pause, audit."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from outrider.documents import serialization
from outrider.model import ActionStatus
from service.cli.core import client, tables
from service.cli.core.common import ON_A_TERMINAL, Context, leaf
from service.engine import fleet_state
from service.wiring import stores as wiring_stores

app = typer.Typer(help="List, approve, reject and pause remediation actions.", no_args_is_help=ON_A_TERMINAL)
_AHEAD = (ActionStatus.PROPOSED, ActionStatus.WAITING_APPROVAL, ActionStatus.INTENDED, ActionStatus.CLAIMED)

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


@leaf(app, "plan", example="outrider remediate plan -o json")
def plan(context: Context) -> None:
    """List pending actions: proposed, waiting for approval, about to run."""
    with wiring_stores.state_reader(context.settings()) as store:
        pending = store.actions(statuses=_AHEAD, limit=fleet_state.UNLIMITED)
    context.show(
        [serialization.action(action) for action in pending], lambda shown: tables.actions(shown, context.language)
    )


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
