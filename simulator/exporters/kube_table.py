"""Families of kube-state-metrics as a table: the lines of one object, cached until the object changes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.exporters.text import go_number, header

Lines = Iterable[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class KubeFamily:
    """``lines`` returns additional labels (``,condition="true"``) and values of one object."""

    name: str
    kind: str
    text: str
    lines: Callable[[Any], Lines]


class CachedLines:
    """Lines of many objects for one table of families. An object is rewritten only if its key changes."""

    def __init__(self, table: Sequence[KubeFamily]) -> None:
        self._table = table
        self._heads = [header(family.name, family.kind, family.text) for family in table]
        self._keys: list[Hashable] = []
        self._texts: list[list[str]] = []

    def update(self, keys: Sequence[Hashable], make: Callable[[int], tuple[str, Any]]) -> bool:
        """Updates objects whose key changed, with ``make(index)`` -> (labels, object). Returns True if any changed."""
        fresh = [place for place, key in enumerate(keys) if place >= len(self._keys) or self._keys[place] != key]
        changed = bool(fresh) or len(keys) != len(self._keys)
        self._texts = self._texts[: len(keys)] + [[]] * (len(keys) - len(self._texts))
        for place in fresh:
            self._texts[place] = self._write(*make(place)) if keys[place] is not None else []
        self._keys = list(keys)
        return changed

    def _write(self, base: str, item: Any) -> list[str]:
        return [
            "".join(f"{family.name}{{{base}{more}}} {go_number(value)}\n" for more, value in family.lines(item))
            for family in self._table
        ]

    def text(self) -> str:
        """Returns all families, each with the lines of every object; an object whose key is None has none."""
        there = [texts for texts in self._texts if texts]
        return "".join(head + "".join(texts[row] for texts in there) for row, head in enumerate(self._heads))


def pairs(**labels: str) -> str:
    """Returns labels to append to others: ``,node="node-0",unit="byte"``."""
    return "".join(f',{name}="{value}"' for name, value in labels.items())


def one_of(label: str, values: Iterable[str], chosen: str) -> list[tuple[str, float]]:
    """Returns a line for each value, 1 for the active one."""
    return [(f',{label}="{value}"', float(value == chosen)) for value in values]
