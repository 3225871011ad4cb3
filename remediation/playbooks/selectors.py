"""Targets of playbook steps, relative to the cause: which kinds of entities each selector can name."""

from __future__ import annotations

from typing import Literal, get_args

from outrider.model import TARGET_KINDS, ActionKind, EntityKind

Selector = Literal["self", "node", "replicas", "pods", "services", "changed_replicas"]
SELECTORS: tuple[Selector, ...] = get_args(Selector)
_REPLICAS = frozenset({EntityKind.REPLICA})
_KINDS: dict[str, frozenset[EntityKind]] = {
    "node": frozenset({EntityKind.NODE}),
    "replicas": _REPLICAS,
    "changed_replicas": _REPLICAS,
    "pods": _REPLICAS | {EntityKind.POD},  # a replica whose pods are unknown stands for them
    "services": frozenset({EntityKind.SERVICE}),
}
_WITHOUT_RELATIONS = frozenset({EntityKind.CLUSTER, EntityKind.POOL})  # fields of entities, not vertices of the graph
_BELOW_NODES = frozenset({EntityKind.SWITCH, EntityKind.STORAGE})


def kinds_selected(selector: Selector, cause: EntityKind) -> frozenset[EntityKind]:
    """The kinds of entities that a selector names for a cause of this kind; empty if it can name none."""
    if selector == "self":
        return frozenset({cause})
    if cause in _WITHOUT_RELATIONS or (selector == "node" and cause in _BELOW_NODES):
        return frozenset()
    return _KINDS[selector]


def fitting(action: ActionKind, cause: EntityKind) -> tuple[Selector, ...]:
    """The selectors whose targets an action can be performed on, for a cause of this kind."""
    allowed = TARGET_KINDS[action]
    return tuple(each for each in SELECTORS if (kinds := kinds_selected(each, cause)) and kinds <= allowed)


def mismatch(action: ActionKind, selector: Selector, fault: str, cause: EntityKind) -> str:
    """Why an action cannot be performed on the targets of a selector, and what fits; empty if it can."""
    known = fitting(action, cause)
    if selector in known:
        return ""
    selected = kinds_selected(selector, cause)
    given = f"is a {_joined(selected)}" if selected else "names nothing"
    expected = f"expected {' or '.join(known)}" if known else "no target fits"
    return f"{action} acts on a {_joined(TARGET_KINDS[action])}, but target {selector} of {fault} {given}; {expected}"


def _joined(kinds: frozenset[EntityKind]) -> str:
    return " or ".join(sorted(kinds))
