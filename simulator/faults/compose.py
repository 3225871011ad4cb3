"""Rules for faults that may be active together, and the reason for a conflict.

Different faults on one entity compose: their effects multiply, add up or set different values. Conflicts are: the same
fault twice on one entity at a time, faults that a file excludes, two faults that set one effect of the same entity,
and a fault on a part that another one has removed by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.clock import rfc3339
from outrider.model import EntityKind

if TYPE_CHECKING:
    from simulator.faults.base import Injection


def conflict(new: Injection, others: list[Injection]) -> str:
    """Returns the reason why ``new`` conflicts with ``others``; empty without a conflict."""
    for other in others:
        if not (new.truth.start < other.truth.end and other.truth.start < new.truth.end):
            continue
        reason = _same(new, other) or _removed(new, other) or _removed(other, new) or _contrary(new, other)
        if reason:
            return f"{reason} ({other.truth.fault} lasts until {rfc3339(other.truth.end)})"
    return ""


def _same(new: Injection, other: Injection) -> str:
    if new.truth.entity != other.truth.entity:
        return ""
    kind, name = new.entity.kind.value, new.entity.name
    if new.truth.fault == other.truth.fault:
        return f"{kind} {name} already has {other.truth.fault}"
    if other.truth.fault in new.declared.excludes or new.truth.fault in other.declared.excludes:
        return f"{kind} {name} cannot have {new.truth.fault} and {other.truth.fault} at once"
    return ""


def _removed(one: Injection, by: Injection) -> str:
    """Returns the reason if ``one`` starts on a part that ``by`` has removed by then. Pods are exempt: they move."""
    if one is by or not by.declared.removes or one.truth.start < by.truth.start:
        return ""
    fixed = one.entity.kind in (EntityKind.GPU, EntityKind.NODE) and one.entity in by.truth.touches
    if not fixed and by.entity.kind is not EntityKind.CLUSTER:
        return ""
    kind, name = one.entity.kind.value, one.entity.name
    return f"{kind} {name} is removed by {by.truth.fault} of {by.entity.name}: no target for {one.truth.fault}"


def _contrary(new: Injection, other: Injection) -> str:
    if new.truth.entity != other.truth.entity:
        return ""
    mine = {(effect.group, effect.effect_name) for effect in new.declared.effects if effect.do == "set"}
    theirs = {(effect.group, effect.effect_name) for effect in other.declared.effects if effect.do == "set"}
    both = sorted(mine & theirs)
    return f"both set {both[0][0]}.{both[0][1]} of {new.entity.name}" if both else ""
