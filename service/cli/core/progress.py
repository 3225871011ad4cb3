"""Progress bars of long-running commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from outrider.text.i18n import translate
from service.cli.core.common import Context


@contextmanager
def bars(context: Context) -> Iterator[Callable[[str, float], None]]:
    """Shows one progress bar per stage on standard error. Silent on request or without a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not context.progress or not sys.stderr.isatty()) as shown:

        def progress(stage: str, share: float) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(translate(f"cli.stage_{stage}", context.language), total=1.0)
            shown.update(tasks[stage], completed=share)

        yield progress
