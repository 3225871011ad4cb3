"""``outrider notify``: test a channel, list and retry dead letters."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import quote

import typer

from outrider.clock import SystemClock
from outrider.documents import serialization
from outrider.errors import StoreError, UsageError
from outrider.text.i18n import translate
from service.cli.core import client, tables
from service.cli.core.common import NO, ON_A_TERMINAL, YES, Context, leaf
from service.runtime import channel_test
from service.wiring import stores as wiring_stores

app = typer.Typer(help="Test channels; list and retry undelivered messages.", no_args_is_help=ON_A_TERMINAL)
Channel = Annotated[str, typer.Argument(help="Name of the channel under notify.channels.")]
Limit = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")]
MessageId = Annotated[str | None, typer.Argument(metavar="ID", help="Message id, from outrider notify dead-letters.")]
All = Annotated[bool, typer.Option("--all", help="Retry all dead letters.")]
_MOST = 10_000


@leaf(app, "test", example="outrider notify test oncall")
def test(context: Context, channel: Channel) -> int:
    """Send a sample of each priority to a channel; SMS and calls get that of P0 only."""
    settings, installation = context.settings(), ""
    with suppress(StoreError), wiring_stores.state_reader(settings) as store:  # a channel can be tested without a store
        installation = store.installation()
    result = channel_test.run(settings, channel, context.language, SystemClock().now(), installation)
    context.show(result, lambda shown: _test_text(shown, context))
    return NO if result["error"] else YES


def _test_text(shown: dict[str, Any], context: Context) -> str:
    lines = [
        translate(
            f"cli.notify_sent_{sample['note'] or 'delivered'}",
            context.language,
            priority=sample["priority"],
            receipt=sample["receipt"] or "-",
        )
        for sample in shown["samples"]
    ]
    failed = [translate("cli.notify_failed", context.language, error=shown["error"])] if shown["error"] else []
    return "\n".join([*lines, *failed])


@leaf(app, "dead-letters", example="outrider notify dead-letters -o json")
def dead_letters(context: Context, limit: Limit = 200) -> None:
    """List messages that could not be delivered and are not retried any more, newest first."""
    with wiring_stores.state_reader(context.settings()) as store:
        letters = store.dead_letters(limit=limit)
    context.show(
        [serialization.dead_letter(letter) for letter in letters],
        lambda shown: tables.dead_letters(shown, context.language),
    )


@leaf(app, "retry", example="outrider notify retry inc-20261121T0805-3f2a:opened:P0:oncall:0")
def retry(context: Context, message: MessageId = None, every: All = False) -> None:
    """Send dead letters again."""
    if (message is None) != every:
        raise UsageError("retry needs one message id, or --all", hint="outrider notify dead-letters lists the ids")
    ids = [message] if message is not None else []
    if every:
        with wiring_stores.state_reader(context.settings()) as store:
            ids = [letter.message.id for letter in store.dead_letters(limit=_MOST)]
    for name in ids:
        client.write(context, "POST", f"/notifications/dead-letters/{quote(name, safe='')}/retry")
    context.show({"retried": ids}, lambda _: translate("cli.notify_retried", context.language, count=len(ids)))
