"""Quality of alert grouping: pairs of one injected fault against pairs of one incident.

Pure. An alert belongs to the nearest faults active at its start. Nearest are the entities that a fault touches, then
the rest of its path, then the other parts of the affected services. If two faults are equally near, pairs with alerts
of only one of them are not scored. An alert without a fault belongs to no pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations
from typing import Any

import numpy as np

from outrider.model import EntityKind, EntityRef
from outrider.vocabulary.indicators import pairwise_f1, ratio
from simulator.scoring.run import FiredAlert, InjectedFault, Run

Faults = frozenset[int]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Scored pairs of alerts: ``true`` belong to one fault, ``placed`` are in one incident."""

    true: int = 0
    placed: int = 0
    both: int = 0

    def __add__(self, other: Pairs) -> Pairs:
        """Returns the pairs of two runs together; alerts of different runs form no pairs."""
        return Pairs(self.true + other.true, self.placed + other.placed, self.both + other.both)

    @property
    def f1(self) -> float | None:
        """Returns the harmonic mean of precision and recall of the pairs, None without scored pairs."""
        return pairwise_f1(self.both, self.placed, self.true)

    def figures(self) -> dict[str, Any]:
        """Returns the figures of the score."""
        return {
            "pairwise_precision": ratio(self.both, self.placed),
            "pairwise_recall": ratio(self.both, self.true),
            "pairwise_f1": self.f1,
        }


def pairs_of(run: Run, grace: timedelta) -> Pairs:
    """Returns the pairs of one run; a fault is active until ``grace`` after its end."""
    truth = [_faults_of(alert, run.injected, grace) for alert in run.fired]
    placed = [alert.incident if alert.incident is not None else number for number, alert in enumerate(run.fired)]
    return _count(truth, placed)


def _faults_of(alert: FiredAlert, injected: Sequence[InjectedFault], grace: timedelta) -> Faults:
    """Returns the indices of the faults that an alert may belong to."""
    near = {
        number: distance
        for number, fault in enumerate(injected)
        if fault.start <= alert.at <= fault.end + grace and (distance := _distance(alert.entity, fault)) is not None
    }
    nearest = min(near.values(), default=0)
    return frozenset(number for number, distance in near.items() if distance == nearest)


def _distance(entity: EntityRef, fault: InjectedFault) -> int | None:
    """Returns the index of the fault's ring that contains an entity; a cluster fault contains all of its cluster."""
    rings = fault.rings or (fault.path,)
    result = next((number for number, ring in enumerate(rings) if entity in ring), None)
    whole = fault.entity.kind is EntityKind.CLUSTER and entity.cluster == fault.entity.cluster
    return len(rings) if result is None and whole else result


def _count(truth: Sequence[Faults], placed: Iterable[str | int]) -> Pairs:
    """Counts pairs by a table of ground-truth classes against incidents, without a loop over pairs."""
    if not truth:
        return Pairs()
    classes = {one: number for number, one in enumerate(dict.fromkeys(truth))}
    groups: dict[str | int, int] = {}
    columns = [groups.setdefault(one, len(groups)) for one in placed]
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
    """Returns the number of pairs within each of these counts, summed."""
    return int((counts * (counts - 1) // 2).sum())
