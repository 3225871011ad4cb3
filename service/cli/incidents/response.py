"""``outrider incidents``: assign, comment, escalate, follow-ups."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any
from urllib.parse import quote

import typer

from outrider.clock import SystemClock
from outrider.errors import UsageError
from outrider.text.i18n import Language, translate
from service.cli.core import client, tables
from service.cli.core.common import Context, leaf
from service.oncall import view
from service.wiring import stores as wiring_stores

IncidentId = Annotated[str, typer.Argument(help="Incident id.")]
FollowUpId = Annotated[str, typer.Argument(help="Follow-up id.")]
User = Annotated[str, typer.Option("--as", help="Your name, for the audit log.")]
Owner = Annotated[str, typer.Option("--owner", help="Person or team that does it.")]
Due = Annotated[str, typer.Option("--due", help="Due date, for example 2026-11-28.")]


def add(app: typer.Typer) -> None:
    """Registers the commands."""

    @leaf(app, "assign", example="outrider incidents assign inc-20261121T0805-3f2a --to wang --as li")
    def assign(
        context: Context,
        incident: IncidentId,
        to: Annotated[str, typer.Option("--to", help="Name of the person; empty: nobody any more.")],
        user: User = "",
    ) -> None:
        """Assign an incident to a person, who is notified."""
        _write(context, incident, "assign", {"to": to}, user)

    @leaf(app, "comment", example="outrider incidents comment inc-20261121T0805-3f2a 'riser reseated' --as li")
    def comment(
        context: Context,
        incident: IncidentId,
        text: Annotated[str, typer.Argument(help="Text of the comment.")],
        user: User = "",
    ) -> None:
        """Comment an incident."""
        _write(context, incident, "comments", {"text": text}, user)

    @leaf(app, "escalate", example="outrider incidents escalate inc-20261121T0805-3f2a --as li")
    def escalate(context: Context, incident: IncidentId, user: User = "") -> None:
        """Notify the next person of the ladder now."""
        _write(context, incident, "escalate", None, user)

    @leaf(
        app,
        "follow-up",
        example="outrider incidents follow-up inc-20261121T0805-3f2a 'replace it' --owner hardware --due 2026-11-28",
    )
    def follow_up(
        context: Context,
        incident: IncidentId,
        text: Annotated[str, typer.Argument(help="What remains to be done.")],
        owner: Owner,
        due: Due,
        user: User = "",
    ) -> None:
        """Add a follow-up to an incident."""
        _write(context, incident, "follow-ups", {"text": text, "owner": owner, "due": _day(due)}, user)

    @leaf(app, "follow-ups", example="outrider incidents follow-ups --open -o json")
    def follow_ups(
        context: Context,
        open_only: Annotated[bool, typer.Option("--open", help="Open follow-ups only.")] = False,
        limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")] = 100,
    ) -> None:
        """List follow-ups, newest first."""
        with wiring_stores.state_reader(context.settings()) as store:
            selected = store.follow_ups(open_only=open_only, limit=limit)
        now = SystemClock().now()
        rows = [view.follow_up_json(item, now) for item in selected]
        context.show(rows, lambda shown: _table(shown, context.language))

    @leaf(app, "close-follow-up", example="outrider incidents close-follow-up 7c1d9f --as li")
    def close_follow_up(context: Context, follow_up_id: FollowUpId, user: User = "") -> None:
        """Close a follow-up."""
        path = f"/follow-ups/{quote(follow_up_id, safe='')}/close"
        context.show(client.write(context, "POST", path, user=user))


def _write(context: Context, incident: str, what: str, body: dict[str, Any] | None, user: str) -> None:
    context.show(client.write(context, "POST", f"/incidents/{quote(incident, safe='')}/{what}", body, user=user))


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise UsageError(f"--due: {text!r} is not a date", hint="write it as 2026-11-28") from error


def _table(follow_ups: list[dict[str, Any]], language: Language) -> str:
    def state(item: dict[str, Any]) -> str:
        name = "closed" if item["closed_at"] else "overdue" if item["overdue"] else "open"
        return translate(f"cli.follow_up_{name}", language)

    names = [translate(f"cli.follow_up_{name}", language) for name in ("id", "text", "owner", "due", "state")]
    rows = [(item["id"], item["text"], item["owner"], item["due"], state(item)) for item in follow_ups]
    return tables.table(names, rows, empty=translate("cli.follow_up_none", language))
