"""``outrider oncall``: schedules, who is on call, overrides."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

import typer

from alerts.oncall.roster import Roster
from outrider.clock import SystemClock, rfc3339
from outrider.errors import UsageError
from outrider.text.i18n import Language, translate
from service.cli.core import client, tables
from service.cli.core.common import ON_A_TERMINAL, Context, duration_of, instant_of, leaf
from service.oncall import view
from service.oncall.roster import RosterSource
from service.wiring import stores as wiring_stores

app = typer.Typer(help="Show who is on call, and change it for a time.", no_args_is_help=ON_A_TERMINAL)

At = Annotated[str | None, typer.Option("--at", help="Time, for example 2026-11-21T08:00:00Z. Default: now.")]


@leaf(app, "list", example="outrider oncall list --days 7 -o json")
def list_shifts(
    context: Context,
    days: Annotated[int, typer.Option("--days", min=1, max=92, help="Days of shifts to list.")] = 14,
    at: At = None,
) -> None:
    """List the shifts and gaps of every schedule."""
    span = timedelta(days=days)
    _show(context, at, lambda roster, start: view.shifts(roster, start, start + span))


@leaf(app, "who", example="outrider oncall who --at 2026-12-24T18:00:00Z -o json")
def who(context: Context, at: At = None) -> None:
    """Show who is on call in every schedule."""
    _show(context, at, view.who)


@leaf(app, "override", example="outrider oncall override --schedule model --person wang --for 4h --as li")
def override(
    context: Context,
    schedule: Annotated[str, typer.Option("--schedule", help="Name of the schedule.")],
    person: Annotated[str, typer.Option("--person", help="Name of the person who is on call instead.")],
    start: Annotated[str | None, typer.Option("--from", help="Start. Default: now.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="End, not included.")] = None,
    duration: Annotated[str | None, typer.Option("--for", help="Duration instead of an end, for example 4h.")] = None,
    user: Annotated[str, typer.Option("--as", help="Your name, for the audit log.")] = "",
) -> None:
    """Put another person on call for a time."""
    if (end is None) == (duration is None):
        raise UsageError("an override needs either --to or --for", hint="write for example --for 4h")
    first = instant_of("--from", start) if start is not None else SystemClock().now().replace(microsecond=0)
    last = first + duration_of("--for", duration) if duration is not None else instant_of("--to", end or "")
    body = {"schedule": schedule, "person": person, "start": rfc3339(first), "end": rfc3339(last)}
    context.show(client.write(context, "POST", "/oncall/overrides", body, user=user))


@leaf(app, "remove", example="outrider oncall remove 7c1d9f --as li")
def remove(
    context: Context,
    override_id: Annotated[str, typer.Argument(help="Id of the override.")],
    user: Annotated[str, typer.Option("--as", help="Your name, for the audit log.")] = "",
) -> None:
    """Remove an override."""
    context.show(client.write(context, "DELETE", f"/oncall/overrides/{quote(override_id, safe='')}", user=user))


def _show(context: Context, at: str | None, rows: Callable[[Roster, datetime], list[dict[str, Any]]]) -> None:
    settings, now = context.settings(), SystemClock().now()
    wanted = view.check_time(instant_of("--at", at), now) if at is not None else now
    with wiring_stores.state_reader(settings) as store:
        result = rows(RosterSource(settings.oncall, store)(wanted), wanted)
    context.show(result, lambda shown: _table(shown, context.language))


def _table(shifts: list[dict[str, Any]], language: Language) -> str:
    nobody = translate("cli.oncall_nobody", language)
    names = [translate(f"cli.oncall_{name}", language) for name in ("schedule", "person", "from", "to", "source")]
    rows = [
        (shift["schedule"], shift["person"] or nobody, shift["from"], shift["to"], shift["source"]) for shift in shifts
    ]
    return tables.table(names, rows, empty=translate("cli.oncall_none", language))
