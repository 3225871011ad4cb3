"""All known faults, and ``inject``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.model import EntityRef
from simulator.faults.base import Injection, Truth
from simulator.faults.compose import conflict
from simulator.faults.definition import FaultDefinition
from simulator.faults.loader import load
from simulator.faults.needs import unmet
from simulator.faults.scope import choose, fleet_entities, scope_of

if TYPE_CHECKING:
    from simulator.fleet import Fleet


class _Catalogue(Mapping[str, FaultDefinition]):
    """Fault files by id, read on first use."""

    def __getitem__(self, fault: str) -> FaultDefinition:
        return _loaded()[fault]

    def __iter__(self) -> Iterator[str]:
        return iter(_loaded())

    def __len__(self) -> int:
        return len(_loaded())


@cache
def _loaded() -> dict[str, FaultDefinition]:
    return load()


FAULTS: Mapping[str, FaultDefinition] = _Catalogue()


def inject(
    fleet: Fleet,
    fault: str,
    entity: EntityRef | str | None = None,
    start: datetime | None = None,
    duration: timedelta | None = None,
    seed: int = 0,
) -> Truth:
    """Plans a fault and returns its ground truth; the fault is then the last of ``injections_of``.

    If ``entity`` is None, ``seed`` chooses among the entities on which the fault has an impact; a string is an entity's
    name. ``start`` defaults to now, ``duration`` to the fault's own. Raises UsageError for an unknown fault or entity,
    with near matches, and for a fault that conflicts with another one or lacks a precondition, with the reason.
    """
    declared = FAULTS.get(fault)
    if declared is None:
        raise UsageError(f"unknown fault {fault!r}", hint=_near(fault, list(FAULTS)))
    if duration is not None and duration <= timedelta(0):
        raise UsageError("the duration of a fault must be more than 0 s", hint="give a positive duration such as 5m")
    begin = fleet.now if start is None else start
    if begin < fleet.now:
        raise UsageError(f"{rfc3339(begin)} is before the fleet's time", hint=f"start at {rfc3339(fleet.now)} or later")
    chosen = _choose(fleet, declared, seed) if entity is None else _find(fleet, declared, entity)
    lasts = declared.lasts if duration is None else duration
    injection = Injection(fleet, declared, chosen, begin, lasts, seed)
    _refuse(fleet, injection)
    fleet.injections.append(injection)
    return injection.truth


def injections_of(fleet: Fleet) -> list[Injection]:
    """Returns the planned and active faults of a fleet, in order of their injection."""
    return [fault for fault in fleet.injections if isinstance(fault, Injection)]


def _refuse(fleet: Fleet, new: Injection) -> None:
    """Raises UsageError with the reason if the fault cannot be injected."""
    reason = conflict(new, injections_of(fleet))
    if reason:
        raise UsageError(reason, hint="choose another entity, or a time after the other fault's end")
    missing = unmet(fleet, new.declared.needs, scope_of(fleet, new.entity)) if new.truth.start <= fleet.now else ""
    if missing:
        name = f"{new.entity.kind.value} {new.entity.name}"
        raise UsageError(f"{name} {missing}", hint=f"choose another entity for {new.truth.fault}")


def _choose(fleet: Fleet, declared: FaultDefinition, seed: int) -> EntityRef:
    chosen = choose(fleet, declared.kind, declared.likely, np.random.default_rng([seed, 7]))
    if chosen is None:
        raise UsageError(
            f"no entity can have {declared.fault} now", hint="wait until a replica serves, or name an entity"
        )
    return chosen


def _find(fleet: Fleet, declared: FaultDefinition, entity: EntityRef | str) -> EntityRef:
    known = list(fleet_entities(fleet, declared.kind))
    name = entity if isinstance(entity, str) else entity.name
    result = next((ref for ref in known if entity in (ref, ref.name)), None)
    if result is None:
        raise UsageError(
            f"the fleet has no {declared.kind.value} {name!r} for {declared.fault}",
            hint=_near(name, [ref.name for ref in known]),
        )
    return result


def _near(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return "did you mean " + " or ".join(close) + "?" if close else "known: " + ", ".join(known[:8])
