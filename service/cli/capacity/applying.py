"""Options ``--apply`` and ``--yes`` of commands that render Kubernetes documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from outrider.clock import SystemClock
from outrider.errors import UsageError
from outrider.text.i18n import translate
from service.cli.core.common import Context
from service.scaling import applying
from service.wiring import stores as wiring_stores

Apply = Annotated[
    bool,
    typer.Option(
        "--apply", help="Apply the documents through planner.scaling.kubernetes; without --yes a server-side dry run."
    ),
]
Confirmed = Annotated[bool, typer.Option("--yes", help="Execute --apply; without this option it is a dry run.")]


def checked(*, apply: bool, yes: bool) -> None:
    """Raises UsageError for ``--yes`` without ``--apply``."""
    if yes and not apply:
        raise UsageError("--yes requires --apply", hint="add --apply, or omit --yes")


def apply(context: Context, documents: Sequence[Mapping[str, Any]], *, yes: bool) -> list[dict[str, Any]]:
    """Applies documents, or shows what would change. Raises UsageError and UnavailableError."""
    settings = context.settings()
    if not yes:
        return applying.preview(settings, documents)
    with wiring_stores.stores(settings) as (state, _):
        return applying.apply(settings, state, documents, SystemClock().now())


def lines(context: Context, applied: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line and the differences of each object."""
    texts = []
    for each in applied:
        key = f"cli.apply_{'would_' if each['dry_run'] else ''}{each['result']}"
        texts.append(translate(key, context.language, object=each["object"]))
        texts += [f"  {line}" for line in each["diff"].splitlines()]
    if applied and applied[0]["dry_run"]:
        texts.append(translate("cli.apply_confirm", context.language))
    return texts
