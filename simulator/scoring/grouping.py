"""Quality of alert grouping: pairs of one injected fault against pairs of one incident.

Pure. An alert belongs to the active faults at its start, of those the nearest ones: the entities that a fault touches
come before the rest of its path, and that before the other parts of the affected services. If two faults are equally
near, pairs with alerts of only one of them are not judged. An alert without a fault belongs to no pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.model import EntityKind, EntityRef
from outrider.vocabulary.indicators import pairwise_f1, ratio

if TYPE_CHECKING:
    from simulator.scoring.score import InjectedFault, Run

Faults = frozenset[int]


@dataclass(frozen=True, slots=True)
class FiredAlert:
    """An alert that fired: its entity, its start, and its final incident, None without one."""

    entity: EntityRef
    at: datetime
    incident: str | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of alerts that could be judged: ``true`` belong to one fault, ``placed`` lie in one incident."""

    true: int = 0
    placed: int = 0
    both: int = 0

    def __add__(self, other: Pairs) -> Pairs:
        """The pairs of two runs together; those across runs are none."""
        return Pairs(self.true + other.true, self.placed + other.placed, self.both + other.both)

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall of the pairs, None without pairs to judge."""
        return pairwise_f1(self.both, self.placed, self.true)

    def figures(self) -> dict[str, Any]:
        """As the score shows them."""
        return {
            "pairwise_precision": ratio(self.both, self.placed),
            "pairwise_recall": ratio(self.both, self.true),
            "pairwise_f1": self.f1,
        }


def pairs_of(run: Run, grace: timedelta) -> Pairs:
    """Returns the pairs of one run; a fault is active until ``grace`` after its end."""
    truth = [_faults_of(alert, run.injected, grace) for alert in run.fired]
    held = [alert.incident if alert.incident is not None else number for number, alert in enumerate(run.fired)]
    return _count(truth, held)


def _faults_of(alert: FiredAlert, injected: Sequence[InjectedFault], grace: timedelta) -> Faults:
    """The numbers of the faults that an alert may belong to."""
    near = {
        number: distance
        for number, fault in enumerate(injected)
        if fault.start <= alert.at <= fault.end + grace and (distance := _distance(alert.entity, fault)) is not None
    }
    nearest = min(near.values(), default=0)
    return frozenset(number for number, distance in near.items() if distance == nearest)


def _distance(entity: EntityRef, fault: InjectedFault) -> int | None:
    """Index of the ring of a fault that contains an entity, from 0; a cluster fault reaches all of its cluster."""
    rings = fault.rings or (fault.path,)
    result = next((number for number, ring in enumerate(rings) if entity in ring), None)
    whole = fault.entity.kind is EntityKind.CLUSTER and entity.cluster == fault.entity.cluster
    return len(rings) if result is None and whole else result


def _count(truth: Sequence[Faults], held: Iterable[str | int]) -> Pairs:
    """Pairs by a table of classes of truth against incidents, so that no pair is looked at by itself."""
    if not truth:
        return Pairs()
    classes = {one: number for number, one in enumerate(dict.fromkeys(truth))}
    groups: dict[str | int, int] = {}
    columns = [groups.setdefault(one, len(groups)) for one in held]
    table = np.zeros((len(classes), len(groups)), dtype=np.int64)
    np.add.at(table, ([classes[one] for one in truth], columns), 1)
    sure = [number for one, number in classes.items() if len(one) == 1]
    both = _within(table[sure])
    wrong = _within(table[[number for one, number in classes.items() if not one]])
    for one, other in combinations(classes, 2):
        if one.isdisjoint(other):
            wrong += int(table[classes[one]] @ table[classes[other]])
    return Pairs(true=_within(table[sure].sum(axis=1)), placed=both + wrong, both=both)


def _within(counts: np.ndarray) -> int:
    """The pairs within each of these counts, added up."""
    return int((counts * (counts - 1) // 2).sum())
