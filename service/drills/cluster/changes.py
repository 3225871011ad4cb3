"""Reversible changes of cluster objects. Pure: from objects to requests, and back.

Each change is plain data, kept in the drill's journal, so that another process can undo it after a kill. An undo only
touches values that still are the injected ones: what someone else changed meanwhile is theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.model import ActionRequest
from remediation.actuators.api_server import JSON_PATCH

DRILL = "outrider.io/drill"  # annotation of every changed object: the drill and the original values
TARGET = "outrider.io/drill-target"
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Value:
    """One value of an object, by JSON pointer. None: the key does not exist."""

    pointer: str
    original: Any
    injected: Any


@dataclass(frozen=True, slots=True)
class Edit:
    """Values of one object. ``subresource`` takes them, if not the object itself.

    ``holds``: the values are set again while the drill lasts, because their owner rewrites them.
    """

    path: str
    values: tuple[Value, ...]
    subresource: str = ""
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """A new object; the undo deletes it."""

    collection: str
    body: Json

    @property
    def path(self) -> str:
        """The path of the new object."""
        return f"{self.collection}/{self.body['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Evict:
    """An eviction, which its controller undoes."""

    path: str
    uid: str
    name: str
    namespace: str


Change = Edit | Create | Evict
_KINDS: Mapping[str, type[Edit | Create | Evict]] = {"edit": Edit, "create": Create, "evict": Evict}


@dataclass(frozen=True, slots=True)
class Journal:
    """A drill that may have changed objects: enough to restore them."""

    id: str
    fault: str
    until: str
    changes: tuple[Change, ...] = field(default_factory=tuple)

    def text(self) -> str:
        """The journal as JSON."""
        names = {kind: name for name, kind in _KINDS.items()}
        rows = [{"kind": names[type(change)], **asdict(change)} for change in self.changes]
        return json.dumps({"id": self.id, "fault": self.fault, "until": self.until, "changes": rows})

    @staticmethod
    def parse(text: str) -> Journal:
        """Reads the text of a journal."""
        document = json.loads(text)
        changes = tuple(_change(row) for row in document["changes"])
        return Journal(document["id"], document["fault"], document["until"], changes)


def _change(row: Json) -> Change:
    fields = {key: value for key, value in row.items() if key != "kind"}
    if row["kind"] == "edit":
        return Edit(**{**fields, "values": tuple(Value(**value) for value in fields["values"])})
    return _KINDS[row["kind"]](**fields)


def apply_requests(change: Change, journal: Journal, current: Json) -> list[ActionRequest]:
    """Requests that inject a change. ``current`` is the object of an edit."""
    if isinstance(change, Create):
        return [ActionRequest("POST", change.collection, change.body)]
    if isinstance(change, Evict):
        meta = {"name": change.name, "namespace": change.namespace}
        options = {"preconditions": {"uid": change.uid}, "gracePeriodSeconds": 0}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        return [ActionRequest("POST", f"{change.path}/eviction", body)]
    mark = _marking(current, _note(change, journal))
    operations = [
        operation for value in change.values for operation in _set(value.pointer, value.original, value.injected)
    ]
    if not change.subresource:
        return [ActionRequest("PATCH", change.path, [*operations, *mark], JSON_PATCH)]
    return [
        ActionRequest("PATCH", change.path, mark, JSON_PATCH),
        ActionRequest("PATCH", f"{change.path}/{change.subresource}", operations, JSON_PATCH),
    ]


def undo_requests(change: Change, current: Json) -> list[ActionRequest]:
    """Requests that undo a change on the object as it is now; none if nothing of it is left."""
    if isinstance(change, Evict) or not current:
        return []
    if isinstance(change, Create):
        return [deletion(change.path, current)]
    ours = [value for value in change.values if read(current, value.pointer) == value.injected]
    operations = [operation for value in ours for operation in _set(value.pointer, value.injected, value.original)]
    noted = DRILL in (current.get("metadata", {}).get("annotations") or {})
    clearing = [{"op": "remove", "path": f"/metadata/annotations/{_escaped(DRILL)}"}] if noted else []
    if not change.subresource:
        together = [*operations, *clearing]
        return [ActionRequest("PATCH", change.path, together, JSON_PATCH)] if together else []
    requests = []
    if operations:
        requests.append(ActionRequest("PATCH", f"{change.path}/{change.subresource}", operations, JSON_PATCH))
    if clearing:
        requests.append(ActionRequest("PATCH", change.path, clearing, JSON_PATCH))
    return requests


def deletion(path: str, current: Json) -> ActionRequest:
    """The request that deletes exactly this object."""
    preconditions = {"uid": current["metadata"]["uid"]}
    return ActionRequest("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions})


def hold_requests(change: Change, current: Json) -> list[ActionRequest]:
    """Requests that set a held value again which its owner rewrote."""
    if not isinstance(change, Edit) or not change.holds or not current:
        return []
    lost = [value for value in change.values if read(current, value.pointer) == value.original]
    operations = [operation for value in lost for operation in _set(value.pointer, value.original, value.injected)]
    path = f"{change.path}/{change.subresource}" if change.subresource else change.path
    return [ActionRequest("PATCH", path, operations, JSON_PATCH)] if operations else []


def read(document: Any, pointer: str) -> Any:
    """The value at a JSON pointer, None if it does not exist."""
    node = document
    for part in pointer.strip("/").split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Sequence) and not isinstance(node, str):
            node = node[int(key)] if key.isdigit() and int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, Mapping) else None
    return node


def pointer(*parts: str | int) -> str:
    """The JSON pointer of a path."""
    return "/" + "/".join(_escaped(str(part)) for part in parts)


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def _set(path: str, before: Any, after: Any) -> list[dict[str, Any]]:
    """Operations that replace a value only if it is as expected."""
    if before is None:
        return [{"op": "add", "path": path, "value": after}]
    test = {"op": "test", "path": path, "value": before}
    if after is None:
        return [test, {"op": "remove", "path": path}]
    return [test, {"op": "replace", "path": path, "value": after}]


def _note(change: Edit, journal: Journal) -> str:
    originals = {value.pointer: value.original for value in change.values}
    return json.dumps({"id": journal.id, "fault": journal.fault, "until": journal.until, "original": originals})


def _marking(current: Json, note: str) -> list[dict[str, Any]]:
    """Operations that add our annotation; a JSON patch cannot add a key to a missing map."""
    if (current.get("metadata") or {}).get("annotations") is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {DRILL: note}}]
    return [{"op": "add", "path": f"/metadata/annotations/{_escaped(DRILL)}", "value": note}]
