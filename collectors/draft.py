"""Collects, rule by rule, which rows of a page layout make up which cell of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from collectors.adapter import Adapter, Aggregate, Operator, Rule, Section, Term
from collectors.exposition import Layout
from collectors.places import Place, Places, first_label
from outrider import catalog
from outrider.model import SUM_BUCKET, EntityKind, SignalKey


@dataclass(slots=True)
class Out:
    """One number of one cell: a slot, or a ratio or comparison of two, as its rule says."""

    place: Place
    column: int
    left: int
    rule: Rule
    right: int = -1
    compare: bool = False


@dataclass(slots=True)
class Draft:
    """What compiling collects before it becomes arrays."""

    adapter: Adapter
    layout: Layout
    places: Places
    slots: int = 0
    linear: list[tuple[int, float, int]] = field(default_factory=list)
    extremes: dict[Aggregate, list[tuple[int, float, int]]] = field(
        default_factory=lambda: {Aggregate.MAX: [], Aggregate.MIN: []}
    )
    outs: list[Out] = field(default_factory=list)

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
            self.outs.append(Out(key[0], column, slot, rule))

    def add_pair(self, rule: Rule, kind: EntityKind) -> None:
        """A ratio or a comparison of two numbers of one entity."""
        column, (left, right) = self.column(kind, SignalKey(rule.signal)), rule.terms
        below = self.groups(right, kind, rule.per)
        for key, rows in self.groups(left, kind, rule.per).items():
            if key in below:
                over = self.slot(left.section, left.aggregate, rows)
                under = self.slot(right.section, right.aggregate, below[key])
                self.outs.append(Out(key[0], column, over, rule, under, rule.operator is Operator.AT_LEAST))

    def add_count(self, rule: Rule, kind: EntityKind) -> None:
        """How many distinct values of a label there are for each entity."""
        column, found = self.column(kind, SignalKey(rule.signal)), dict[Place, set[str]]()
        for row in self.places.matching(rule.terms[0].metrics.on(self.layout.names), rule.terms[0].where):
            place = self.places.of(kind, row)
            if place is not None:
                value = first_label(self.layout.series[row].labels, rule.distinct) or str(row)
                found.setdefault(place, set()).add(value)
        for place, values in found.items():
            self.outs.append(Out(place, column, self.constant(len(values)), rule))

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
                self.outs.append(Out(place, column, slots[place, bucket], rule))
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
    Operator.TERM: Draft.add_term,
    Operator.RATIO: Draft.add_pair,
    Operator.AT_LEAST: Draft.add_pair,
    Operator.HISTOGRAM: Draft.add_histogram,
    Operator.COUNT: Draft.add_count,
}


def _number(text: str, *, finite: bool = True) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) or (not finite and not math.isnan(number)) else None
