"""Command groups that import a command only when it is called.

``--help`` and ``version`` import no command. The help of a command, and an option that it rejects, import its
signature but no stores, clients or models.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """Import path of a command. ``attribute``: a function that registers it, or the Typer of a group."""

    module: str
    attribute: str
    summary: str  # shown in the list of commands
    hidden: bool = False  # for internal processes
    long_running: bool = False  # runs with threads until stopped: imports everything at once


def group_of(commands: dict[str, LazyCommand]) -> type[TyperGroup]:
    """Group class with the commands of ``places`` and those registered on it."""

    class LazyGroup(TyperGroup):
        """Lists commands by summary and imports the one that runs."""

        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for name, entry in commands.items():
                self.add_command(TyperCommand(name, help=entry.summary, hidden=entry.hidden))

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, command, rest = super().resolve_command(ctx, args)
            return name, load(name, commands[name]) if name in commands else command, rest

    return LazyGroup


def load(name: str, entry: LazyCommand) -> Any:
    """The command itself. Imports its module."""
    if entry.long_running:
        target = getattr(importlib.import_module(entry.module), entry.attribute)
    else:
        with _deferred_imports():
            target = getattr(importlib.import_module(entry.module), entry.attribute)
    root = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if isinstance(target, typer.Typer):
        root.add_typer(target, name=name)
    else:
        target(root)
    return get_group(root).commands[name]


class _DeferredImports(MetaPathFinder):
    """Defers execution of modules of ``service`` until first use, except those of the commands."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("service.") or f"{fullname}.".startswith("service.cli."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def _deferred_imports() -> Iterator[None]:
    finder = _DeferredImports()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
