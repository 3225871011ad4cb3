"""A group whose commands are imported when one is called: ``--help`` and ``version`` load nothing of the rest."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is defined. ``attribute``: a function that registers it, or the Typer of a whole group."""

    module: str
    attribute: str
    summary: str  # what the list of commands says; the command itself says more
    hidden: bool = False  # for our own processes, not for people


def group_of(places: dict[str, Place]) -> type[TyperGroup]:
    """A kind of group that has the commands of ``places`` beside those registered on it."""

    class LazyGroup(TyperGroup):
        """Lists commands by their summary, and imports the one that is run."""

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
    found = getattr(importlib.import_module(place.module), place.attribute)
    root = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        root.add_typer(found, name=name)
    else:
        found(root)
    return get_group(root).commands[name]
