"""Collects, rule by rule, which rows of a page layout make up which cell of a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from collectors.exposition.parser import Layout, Series
from collectors.mapping.buckets import spread
from collectors.mapping.entity_binding import Place, Places, first_label
from collectors.mapping.model import QUANTILES, Adapter, Aggregate, Operator, Rule, Section, Statistic, Term
from outrider.model import SUM_BUCKET, EntityKind, SignalKey
from outrider.vocabulary import catalog


@dataclass(slots=True)
class Out:
    """One number of one cell: a slot, or a ratio, product or comparison of two, as its rule says."""

    place: Place
    column: int
    left: int
    rule: Rule
    right: int = -1


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
            weight = self.weight(term, row)
            for place in self.places.every(kind, row) if weight is not None else ():
                found.setdefault((place, self._within(place, row, per)), []).append((row, weight or 0.0))
        for row in self.places.matching(term.beside.on(self.layout.names), term.beside_where):
            for place in self.places.every(kind, row):
                found.setdefault((place, self._within(place, row, per)), []).append((row, 0.0))
        return found

    def _within(self, place: Place, row: int, per: tuple[str, ...]) -> Place:
        labels = self.layout.series[row].labels
        return Place(place.kind, "\0".join(labels.get(label, "") for label in per)) if per else place

    def weight(self, term: Term, row: int) -> float | None:
        """What a row counts for; None when a label that should be a number is none."""
        labels, weight = self.layout.series[row].labels, 1.0
        if term.codes is not None:
            code = term.codes.values.get(labels.get(term.codes.label, ""), term.codes.other)
            if code is None:
                return None
            weight *= code
        for label in term.weigh_by:
            number = number_of(labels.get(label, ""))
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
        """For each entity the first alternative that the page can serve.

        Of a distribution that is the first one of its quantiles and the first one of its mean; buckets
        tell both.
        """
        kind, taken = catalog.signal(name).entity, dict[Statistic, set[Place]]()
        for rule in rules:
            if not self.applies(rule):
                continue
            mine = taken.setdefault(rule.statistic, set())
            served = mine | taken.get(Statistic.BUCKETS, set())
            first = len(self.outs)
            _ADD[rule.operator](self, rule, kind, served)
            mine.update(out.place for out in self.outs[first:])

    def applies(self, rule: Rule) -> bool:
        """True when the page has the metrics of every term (and of the wanted type)."""
        suffix = "_bucket" if rule.operator is Operator.HISTOGRAM else ""
        for term in rule.terms:
            names = term.metrics.on(self.layout.names, suffix)
            if not names and not term.beside.on(self.layout.names):
                return False
            if rule.type and any(self.layout.types.get(one) != rule.type for one in names):
                return False
        return True

    def column(self, kind: EntityKind, key: SignalKey) -> int:
        """The column of a key in the batches of a kind."""
        return self.adapter.columns[kind][key]

    def add_term(self, rule: Rule, kind: EntityKind, served: Collection[Place]) -> None:
        """One number per entity, or the difference of two."""
        column, term = self.column(kind, SignalKey(rule.signal)), rule.terms[0]
        taken_away = self.groups(rule.terms[1], kind, rule.per) if rule.minus else {}
        for key, rows in self.groups(term, kind, rule.per).items():
            if key[0] in served or (rule.minus and key not in taken_away):
                continue
            slot = self.slot(term.section, term.aggregate, rows)
            if rule.minus:
                shift = len(self.layout.series) * (Section.GAUGE, Section.DELTA, Section.RATE).index(term.section)
                self.linear.extend((row + shift, -weight, slot) for row, weight in taken_away[key])
            self.outs.append(Out(key[0], column, slot, rule))

    def add_pair(self, rule: Rule, kind: EntityKind, served: Collection[Place]) -> None:
        """A ratio, product or comparison of two numbers of one entity."""
        column, (left, right) = self.column(kind, SignalKey(rule.signal)), rule.terms
        below = self.groups(right, kind, rule.per)
        for key, rows in self.groups(left, kind, rule.per).items():
            if key in below and key[0] not in served:
                over = self.slot(left.section, left.aggregate, rows)
                under = self.slot(right.section, right.aggregate, below[key])
                self.outs.append(Out(key[0], column, over, rule, under))

    def add_count(self, rule: Rule, kind: EntityKind, served: Collection[Place]) -> None:
        """How many distinct values of a label there are for each entity."""
        column, found = self.column(kind, SignalKey(rule.signal)), dict[Place, set[str]]()
        for row in self.places.matching(rule.terms[0].metrics.on(self.layout.names), rule.terms[0].where):
            place = self.places.of(kind, row)
            if place is not None:
                value = first_label(self.layout.series[row].labels, rule.distinct) or str(row)
                found.setdefault(place, set()).add(value)
        for place, values in found.items():
            if place not in served:
                self.outs.append(Out(place, column, self.constant(len(values)), rule))

    def add_summary(self, rule: Rule, kind: EntityKind, served: Collection[Place]) -> None:
        """The quantiles that a source works out itself. They cannot be merged: of several the largest counts."""
        term, wanted = rule.terms[0], dict[tuple[Place, float], list[tuple[int, float]]]()
        for row in self.places.matching(term.metrics.on(self.layout.names), term.where):
            place = self.places.of(kind, row)
            quantile = number_of(self.layout.series[row].labels.get("quantile", ""))
            if place is not None and place not in served and quantile in QUANTILES:
                wanted.setdefault((place, quantile), []).append((row, 1.0))
        for (place, quantile), rows in wanted.items():
            column = self.column(kind, SignalKey(rule.signal, quantile=quantile))
            self.outs.append(Out(place, column, self.slot(Section.GAUGE, Aggregate.MAX, rows), rule))

    def add_histogram(self, rule: Rule, kind: EntityKind, served: Collection[Place]) -> None:
        """Bucket increments on the signal's own ladder; see ``spread`` for bounds that are not on it."""
        signal, term = catalog.signal(rule.signal), rule.terms[0]
        family = term.metrics.on(self.layout.names, "_bucket")[0]
        first, count = self.column(kind, signal.bucket_keys[0]), len(signal.bounds) + 1
        slots: dict[tuple[Place, int], int] = {}

        def add(place: Place, bucket: int, row: int, weight: float) -> None:
            if (place, bucket) not in slots:
                slots[place, bucket] = self.slot(Section.DELTA, Aggregate.SUM, [])
                self.outs.append(
                    Out(place, first + (count if bucket == SUM_BUCKET else bucket), slots[place, bucket], rule)
                )
            self.linear.append((row + len(self.layout.series), weight, slots[place, bucket]))

        for place, ladder in self.ladders(family, kind, term):
            if place in served:
                continue
            shares = spread([bound * rule.scale for bound, _ in ladder], signal.bounds)
            for bucket, parts in enumerate(shares):
                # a bucket without a share is of interest too: it holds nothing
                for number, share in parts.items() or [(0, 0.0)]:
                    add(place, bucket, ladder[number][1], share)
        for row in self.places.matching((family + "_sum",), term.where):
            summed = self.places.of(kind, row)
            if summed is not None and (summed, 0) in slots:
                add(summed, SUM_BUCKET, row, rule.scale)

    def ladders(
        self, family: str, kind: EntityKind, term: Term, *, endless: bool = False
    ) -> Iterator[tuple[Place, list[tuple[float, int]]]]:
        """The (bound, row) ladder of each label set, bounds rising to +Inf.

        A page that leaves +Inf out has the same number as ``_count``; without either nothing is claimed, and
        the ladder is left out unless ``endless``.
        """
        found: dict[tuple[Place, tuple[tuple[str, str], ...]], list[tuple[float, int]]] = {}
        for row in self.places.matching((family + "_bucket",), term.where):
            labels, place = self.layout.series[row].labels, self.places.of(kind, row)
            bound = number_of(labels.get("le", ""), finite=False)
            if place is not None and bound is not None:
                rest = labels_but(self.layout.series[row], "le")
                found.setdefault((place, rest), []).append((bound, row))
        counts = {
            labels_but(self.layout.series[row], "le"): row for row in self.layout.names.get(family + "_count", ())
        }
        for (place, rest), ladder in found.items():
            whole = sorted(ladder)
            if math.isfinite(whole[-1][0]):
                if rest in counts:
                    whole.append((math.inf, int(counts[rest])))
                elif not endless:
                    continue
            yield place, whole


def labels_but(series: Series, without: str) -> tuple[tuple[str, str], ...]:
    """The labels of a series but one, in one order."""
    return tuple(sorted((name, value) for name, value in series.labels.items() if name != without))


_ADD = {
    Operator.TERM: Draft.add_term,
    Operator.RATIO: Draft.add_pair,
    Operator.PRODUCT: Draft.add_pair,
    Operator.AT_LEAST: Draft.add_pair,
    Operator.HISTOGRAM: Draft.add_histogram,
    Operator.SUMMARY: Draft.add_summary,
    Operator.COUNT: Draft.add_count,
}


def number_of(text: str, *, finite: bool = True) -> float | None:
    """A label value as a number; None when it is none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) or (not finite and not math.isnan(number)) else None
