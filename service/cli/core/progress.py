"""Progress of long-running commands: bars on a terminal, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from outrider.clock import SystemClock
from outrider.text.i18n import translate
from service.cli.core.common import Context

_LINE_SECONDS = 10.0


@contextmanager
def bars(context: Context) -> Iterator[Callable[[str, float], None]]:
    """Shows one progress bar per stage on standard error; without a terminal a line for each tenth. Silent on request.

    Lines appear at most every ten seconds: short commands stay silent.
    """
    if context.progress and not sys.stderr.isatty():
        yield _Lines(context).report
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, disable=not context.progress or not sys.stderr.isatty()) as shown:

        def progress(stage: str, share: float) -> None:
            if stage not in tasks:
                tasks[stage] = shown.add_task(translate(f"cli.stage_{stage}", context.language), total=1.0)
            shown.update(tasks[stage], completed=share)

        yield progress


class _Lines:
    """Prints the progress of stages as lines."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._shown: dict[str, int] = {}
        self._clock = SystemClock()
        self._at = self._clock.monotonic()

    def report(self, stage: str, share: float) -> None:
        """Prints the stage if it passed another tenth and the last line is old enough."""
        tenth, now = int(share * 10 + 1e-9), self._clock.monotonic()
        if tenth > self._shown.get(stage, 0) and now - self._at >= _LINE_SECONDS:
            self._shown[stage], self._at = tenth, now
            name = translate(f"cli.stage_{stage}", self._context.language)
            sys.stderr.write(f"{name}: {tenth * 10} %\n")
            sys.stderr.flush()
