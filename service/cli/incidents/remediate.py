"""``outrider remediate``: what Outrider did, would do, and asks for."""

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

app = typer.Typer(help="What Outrider did, would do, and asks for.", no_args_is_help=ON_A_TERMINAL)
_AHEAD = (ActionStatus.PROPOSED, ActionStatus.WAITING_APPROVAL, ActionStatus.INTENDED, ActionStatus.CLAIMED)

ActionId = Annotated[str, typer.Argument(help="id of the action")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="at most so many")]


@leaf(app, "list", example="outrider remediate list -o json")
def list_actions(context: Context, limit: Limit = 200) -> None:
    """List actions, newest first, refused ones with their reason."""
    with wiring_stores.state_reader(context.settings()) as store:
        found = store.actions(limit=limit)
    context.show(
        [serialization.action(action) for action in found], lambda shown: tables.actions(shown, context.language)
    )


@leaf(app, "plan", example="outrider remediate plan -o json")
def plan(context: Context) -> None:
    """List what is still to be done: proposed, waiting for a person, about to be performed."""
    with wiring_stores.state_reader(context.settings()) as store:
        found = store.actions(statuses=_AHEAD, limit=fleet_state.UNLIMITED)
    context.show(
        [serialization.action(action) for action in found], lambda shown: tables.actions(shown, context.language)
    )


@leaf(app, "approve", example="outrider remediate approve a-3f2a91c0")
def approve(context: Context, action: ActionId) -> None:
    """Let a waiting action be performed."""
    context.show(client.write(context, "POST", f"/actions/{quote(action, safe='')}/approve"))


@leaf(app, "reject", example="outrider remediate reject a-3f2a91c0")
def reject(context: Context, action: ActionId) -> None:
    """Turn a waiting action down."""
    context.show(client.write(context, "POST", f"/actions/{quote(action, safe='')}/reject"))


@leaf(app, "pause", example="outrider remediate pause")
def pause(context: Context) -> None:
    """Stop every action until ``resume``; detection and messages go on."""
    context.show(client.write(context, "POST", "/remediation/pause"))


@leaf(app, "resume", example="outrider remediate resume")
def resume(context: Context) -> None:
    """Let actions be decided again."""
    context.show(client.write(context, "POST", "/remediation/resume"))


@leaf(app, "audit", example="outrider remediate audit --limit 50 -o json")
def audit(context: Context, limit: Limit = 200) -> None:
    """Show the append-only record of decisions, newest first."""
    with wiring_stores.state_reader(context.settings()) as store:
        found = store.audit(limit=limit)
    context.show([serialization.audit(record) for record in found], lambda shown: tables.audit(shown, context.language))
