"""Who changed an object: what its annotations and its managed fields say. Pure.

``collectors/kubernetes/actors.yaml`` tells which field managers are systems and which are the tools of people. What is in
neither list is told by its name, as of an unknown kind.
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
    """Who it was. ``cause`` is what the actor gave as the reason, empty when nothing."""

    name: str = ""
    kind: ActorKind = ActorKind.UNKNOWN
    cause: str = ""

    @property
    def attributes(self) -> dict[str, str]:
        """What goes into the event of the change."""
        told = {"actor": self.name, "actor_kind": "" if self.kind is ActorKind.UNKNOWN else self.kind.value}
        told["text"] = self.cause
        return {name: value for name, value in told.items() if value}


def managers(found: Json) -> dict[str, str]:
    """Every field manager of an object, by name, way and part, with when it last wrote."""
    return {
        "|".join(text(entry.get(part)) for part in ("manager", "operation", "subresource")): text(entry.get("time"))
        for entry in items(mapping(found.get("metadata")).get("managedFields"))
    }


def actor_of(found: Json, touched: Sequence[str] = ("f:spec",), before: Json | None = None) -> Actor:
    """Who last wrote one of the ``touched`` fields, as ``fieldsV1`` spells them.

    ``before`` is the object as it was kept, with its ``managers``: times count whole seconds, and of two writers
    in one second the new one is meant. The annotation ``outrider.dev/actor`` goes before, for pipelines that know
    on whose behalf they act.
    """
    notes = texts(mapping(found.get("metadata")).get("annotations"))
    cause = notes.get(CAUSE, "")[:_MOST_TEXT]
    if notes.get(ACTOR):
        name = notes[ACTOR][:100]
        return Actor(name, kind_of(name, otherwise=ActorKind.PERSON), cause)
    known = mapping((before or {}).get("managers"))
    wrote = []
    for entry in items(mapping(found.get("metadata")).get("managedFields")):
        if entry.get("subresource") == "status" or not _touches(mapping(entry.get("fieldsV1")), touched):
            continue
        name, time = text(entry.get("manager")), text(entry.get("time"))
        key = "|".join((name, text(entry.get("operation")), text(entry.get("subresource"))))
        wrote.append((known.get(key) != time, time, name))
    manager = max(wrote, default=(False, "", ""))[2][:100]
    return Actor(manager, kind_of(manager), cause)


def kind_of(name: str, otherwise: ActorKind = ActorKind.UNKNOWN) -> ActorKind:
    """Whether a name is known as that of a system or of a person's tool."""
    systems, people = _lists()
    if systems.search(name):
        return ActorKind.SYSTEM
    return ActorKind.PERSON if people.search(name) else otherwise


def _touches(fields: Json, touched: Sequence[str]) -> bool:
    """True when an entry owns one of the fields: ``f:spec`` or a path such as ``f:metadata/f:labels``."""
    for path in touched:
        found = fields
        for part in path.split("/"):
            if part not in found:
                break
            found = mapping(found[part])
        else:
            return True
    return False


@cache
def _lists() -> tuple[re.Pattern[str], re.Pattern[str]]:
    told = yaml.safe_load(resources.files("collectors.kubernetes").joinpath("actors.yaml").read_text(encoding="utf-8"))
    return re.compile("|".join(told["systems"])), re.compile("|".join(told["people"]))
