"""``outrider replay``: recorded metrics pages through the same cycle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.errors import UsageError
from outrider.text import yaml_file
from outrider.text.i18n import Language, translate
from service.cli.core import tables
from service.cli.core.common import Context, leaf
from service.ops import replay as recorded


def add(app: typer.Typer) -> None:
    """Registers the command at the top level."""

    @leaf(app, "replay", example="outrider replay g_sigkill.metrics.jsonl.gz -o json")
    def replay(
        context: Context,
        file: Annotated[list[Path], typer.Argument(help="File *.metrics.jsonl.gz, or the folder of a recorded fleet.")],
        adapter: Annotated[str, typer.Option("--adapter", help="Adapter for the pages of a single file.")] = "vllm",
        emit: Annotated[
            str, typer.Option("--emit", help="Output: alerts, incidents, signals; separated by commas.")
        ] = "alerts,incidents",
    ) -> None:
        """Replay recorded metrics pages through the same cycle at their own timestamps."""
        wanted = emit.split(",")
        for name in wanted:
            if name not in recorded.EMITS:
                message = f"--emit: {name!r} is not known{yaml_file.near(name, recorded.EMITS)}"
                raise UsageError(message, hint=f"choose from {', '.join(recorded.EMITS)}")
        result = recorded.replay(
            file, adapter=adapter, emit=wanted, settings=context.settings(), language=context.language
        )
        for sentence in result["notes"]:
            typer.echo(f"note: {sentence}", err=True)
        context.show(result, lambda shown: _table(shown, context.language))


def _table(result: dict[str, Any], language: Language) -> str:
    between = {"start": result["from"], "end": result["to"]}
    head = translate("cli.replayed", language, cycles=result["cycles"], **between)
    seen = [tables.incidents(result["incidents"], language), tables.alerts(result["alerts"], language)]
    return "\n\n".join([head, *seen])
