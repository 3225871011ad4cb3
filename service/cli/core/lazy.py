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
class Place:
    """Location of a command. ``attribute``: a function that registers it, or the Typer of a group."""

    module: str
    attribute: str
    summary: str  # what the list of commands says; the command itself says more
    hidden: bool = False  # for our own processes, not for people
    goes_on: bool = False  # until it is stopped, with threads: what it needs is imported before they begin


def group_of(places: dict[str, Place]) -> type[TyperGroup]:
    """Group class with the commands of ``places`` and those registered on it."""

    class LazyGroup(TyperGroup):
        """Lists commands by summary and imports the one that runs."""

        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            for name, place in places.items():
                self.add_command(TyperCommand(name, help=place.summary, hidden=place.hidden))

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, command, rest = super().resolve_command(ctx, args)
            return name, load(name, places[name]) if name in places else command, rest

    return LazyGroup


def load(name: str, place: Place) -> Any:
    """The command itself. Imports its module."""
    if place.goes_on:
        found = getattr(importlib.import_module(place.module), place.attribute)
    else:
        with _later():
            found = getattr(importlib.import_module(place.module), place.attribute)
    root = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        root.add_typer(found, name=name)
    else:
        found(root)
    return get_group(root).commands[name]


class _Later(MetaPathFinder):
    """Defers execution of modules of ``service`` until first use, except those of the commands."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("service.") or f"{fullname}.".startswith("service.cli."):
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.loader is not None:
            found.loader = LazyLoader(found.loader)
        return found


@contextmanager
def _later() -> Iterator[None]:
    finder = _Later()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
