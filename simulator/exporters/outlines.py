"""Engine pages as data: a YAML file lists a server's families; an outline of the page is built from it.

Keys of a file:

- ``base``: this file is another release of that file. ``drop`` removes families, ``only`` keeps the listed ones;
  ``rename`` changes keys of families (an empty value removes the key); ``sets`` replaces label sets.
- ``ladders``: bucket bounds by name; an engine may add bounds that depend on the model.
- ``histograms``: block name -> ``{of: histogram of the engine model, ladder, share, plus}``; blocks that are not listed
  are those of the engine model with its own ladder. ``share`` is streamed or whole; ``plus`` names a count that is
  added to the first bucket.
- ``families``: ``name``, ``type``, ``help``, ``labels`` (a label set of the engine, default base), ``extra`` (labels),
  ``created`` (false: no ``_created`` series), ``when`` (only while that count is not zero), and the source of the
  numbers: ``value`` (a column), ``by`` (label -> its values -> columns or blocks), ``sparse`` (a series appears with
  its first increment), ``each`` (one series per row of that kind), ``histogram`` (a block), ``summary`` (columns of
  count and sum, with ``quantiles``: quantile -> column). A family without any of these has no series yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

import yaml

from simulator.exporters.numbers import Number
from simulator.exporters.sheet import Outline

Labels = dict[str, str]


@dataclass(frozen=True, slots=True)
class Style:
    """Format of a metrics library: numbers, order of labels and of a histogram's lines, ``_created`` gauges."""

    number: Number
    sort_labels: bool = False
    sums_first: bool = False  # count and sum before the buckets
    count_first: bool = True
    created: bool = False
    gap: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A histogram of the page. ``of`` names that of the engine model, ``ladder`` its bounds (empty: the same)."""

    of: str
    ladder: str = ""
    share: str = ""
    plus: str = ""


@dataclass(frozen=True)
class Release:
    """A parsed YAML file of an engine release."""

    families: tuple[dict[str, Any], ...]
    ladders: Mapping[str, tuple[float, ...]]
    histograms: Mapping[str, Block]
    sets: Mapping[str, str] = field(default_factory=dict)

    def block(self, name: str) -> Block:
        """Returns the source of a block's numbers."""
        return self.histograms.get(name, Block(name))

    @property
    def blocks(self) -> tuple[str, ...]:
        """The histogram blocks of its families."""
        result: dict[str, None] = {}
        for family in self.families:
            if family["type"] == "histogram":
                result |= dict.fromkeys(_sources(family))
        return tuple(result)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The counts that families depend on (``when``)."""
        result: dict[str, None] = {}
        for family in self.families:
            if "when" in family:
                result[family["when"]] = None
            if family.get("sparse"):
                result |= dict.fromkeys(_sources(family))
        return tuple(result)


@cache
def release(file: str) -> Release:
    """Reads an engine release from this package; ``file`` has no ``.yaml``."""
    text = resources.files("simulator.exporters").joinpath(f"{file}.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = yaml.safe_load(text)
    base = release(document["base"]) if "base" in document else Release((), {}, {})
    dropped, renamed = set(document.get("drop", ())), document.get("rename", {})
    only = set(document.get("only", [family["name"] for family in base.families])) - dropped
    kept = [_changed(family, renamed.get(family["name"], {})) for family in base.families if family["name"] in only]
    ladders = {name: tuple(float(bound) for bound in bounds) for name, bounds in document.get("ladders", {}).items()}
    blocks = {name: Block(**spec) for name, spec in document.get("histograms", {}).items()}
    return Release(
        families=(*kept, *document.get("families", ())),
        ladders={**base.ladders, **ladders},
        histograms={**base.histograms, **blocks},
        sets={**base.sets, **document.get("sets", {})},
    )


def _changed(family: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**family, **changes}.items() if value != {}}


def _sources(family: dict[str, Any]) -> Sequence[str]:
    if "by" in family:
        return [source for values in family["by"].values() for source in values.values()]
    return [family[key] for key in ("histogram", "value") if key in family]


@dataclass(frozen=True)
class Layout:
    """Positions of numbers in a row: first column of every name; ``bounds`` of each histogram block.

    A block's columns are its buckets, cumulated, with +Inf, then count, then sum.
    """

    columns: Mapping[str, int]
    bounds: Mapping[str, tuple[float, ...]]
    sets: Mapping[str, Labels]
    rows: Mapping[str, Sequence[Labels]] = field(default_factory=dict)


def outline(page: Release, style: Style, layout: Layout, shown: frozenset[str]) -> Outline:
    """Returns the page without its numbers. ``shown`` are the active conditions."""
    sets = {name: layout.sets[page.sets.get(name, name)] for name in layout.sets}
    writer = _Writer(style, replace(layout, sets=sets), shown)
    for family in page.families:
        if family.get("when", "") in shown or "when" not in family:
            writer.family(family)
    return writer.page_outline


class _Writer:
    def __init__(self, style: Style, layout: Layout, shown: frozenset[str]) -> None:
        self.page_outline = Outline(style.number, style.gap)
        self._style, self._layout, self._shown = style, layout, shown

    def family(self, family: dict[str, Any]) -> None:
        """Writes all lines of one family."""
        name, kind = family["name"], family["type"]
        children = list(self._children(family))
        if self._style.gap and not children:
            return  # in this style a family appears with its first series
        self.page_outline.family(name, kind, family.get("help", ""))
        for pairs, source, place in children:
            if kind == "histogram":
                self._histogram(name, pairs, source)
            elif kind == "summary":
                self._summary(name, pairs, family)
            else:
                self._sample(name, pairs, self._layout.columns[source] + place)
        if self._style.created and kind != "gauge" and children and family.get("created", True):
            self._created(family, children)

    def _children(self, family: dict[str, Any]) -> Iterator[tuple[Labels, str, int]]:
        """Yields labels, source and offset in it of each series."""
        fixed = {**self._layout.sets[family.get("labels", "base")], **family.get("extra", {})}
        if "each" in family:
            for place, pairs in enumerate(self._layout.rows[family["each"]]):
                yield {**fixed, **pairs}, family["value"], place
        elif "by" in family:
            ((label, values),) = family["by"].items()
            for value, source in values.items():
                if not family.get("sparse") or source in self._shown:
                    yield {**fixed, label: value}, source, 0
        elif "histogram" in family or "value" in family:
            source = family["histogram"] if "histogram" in family else family["value"]
            if not family.get("sparse") or source in self._shown:
                yield fixed, source, 0
        elif "summary" in family:
            yield fixed, "", 0

    def _created(self, family: dict[str, Any], children: list[tuple[Labels, str, int]]) -> None:
        name, sparse = family["name"], family.get("sparse", False)
        stem = name.removesuffix("_total") if family["type"] == "counter" else name
        self.page_outline.family(f"{stem}_created", "gauge", family.get("help", ""))
        for number, (pairs, source, _) in enumerate(children):
            late = f"appeared:{source}" if sparse else f"appeared:{family.get('when', '')}"
            column = self._layout.columns.get(late)
            if column is None:
                column = self._layout.columns["created"] + min(number, CREATED_APART - 1)
            self._sample(f"{stem}_created", pairs, column)

    def _histogram(self, name: str, pairs: Labels, source: str) -> None:
        bounds, first = self._layout.bounds[source], self._layout.columns[source]
        count, total = first + len(bounds) + 1, first + len(bounds) + 2
        sums = [("_count", count), ("_sum", total)] if self._style.count_first else [("_sum", total), ("_count", count)]
        if self._style.sums_first:
            for suffix, column in sums:
                self._sample(name + suffix, pairs, column)
        number = self._style.number
        for place, bound in enumerate((*bounds, float("inf"))):
            le = "+Inf" if place == len(bounds) else number(bound)
            self._sample(f"{name}_bucket", {**pairs, "le": le}, first + place)
        if not self._style.sums_first:
            for suffix, column in sums:
                self._sample(name + suffix, pairs, column)

    def _summary(self, name: str, pairs: Labels, family: dict[str, Any]) -> None:
        columns = self._layout.columns
        count, total = family["summary"]
        quantiles = [({**pairs, "quantile": str(at)}, columns[key]) for at, key in family.get("quantiles", {}).items()]
        sums = [("_count", columns[count]), ("_sum", columns[total])]
        if not self._style.sums_first:
            for labels, column in quantiles:
                self._sample(name, labels, column)
        for suffix, column in sums if self._style.count_first else sums[::-1]:
            self._sample(name + suffix, pairs, column)
        if self._style.sums_first:
            for labels, column in quantiles:
                self._sample(name, labels, column)

    def _sample(self, name: str, pairs: Labels, column: int) -> None:
        self.page_outline.sample(name, dict(sorted(pairs.items())) if self._style.sort_labels else pairs, column)


CREATED_APART = 8  # number of different creation times among the series of one family
