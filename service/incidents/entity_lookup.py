"""Entities that a person names in a command."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.errors import UsageError
from outrider.model import EntityRef


def named(entities: Iterable[EntityRef], text: str) -> list[EntityRef]:
    """Returns the entities of a key, ``kind/name``, ``namespace/name`` or name, by key."""
    matching = (entity for entity in entities if text in (entity.key, str(entity), entity.name, _in_namespace(entity)))
    return sorted(matching, key=lambda entity: entity.key)


def only(matching: list[EntityRef], text: str, noun: str) -> EntityRef:
    """Returns the only entity of a name. Raises UsageError for several. ``noun`` is their plural."""
    if len(matching) > 1:
        keys = ", ".join(entity.key for entity in matching[:5])
        raise UsageError(f"{text!r} names {len(matching)} {noun}: {keys}", hint="give the whole key")
    return matching[0]


def _in_namespace(entity: EntityRef) -> str:
    return f"{entity.namespace or ''}/{entity.name}"
