"""Choice of the faulted entity: words that a scenario may use instead of a name, resolved by the seed.

Several words combine, such as ``same-service other-node``. Without any word the fault's own file gives the likely
entities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outrider.model import EntityKind, EntityRef
from simulator.faults.scope import LIKELY, Scope, fleet_entities

if TYPE_CHECKING:
    from simulator.fleet import Fleet


@dataclass(frozen=True, slots=True)
class EarlierFault:
    """The entity of an earlier fault of the scenario, with its scope at the start."""

    entity: EntityRef
    here: Scope


@dataclass(frozen=True, slots=True)
class _Candidate:
    fleet: Fleet
    entity: EntityRef
    here: Scope
    before: Sequence[EarlierFault]


def _share(left: np.ndarray, right: np.ndarray) -> bool:
    return bool(np.isin(left, right).any())


def _same(one: _Candidate) -> bool:
    """The first fault's entity; one that uses its slots if the kinds differ."""
    if not one.before:
        return True
    first = one.before[0]
    if one.entity.kind is first.entity.kind:
        return one.entity == first.entity
    return _share(one.here.slots, first.here.slots)


def _largest(one: _Candidate) -> bool:
    replicas = [service.replicas for service in one.fleet.spec.services]
    return int(np.argmax(replicas)) in one.here.services


def _smallest(one: _Candidate) -> bool:
    replicas = [service.replicas for service in one.fleet.spec.services]
    return int(np.argmin(replicas)) in one.here.services


WORDS: dict[str, Callable[[_Candidate], bool]] = {
    **{word: lambda one, fits=fits: fits(one.fleet, one.here) for word, fits in LIKELY.items()},  # type: ignore[misc]
    "same": _same,
    "same-service": lambda one: not one.before or _share(one.here.services, one.before[0].here.services),
    "other-service": lambda one: not any(_share(one.here.services, past.here.services) for past in one.before),
    "same-node": lambda one: not one.before or _share(one.here.nodes, one.before[0].here.nodes),
    "other-node": lambda one: not any(_share(one.here.nodes, past.here.nodes) for past in one.before),
    "largest-service": _largest,
    "smallest-service": _smallest,
}


def is_name(entity: str) -> bool:
    """True for an entity's own name, False for words and for nothing."""
    words = entity.split()
    return bool(words) and not any(word in WORDS for word in words)


def candidates(
    fleet: Fleet, kind: EntityKind, words: Sequence[str], likely: str, before: Sequence[EarlierFault], seed: int
) -> Iterator[tuple[EntityRef, Scope]]:
    """Yields entities of a kind that all words allow, in an order drawn by the seed; faulted ones come last.

    ``likely`` is the fault's own word. It applies unless the words contain another one of its sort.
    """
    wanted = list(words) if any(word in LIKELY for word in words) else [*words, likely]
    known, past = list(fleet_entities(fleet, kind).items()), {earlier.entity for earlier in before}
    order = [known[number] for number in np.random.default_rng([seed, 19]).permutation(len(known))]
    for entity, spot in sorted(order, key=lambda pair: pair[0] in past):
        here = spot.scope(fleet)
        if all(WORDS[word](_Candidate(fleet, entity, here, before)) for word in wanted):
            yield entity, here
