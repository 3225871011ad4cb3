"""Limits the values of a free-form label to the most used ones.

Tenants, models and users have unbounded names: one series each would overload the store. The values with most traffic
keep their names, all others become ``other``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

OTHER = "other"
_CANDIDATES = 10  # tracked values per named value
_DECAY = 0.9  # decay of a value's weight per count: values used an hour ago make room
_MARGIN = 1.25  # hysteresis: how much busier a newcomer must be than the least busy named value


class CardinalityLimit:
    """Selects the values that keep their names. Memory is bounded by ``most``."""

    def __init__(self, most: int) -> None:
        """At most ``most`` values keep their names, not counting ``other``."""
        if most < 1:
            raise ValueError("at least one value must keep its name")
        self._most = most
        self._weights: dict[str, float] = {}
        self._named: set[str] = set()

    @property
    def named(self) -> frozenset[str]:
        """The values that keep their names."""
        return frozenset(self._named)

    def count(self, traffic: Mapping[str, float]) -> None:
        """Adds the traffic of each value since the last count. Negative and non-finite numbers count as 0."""
        weights = {value: weight * _DECAY for value, weight in self._weights.items()}
        for value, amount in traffic.items():
            if value not in ("", OTHER) and 0 < amount < float("inf"):
                weights[value] = weights.get(value, 0.0) + amount
        kept = heapq.nlargest(self._most * _CANDIDATES, weights, key=lambda value: (weights[value], value))
        self._weights = {value: weights[value] for value in {*kept, *(self._named & weights.keys())}}
        self._name()

    def _name(self) -> None:
        weights = self._weights
        ranked = sorted(weights.keys() - self._named, key=lambda value: (-weights[value], value))
        for value in ranked:
            if len(self._named) < self._most:
                self._named.add(value)
                continue
            least = min(self._named, key=lambda name: (weights[name], name))
            if weights[value] <= weights[least] * _MARGIN:
                break
            self._named.remove(least)
            self._named.add(value)

    def name(self, value: str) -> str:
        """The value itself, or ``other``; an empty value stays empty: unknown."""
        return value if not value or value in self._named else OTHER

    def fold(self, traffic: Mapping[str, float]) -> dict[str, float]:
        """The same traffic by name; the sum is unchanged."""
        result: dict[str, float] = {}
        for value, amount in traffic.items():
            name = self.name(value)
            result[name] = result.get(name, 0.0) + amount
        return result


def bounded(values: Iterable[str], most: int) -> dict[str, str]:
    """The name of each value, by its frequency in ``values``."""
    counts: dict[str, float] = {}
    for value in values:
        counts[value] = counts.get(value, 0.0) + 1.0
    decider = CardinalityLimit(most)
    decider.count(counts)
    return {value: decider.name(value) for value in counts}
