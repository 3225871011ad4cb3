"""Diverted values of one object: the former value of each, and the sessions that hold it at another one.

The record is an annotation of the changed object, so that it ends with the object and survives a restart of Outrider.
A value is a *slot*: a weight, a label, a part of the spec. Several sessions may hold one slot; the lowest weight of
them is in force. The last one that gives it up restores the former value, unless somebody else changed it meanwhile.
Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider.model import Action, ActionRequest
from remediation.actuators.api_server import JSON_PATCH
from remediation.actuators.kubernetes.change import refused
from remediation.actuators.kubernetes.ownership import (
    ACTION,
    INCIDENT,
    OWNER,
    SESSION,
    Json,
    label_value,
    marks,
    metadata,
)

TRAFFIC = "outrider.io/traffic"
_METADATA = ("labels", "annotations")


@dataclass(frozen=True, slots=True)
class Slot:
    """One value of an object: ``value`` at the JSON pointer ``pointer``, None if absent."""

    pointer: str
    value: Any


@dataclass(frozen=True, slots=True)
class Layer:
    """The value that one session has set for one target."""

    session: str
    target: str
    action: str
    incident: str
    value: Any

    def belongs_to(self, action: Action) -> bool:
        """True if the session of the action set it for the same target."""
        return self.session == action.session and self.target == action.target.key


@dataclass(frozen=True, slots=True)
class Diversion:
    """A slot's ``former`` value, and the layers above it, oldest first."""

    former: Any
    layers: tuple[Layer, ...]

    @property
    def value(self) -> Any:
        """The value in force: the lowest weight of all layers, else the newest value."""
        values = [layer.value for layer in self.layers]
        if not values:
            return self.former
        return min(values) if all(isinstance(value, int) for value in values) else values[-1]

    def without(self, target: str) -> Diversion:
        """The diversion without the layers for a target."""
        return replace(self, layers=tuple(layer for layer in self.layers if layer.target != target))

    def layer_of(self, action: Action) -> Layer | None:
        """The layer of the action's session and target, None without one."""
        return next((layer for layer in self.layers if layer.belongs_to(action)), None)


@dataclass(frozen=True, slots=True)
class Edit:
    """Values to write by slot, the record afterwards, and a sentence for each slot that stays as it is."""

    values: Mapping[str, Any]
    diversions: Mapping[str, Diversion]
    notes: tuple[str, ...] = ()
    changed: bool = True


def diversions_of(document: Json) -> dict[str, Diversion]:
    """Returns the record of an object, empty without one. Raises ActuationError if it cannot be read."""
    text = (metadata(document).get("annotations") or {}).get(TRAFFIC)
    if not text:
        return {}
    try:
        return {
            slot: Diversion(entry["former"], tuple(Layer(**layer) for layer in entry["layers"]))
            for slot, entry in json.loads(text).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        name = metadata(document).get("name")
        raise refused(f"the annotation {TRAFFIC} of {name} cannot be read", "restore its traffic by hand") from error


def divert(
    document: Json, slots: Mapping[str, Slot], wanted: Mapping[str, Any], action: Action, *, supersede: bool = False
) -> Edit:
    """Returns the edit that sets ``wanted`` values for the action; ``supersede`` replaces those of earlier sessions.

    A repeated action changes nothing. With ``undo: none`` the values become the full ones, and no layer stays. A value
    that someone else set already stays theirs. Raises ActuationError for a slot that was changed by hand after one of
    our actions.
    """
    record = diversions_of(document)
    values: dict[str, Any] = {}
    notes = []
    changed = False
    for slot, value in wanted.items():
        current, diversion = slots[slot].value, record.get(slot)
        own = diversion.layer_of(action) if diversion else None
        edited = diversion is not None and current != diversion.value
        if own is not None and own.action == action.id:
            notes += [f"{slot} was changed by hand to {_shown(current)}; it stays"] if edited else []
            continue
        if diversion is None and current == value:
            notes.append(f"{slot} is {_shown(value)} already")
            continue
        if edited:
            raise refused(
                f"{slot} was changed by hand to {_shown(current)}; it stays",
                "agree with whoever changed it, and restore the traffic by hand",
            )
        layer = Layer(action.session, action.target.key, action.id, action.because, value)
        earlier = diversion.layers if diversion else ()
        replaced = _same if supersede else Layer.belongs_to
        kept = tuple(other for other in earlier if not replaced(other, action))
        record[slot] = Diversion(diversion.former if diversion else current, (*kept, layer))
        changed = True
        if record[slot].value != current:
            values[slot] = record[slot].value
    return Edit(values, _settled(record, action), tuple(notes), changed)


def give_up(document: Json, slots: Mapping[str, Slot], action: Action) -> Edit:
    """Returns the edit that removes the layers of the action's session and target.

    Values that somebody else changed meanwhile stay. Raises ActuationError if only other sessions divert the target.
    """
    record = diversions_of(document)
    if not any(diversion.layer_of(action) for diversion in record.values()):
        others = {layer.session for diversion in record.values() for layer in diversion.layers if _same(layer, action)}
        if others:
            name = action.target.name
            raise refused(f"traffic of {name} was shifted by another session", "it is restored when that session ends")
        return Edit({}, record, changed=False)
    values: dict[str, Any] = {}
    notes = []
    for slot, diversion in list(record.items()):
        if diversion.layer_of(action) is None:
            continue
        left = replace(diversion, layers=tuple(layer for layer in diversion.layers if not layer.belongs_to(action)))
        if left.layers:
            record[slot] = left
        else:
            del record[slot]
        if slot not in slots:
            notes.append(f"{slot} no longer exists")
        elif slots[slot].value != diversion.value:
            notes.append(f"{slot} was changed by hand to {_shown(slots[slot].value)}; it stays")
        elif left.value != diversion.value:
            values[slot] = left.value
    return Edit(values, record, tuple(notes))


def _settled(record: dict[str, Diversion], action: Action) -> dict[str, Diversion]:
    """The record without the action's layers if its values stay for good; they are then the former ones of others."""
    if action.params.get("undo") != "none":
        return record
    settled = {}
    for slot, diversion in record.items():
        own = diversion.layer_of(action)
        left = tuple(layer for layer in diversion.layers if layer is not own)
        if left:
            settled[slot] = Diversion(diversion.former if own is None else own.value, left)
    return settled


def request(document: Json, path: str, slots: Mapping[str, Slot], edit: Edit, action: Action) -> ActionRequest:
    """Returns the JSON patch of an edit, valid only for the version that was read."""
    meta = metadata(document)
    maps = {part: dict(meta.get(part) or {}) for part in _METADATA}
    operations: list[dict[str, Any]] = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta.get("resourceVersion")}
    ]
    for slot, value in edit.values.items():
        _, first, part, *rest = slots[slot].pointer.split("/", 3)
        if first == "metadata":
            _put(maps[part], _unescaped(rest[0]), value)
        else:
            operations += _operations(document, slots[slot], value)
    _mark(maps, edit.diversions, action)
    changed = (part for part in _METADATA if maps[part] != dict(meta.get(part) or {}))
    operations += [{"op": "add", "path": f"/metadata/{part}", "value": maps[part]} for part in changed]
    return ActionRequest("PATCH", path, operations, JSON_PATCH)


def pointer(*parts: str | int) -> str:
    """Returns the JSON pointer of a path (RFC 6901)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def arrow(slot: str, before: Any, after: Any) -> str:
    """Returns a change as a phrase."""
    return f"{slot} {_shown(before)} -> {_shown(after)}"


def _mark(maps: dict[str, dict[str, str]], record: Mapping[str, Diversion], action: Action) -> None:
    """Sets our marks and the record; without a diversion removes them. The newest layer names the session."""
    layers = [layer for diversion in record.values() for layer in diversion.layers]
    if not layers:
        for key in (OWNER, SESSION, INCIDENT):
            maps["labels"].pop(key, None)
        for key in (ACTION, TRAFFIC):
            maps["annotations"].pop(key, None)
        return
    newest = next((layer for layer in layers if layer.action == action.id), layers[-1])
    ours = marks(action)
    maps["labels"] |= ours["labels"] | {
        SESSION: label_value(newest.session), INCIDENT: label_value(newest.incident)
    }  # fmt: skip
    maps["annotations"] |= {ACTION: newest.action, TRAFFIC: _text(record)}


def _text(record: Mapping[str, Diversion]) -> str:
    return json.dumps({slot: asdict(diversion) for slot, diversion in record.items()}, separators=(",", ":"))


def _operations(document: Json, slot: Slot, value: Any) -> list[dict[str, Any]]:
    """Sets or removes a value; creates a missing parent object, and removes one that becomes empty."""
    parent, _, key = slot.pointer.rpartition("/")
    around = _at(document, parent)
    if value is None:
        alone = isinstance(around, Mapping) and set(around) == {_unescaped(key)}
        return [{"op": "remove", "path": parent if alone else slot.pointer}]
    if around is None:
        return [{"op": "add", "path": parent, "value": {_unescaped(key): value}}]
    return [{"op": "add", "path": slot.pointer, "value": value}]


def _at(document: Any, path: str) -> Any:
    node = document
    for part in path.split("/")[1:]:
        if isinstance(node, Mapping):
            node = node.get(_unescaped(part))
        elif isinstance(node, Sequence) and not isinstance(node, str):
            node = node[int(part)]
        else:
            return None
    return node


def _put(values: dict[str, str], key: str, value: Any) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = str(value)


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _same(layer: Layer, action: Action) -> bool:
    return layer.target == action.target.key


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    return json.dumps(value) if isinstance(value, dict) else str(value)
