"""Resolves a component from user input: a key, ``kind/name``, a name, or a truncated long name. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from outrider.documents.summaries import LONG_NAME
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

HINT = (
    "write a component as cluster/kind/namespace/name, as kind/name, as a unique name, "
    "or as a unique prefix of a long name"
)
_OTHERS = "; faults, signals, actions and runbooks are given by name (list faults: outrider drill list)"
_TARGETS = "targets"  # namespace of scrape targets, which are named after their entity: "node-3" is the node
_LEAST = 6  # minimum prefix length of a truncated name
_CUTS = ("…", "...")
_OFFERED = 3


def component(topology: Topology, text: str, known: Iterable[str] = ()) -> EntityRef:
    """The component of a key, ``kind/name`` or name. Raises UsageError if there is none, or more than one.

    A truncated name is accepted as displayed, or as a unique prefix. ``known`` are names of other things that may have
    been meant.
    """
    for matches, how in (
        ([one for one in topology.entities if text in (one.key, str(one), f"{one.kind}/{one.name}")], "called"),
        (_but_pages([one for one in topology.entities if one.name == text]), "called"),
        ([one for one in topology.entities if _is_cut(one, text)], "shortened to"),
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            keys = sorted(one.key for one in matches)
            more = f" and {len(keys) - _OFFERED} more" if len(keys) > _OFFERED else ""
            listed = ", ".join(keys[:_OFFERED]) + more
            raise UsageError(f"{len(matches)} components are {how} {text!r}: {listed}", hint=HINT)
    others = tuple(known)
    raise _nothing(text, {*others, *(one.name for one in topology.entities)}, HINT + (_OTHERS if others else ""))


def _nothing(text: str, names: Iterable[str], hint: str) -> UsageError:
    """The error for an unknown name, with similar names."""
    whole: dict[str, str] = {}
    for name in sorted(names):
        if len(name) > LONG_NAME:
            whole[name[: len(text)]] = name
        whole[name] = name
    close = list(dict.fromkeys(whole[one] for one in difflib.get_close_matches(text, list(whole), n=_OFFERED)))
    offered = " or ".join(f'"{one}"' for one in close)
    return UsageError(f"{text!r} not found" + (f"; did you mean {offered}?" if close else ""), hint=hint)


def _but_pages(entities: list[EntityRef]) -> list[EntityRef]:
    others = [item for item in entities if (item.kind, item.namespace) != (EntityKind.WORKLOAD, _TARGETS)]
    return others or entities


def _is_cut(entity: EntityRef, text: str) -> bool:
    name = entity.name
    text = text.removeprefix(f"{entity.kind}/")
    if len(name) <= LONG_NAME or len(text) < _LEAST:
        return False
    cut = next((item for item in _CUTS if item in text), None)
    if cut is None:
        return name.startswith(text)
    head, _, tail = text.partition(cut)
    return name.startswith(head) and name.endswith(tail) and len(head) + len(tail) >= _LEAST
