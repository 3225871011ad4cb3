"""Turns an adapter and a page layout into arrays of row indices, once per layout.

Nearly everything an adapter asks for is linear in the rows of a page: sums, means, differences,
one-hot codes, and bucket increments (a cumulative bucket minus the one below). So a page is evaluated
by one weighted ``bincount`` into *slots*, one grouped maximum and one grouped minimum, and a division
of slots for the ratios. The rows of a page stand three times in the input vector: as values, as
increases and as rates; then follows a constant 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collectors.adapter import Adapter, Aggregate, Operator, Rule, Section, Term
from collectors.exposition import Layout
from collectors.places import Place, Places, Watch, first_label
from outrider import catalog
from outrider.model import SUM_BUCKET, EntityKind, SignalKey

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows grouped by the slot that takes their maximum or minimum."""

    rows: Indices
    weights: NDArray[np.float64]
    starts: Indices
    slots: Indices


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """Everything needed to evaluate pages of one layout; independent of the target.

    A *cell* is an (entity, column) of one kind of entity; ``cell_of_out`` numbers them through all
    kinds, ``shapes`` gives (first cell, entities, columns) of each kind.
    """

    rows: int
    slots: int
    linear_rows: Indices
    linear_weights: NDArray[np.float64]
    linear_slots: Indices
    maxima: Groups
    minima: Groups
    out_left: Indices
    out_right: Indices  # -1: the left slot is the value
    out_compare: NDArray[np.bool_]
    cell_of_out: Indices
    scale: NDArray[np.float64]
    offset: NDArray[np.float64]
    equals: NDArray[np.float64]  # NaN where the cell is no comparison
    absolute: NDArray[np.bool_]
    joins: Mapping[Aggregate, Indices]  # outs that are joined within their cell
    nan_is_undefined: NDArray[np.bool_]
    two_scrapes: NDArray[np.bool_]
    histograms: Indices  # cells of histogram columns, grouped by starts
    histogram_starts: Indices
    places: Mapping[EntityKind, tuple[Place, ...]]
    shapes: Mapping[EntityKind, tuple[int, int, int]]
    cells: int
    edges: tuple[tuple[Place, Place], ...]
    labels: tuple[tuple[Place, Mapping[str, str]], ...]
    watches: tuple[Watch, ...]
    start_row: int  # -1: the page does not tell when the process started


@dataclass(slots=True)
class _Out:
    place: Place
    column: int
    left: int
    right: int = -1
    compare: bool = False
    rule: Rule | None = None


@dataclass(slots=True)
class _Draft:
    """What compiling collects before it becomes arrays."""

    adapter: Adapter
    layout: Layout
    places: Places
    slots: int = 0
    linear: list[tuple[int, float, int]] = field(default_factory=list)
    extremes: dict[Aggregate, list[tuple[int, float, int]]] = field(
        default_factory=lambda: {Aggregate.MAX: [], Aggregate.MIN: []}
    )
    outs: list[_Out] = field(default_factory=list)

    # --- rows to slots ----------------------------------------------------------------------------

    def groups(
        self, term: Term, kind: EntityKind, per: tuple[str, ...]
    ) -> dict[tuple[Place, ...], list[tuple[int, float]]]:
        """(row, weight) by entity, and by the ``per`` labels within it."""
        found: dict[tuple[Place, ...], list[tuple[int, float]]] = {}
        names = term.metrics.on(self.layout.names)
        for row in self.places.matching(names, term.where):
            place, weight = self.places.of(kind, row), self.weight(term, row)
            if place is not None and weight is not None:
                labels = self.layout.series[row].labels
                within = Place(kind, "\0".join(labels.get(label, "") for label in per)) if per else place
                found.setdefault((place, within), []).append((row, weight))
        if term.beside:
            for row in self.places.matching((term.beside,), ()):
                place = self.places.of(kind, row)
                if place is not None:
                    found.setdefault((place, place), []).append((row, 0.0))
        return found

    def weight(self, term: Term, row: int) -> float | None:
        """What a row counts for; None when a label that should be a number is none."""
        labels, weight = self.layout.series[row].labels, 1.0
        if term.codes is not None:
            code = term.codes.values.get(labels.get(term.codes.label, ""), term.codes.other)
            if code is None:
                return None
            weight *= code
        for label in term.weigh_by:
            number = _number(labels.get(label, ""))
            if number is None:
                return None
            weight *= number
        return weight

    def slot(self, section: Section, aggregate: Aggregate, rows: list[tuple[int, float]], sign: float = 1.0) -> int:
        """A new slot filled from rows."""
        shift = len(self.layout.series) * (Section.GAUGE, Section.DELTA, Section.RATE).index(section)
        number, self.slots = self.slots, self.slots + 1
        share = 1.0 / len(rows) if aggregate is Aggregate.MEAN else 1.0
        target = self.extremes.get(aggregate, self.linear)
        target.extend((row + shift, sign * share * weight, number) for row, weight in rows)
        return number

    def constant(self, value: float) -> int:
        """A new slot that holds a number known already."""
        number, self.slots = self.slots, self.slots + 1
        self.linear.append((3 * len(self.layout.series), value, number))
        return number

    # --- rules ------------------------------------------------------------------------------------

    def add_signal(self, name: str, rules: tuple[Rule, ...]) -> None:
        """The first alternative that the page can serve."""
        for rule in rules:
            if self.applies(rule):
                kind = catalog.signal(name).entity
                _ADD[rule.operator](self, rule, kind)
                return

    def applies(self, rule: Rule) -> bool:
        """True when the page has the metrics of every term (and of the wanted type)."""
        suffix = "_bucket" if rule.operator is Operator.HISTOGRAM else ""
        for term in rule.terms:
            names = term.metrics.on(self.layout.names, suffix)
            if not names and term.beside not in self.layout.names:
                return False
            if rule.type and any(self.layout.types.get(one) != rule.type for one in names):
                return False
        return True

    def column(self, kind: EntityKind, key: SignalKey) -> int:
        """The column of a key in the batches of a kind."""
        return self.adapter.columns[kind][key]

    def add_term(self, rule: Rule, kind: EntityKind) -> None:
        """One number per entity, or the difference of two."""
        column, term = self.column(kind, SignalKey(rule.signal)), rule.terms[0]
        taken_away = self.groups(rule.terms[1], kind, ()) if rule.minus else {}
        for key, rows in self.groups(term, kind, ()).items():
            if rule.minus and key not in taken_away:
                continue
            slot = self.slot(term.section, term.aggregate, rows)
            if rule.minus:
                shift = len(self.layout.series) * (Section.GAUGE, Section.DELTA, Section.RATE).index(term.section)
                self.linear.extend((row + shift, -weight, slot) for row, weight in taken_away[key])
            self.outs.append(_Out(key[0], column, slot, rule=rule))

    def add_pair(self, rule: Rule, kind: EntityKind) -> None:
        """A ratio or a comparison of two numbers of one entity."""
        column, (left, right) = self.column(kind, SignalKey(rule.signal)), rule.terms
        below = self.groups(right, kind, rule.per)
        for key, rows in self.groups(left, kind, rule.per).items():
            if key in below:
                over = self.slot(left.section, left.aggregate, rows)
                under = self.slot(right.section, right.aggregate, below[key])
                self.outs.append(_Out(key[0], column, over, under, rule.operator is Operator.AT_LEAST, rule))

    def add_count(self, rule: Rule, kind: EntityKind) -> None:
        """How many distinct values of a label there are for each entity."""
        column, found = self.column(kind, SignalKey(rule.signal)), dict[Place, set[str]]()
        for row in self.places.matching(rule.terms[0].metrics.on(self.layout.names), rule.terms[0].where):
            place = self.places.of(kind, row)
            if place is not None:
                value = first_label(self.layout.series[row].labels, rule.distinct) or str(row)
                found.setdefault(place, set()).add(value)
        for place, values in found.items():
            self.outs.append(_Out(place, column, self.constant(len(values)), rule=rule))

    def add_histogram(self, rule: Rule, kind: EntityKind) -> None:
        """Bucket increments on the signal's own ladder. A bucket of the page goes where its bound lies."""
        signal, term = catalog.signal(rule.signal), rule.terms[0]
        family = term.metrics.on(self.layout.names, "_bucket")[0]
        first = self.column(kind, signal.bucket_keys[0])
        slots: dict[tuple[Place, int], int] = {}

        def add(place: Place, bucket: int, row: int, weight: float) -> None:
            if (place, bucket) not in slots:
                column = first + (len(signal.bounds) + 1 if bucket == SUM_BUCKET else bucket)
                slots[place, bucket] = self.slot(Section.DELTA, Aggregate.SUM, [])
                self.outs.append(_Out(place, column, slots[place, bucket], rule=rule))
            self.linear.append((row + len(self.layout.series), weight, slots[place, bucket]))

        for place, ladder in self._ladders(family, kind, term):
            for bucket in range(len(signal.bounds) + 1):
                if (place, bucket) not in slots:
                    add(place, bucket, ladder[0][1], 0.0)  # a bucket the page does not have holds nothing
            below = -1
            for bound, row in ladder:
                bucket = int(np.searchsorted(signal.bounds, bound * (1 - 1e-9)))
                add(place, bucket, row, 1.0)
                if below >= 0:
                    add(place, bucket, below, -1.0)
                below = row
        for row in self.places.matching((family + "_sum",), term.where):
            summed = self.places.of(kind, row)
            if summed is not None:
                add(summed, SUM_BUCKET, row, 1.0)

    def _ladders(self, family: str, kind: EntityKind, term: Term) -> Iterator[tuple[Place, list[tuple[float, int]]]]:
        """The (bound, row) ladder of each label set, bounds rising."""
        found: dict[tuple[Place, tuple[tuple[str, str], ...]], list[tuple[float, int]]] = {}
        for row in self.places.matching((family + "_bucket",), term.where):
            labels, place = self.layout.series[row].labels, self.places.of(kind, row)
            bound = _number(labels.get("le", ""), finite=False)
            if place is not None and bound is not None:
                rest = tuple(sorted((name, value) for name, value in labels.items() if name != "le"))
                found.setdefault((place, rest), []).append((bound, row))
        for (place, _), ladder in found.items():
            yield place, sorted(ladder)


_ADD = {
    Operator.TERM: _Draft.add_term,
    Operator.RATIO: _Draft.add_pair,
    Operator.AT_LEAST: _Draft.add_pair,
    Operator.HISTOGRAM: _Draft.add_histogram,
    Operator.COUNT: _Draft.add_count,
}


def compile_adapter(adapter: Adapter, layout: Layout) -> Compiled:
    """Prepare to evaluate pages of this layout."""
    draft = _Draft(adapter, layout, Places(adapter, layout))
    for name, rules in adapter.rules.items():
        draft.add_signal(name, rules)
    return _freeze(draft)


def _freeze(draft: _Draft) -> Compiled:
    adapter, layout = draft.adapter, draft.layout
    edges = tuple(dict.fromkeys(draft.places.edges()))
    labels = tuple(draft.places.labels())
    places: dict[EntityKind, dict[Place, int]] = {}
    for place in (*(out.place for out in draft.outs), *(one for edge in edges for one in edge)):
        if place.kind in adapter.keys:
            ranked = places.setdefault(place.kind, {})
            ranked.setdefault(place, len(ranked))
    shapes, cells = {}, 0
    for kind, ranked in places.items():
        shapes[kind] = (cells, len(ranked), len(adapter.keys[kind]))
        cells += len(ranked) * len(adapter.keys[kind])

    def cell(out: _Out) -> int:
        first, _, columns = shapes[out.place.kind]
        return first + places[out.place.kind][out.place] * columns + out.column

    of_out = [cell(out) for out in draft.outs]
    scale, offset, equals = np.ones(cells), np.zeros(cells), np.full(cells, np.nan)
    absolute, undefined, two = (np.zeros(cells, dtype=bool) for _ in range(3))
    joins: dict[Aggregate, list[int]] = {}
    histograms: dict[tuple[int, str], list[int]] = {}
    for number, (out, at) in enumerate(zip(draft.outs, of_out, strict=True)):
        rule = out.rule
        assert rule is not None
        scale[at], offset[at], absolute[at] = rule.scale, rule.offset, rule.absolute
        equals[at] = np.nan if rule.equals is None else rule.equals
        undefined[at] = catalog.signal(rule.signal).unit == "ratio"
        two[at] = rule.needs_two
        if rule.per:
            joins.setdefault(rule.aggregate, []).append(number)
        if rule.operator is Operator.HISTOGRAM:
            entity = (at - shapes[out.place.kind][0]) // shapes[out.place.kind][2]
            histograms.setdefault((entity, rule.signal), []).append(at)
    rows, weights, slots = _columns(draft.linear)
    start = layout.names.get(adapter.start_time) if adapter.start_time else None
    return Compiled(
        rows=len(layout.series),
        slots=draft.slots,
        linear_rows=rows,
        linear_weights=weights,
        linear_slots=slots,
        maxima=_grouped(draft.extremes[Aggregate.MAX]),
        minima=_grouped(draft.extremes[Aggregate.MIN]),
        out_left=np.array([out.left for out in draft.outs], dtype=np.intp),
        out_right=np.array([out.right for out in draft.outs], dtype=np.intp),
        out_compare=np.array([out.compare for out in draft.outs], dtype=bool),
        cell_of_out=np.array(of_out, dtype=np.intp),
        scale=scale,
        offset=offset,
        equals=equals,
        absolute=absolute,
        joins={aggregate: np.array(found, dtype=np.intp) for aggregate, found in joins.items()},
        nan_is_undefined=undefined,
        two_scrapes=two,
        histograms=np.array([at for found in histograms.values() for at in found], dtype=np.intp),
        histogram_starts=np.cumsum([0, *(len(found) for found in histograms.values())])[:-1].astype(np.intp),
        places={kind: tuple(ranked) for kind, ranked in places.items()},
        shapes=shapes,
        cells=cells,
        edges=edges,
        labels=labels,
        watches=tuple(draft.places.watches()),
        start_row=int(start[0]) if start is not None else -1,
    )


def _columns(entries: list[tuple[int, float, int]]) -> tuple[Indices, NDArray[np.float64], Indices]:
    rows, weights, slots = zip(*entries, strict=True) if entries else ((), (), ())
    return np.array(rows, dtype=np.intp), np.array(weights, dtype=np.float64), np.array(slots, dtype=np.intp)


def _grouped(entries: list[tuple[int, float, int]]) -> Groups:
    rows, weights, slots = _columns(sorted(entries, key=lambda entry: entry[2]))
    found, starts = np.unique(slots, return_index=True)
    return Groups(rows, weights, starts.astype(np.intp), found.astype(np.intp))


def _number(text: str, *, finite: bool = True) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) or (not finite and not math.isnan(number)) else None
