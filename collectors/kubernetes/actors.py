"""Author of a change to an object, from its annotations and managed fields. Pure.

``collectors/kubernetes/actors.yaml`` classifies field managers as systems or people's tools. A manager in neither
list is reported by name, with an unknown kind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from collectors.kubernetes.api import Json, items, mapping, text, texts
from outrider.records.change_log import ActorKind

ACTOR, CAUSE = "outrider.dev/actor", "kubernetes.io/change-cause"
_MOST_TEXT = 400


@dataclass(frozen=True, slots=True)
class Actor:
    """The author. ``cause`` is the author's stated reason, empty if none."""

    name: str = ""
    kind: ActorKind = ActorKind.UNKNOWN
    cause: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes for the event of the change."""
        attributes = {"actor": self.name, "actor_kind": "" if self.kind is ActorKind.UNKNOWN else self.kind.value}
        attributes["text"] = self.cause
        return {name: value for name, value in attributes.items() if value}


def managers(document: Json) -> dict[str, str]:
    """Every field manager of an object, by name, operation and subresource, with its last write time."""
    return {
        "|".join(text(entry.get(part)) for part in ("manager", "operation", "subresource")): text(entry.get("time"))
        for entry in items(mapping(document.get("metadata")).get("managedFields"))
    }


def actor_of(document: Json, touched: Sequence[str] = ("f:spec",), before: Json | None = None) -> Actor:
    """Last writer of one of the ``touched`` fields, in the spelling of ``fieldsV1``.

    ``before`` is the cached object, with its ``managers``: times have whole seconds, and of two writers in one second
    the new one is meant. The annotation ``outrider.dev/actor`` takes precedence, for pipelines that act on behalf of
    someone.
    """
    notes = texts(mapping(document.get("metadata")).get("annotations"))
    cause = notes.get(CAUSE, "")[:_MOST_TEXT]
    if notes.get(ACTOR):
        name = notes[ACTOR][:100]
        return Actor(name, kind_of(name, otherwise=ActorKind.PERSON), cause)
    known = mapping((before or {}).get("managers"))
    wrote = []
    for entry in items(mapping(document.get("metadata")).get("managedFields")):
        if entry.get("subresource") == "status" or not _touches(mapping(entry.get("fieldsV1")), touched):
            continue
        name, time = text(entry.get("manager")), text(entry.get("time"))
        key = "|".join((name, text(entry.get("operation")), text(entry.get("subresource"))))
        wrote.append((known.get(key) != time, time, name))
    manager = max(wrote, default=(False, "", ""))[2][:100]
    return Actor(manager, kind_of(manager), cause)


def kind_of(name: str, otherwise: ActorKind = ActorKind.UNKNOWN) -> ActorKind:
    """Kind of a name: a system or a person's tool."""
    systems, people = _lists()
    if systems.search(name):
        return ActorKind.SYSTEM
    return ActorKind.PERSON if people.search(name) else otherwise


def _touches(fields: Json, touched: Sequence[str]) -> bool:
    """True if an entry owns one of the fields: ``f:spec`` or a path such as ``f:metadata/f:labels``."""
    for path in touched:
        node = fields
        for part in path.split("/"):
            if part not in node:
                break
            node = mapping(node[part])
        else:
            return True
    return False


@cache
def _lists() -> tuple[re.Pattern[str], re.Pattern[str]]:
    table = yaml.safe_load(resources.files("collectors.kubernetes").joinpath("actors.yaml").read_text(encoding="utf-8"))
    return re.compile("|".join(table["systems"])), re.compile("|".join(table["people"]))
