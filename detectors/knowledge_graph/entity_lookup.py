"""Which component somebody means by what they wrote: a key, ``kind/name``, a name, or a long name cut short. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from outrider.documents.summaries import LONG_NAME
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology

HINT = (
    "write a component as cluster/kind/namespace/name, as kind/name, by a name that only one has, "
    "or a long name by its beginning"
)
_OTHERS = "; faults, signals, actions and runbooks go by their own names (outrider drill list shows the faults)"
_TARGETS = "targets"  # namespace of scraped pages, each called after what it tells of: "node-3" is the node
_LEAST = 6  # characters of a long name's beginning: fewer are more likely a slip than a name
_CUTS = ("…", "...")
_OFFERED = 3


def component(topology: Topology, text: str, known: Iterable[str] = ()) -> EntityRef:
    """The component of that key, ``kind/name`` or name. Raises UsageError when it is none, or not one alone.

    A name too long to be shown whole may be given as it is shown, or by its beginning where only one begins so.
    ``known`` are names of other things than components that may have been meant.
    """
    for found, how in (
        ([one for one in topology.entities if text in (one.key, str(one), f"{one.kind}/{one.name}")], "called"),
        (_but_pages([one for one in topology.entities if one.name == text]), "called"),
        ([one for one in topology.entities if _is_cut(one, text)], "shortened to"),
    ):
        if len(found) == 1:
            return found[0]
        if found:
            keys = sorted(one.key for one in found)
            more = f" and {len(keys) - _OFFERED} more" if len(keys) > _OFFERED else ""
            listed = ", ".join(keys[:_OFFERED]) + more
            raise UsageError(f"{len(found)} components are {how} {text!r}: {listed}", hint=HINT)
    others = tuple(known)
    raise _nothing(text, {*others, *(one.name for one in topology.entities)}, HINT + (_OTHERS if others else ""))


def _nothing(text: str, names: Iterable[str], hint: str) -> UsageError:
    """The error for a name that nothing bears, with what is close to it; of a long name its beginning counts too."""
    whole: dict[str, str] = {}
    for name in sorted(names):
        if len(name) > LONG_NAME:
            whole[name[: len(text)]] = name
        whole[name] = name
    close = list(dict.fromkeys(whole[one] for one in difflib.get_close_matches(text, list(whole), n=_OFFERED)))
    offered = " or ".join(f'"{one}"' for one in close)
    return UsageError(f"nothing is called {text!r}" + (f"; did you mean {offered}?" if close else ""), hint=hint)


def _but_pages(found: list[EntityRef]) -> list[EntityRef]:
    others = [one for one in found if (one.kind, one.namespace) != (EntityKind.WORKLOAD, _TARGETS)]
    return others or found


def _is_cut(entity: EntityRef, text: str) -> bool:
    name = entity.name
    text = text.removeprefix(f"{entity.kind}/")
    if len(name) <= LONG_NAME or len(text) < _LEAST:
        return False
    cut = next((one for one in _CUTS if one in text), None)
    if cut is None:
        return name.startswith(text)
    head, _, tail = text.partition(cut)
    return name.startswith(head) and name.endswith(tail) and len(head) + len(tail) >= _LEAST
