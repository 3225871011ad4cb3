"""Plans, rule by rule, which rows of a page layout make up which cell of a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from collectors.exposition.parser import Layout, Series
from collectors.mapping.buckets import resample
from collectors.mapping.entity_binding import LayoutEntities, UnboundEntity, first_label
from collectors.mapping.model import QUANTILES, Adapter, Aggregate, Operator, Rule, Section, Statistic, Term
from outrider.model import SUM_BUCKET, EntityKind, SignalKey
from outrider.vocabulary import catalog


@dataclass(slots=True)
class CellInput:
    """One number of one cell: a slot, or a ratio, product or comparison of two slots."""

    place: UnboundEntity
    column: int
    left: int
    rule: Rule
    right: int = -1


@dataclass(slots=True)
class LayoutPlan:
    """Intermediate result of compiling, before it becomes arrays."""

    adapter: Adapter
    layout: Layout
    places: LayoutEntities
    slots: int = 0
    linear: list[tuple[int, float, int]] = field(default_factory=list)
    extremes: dict[Aggregate, list[tuple[int, float, int]]] = field(
        default_factory=lambda: {Aggregate.MAX: [], Aggregate.MIN: []}
    )
    outs: list[CellInput] = field(default_factory=list)

    # --- rows to slots ----------------------------------------------------------------------------

    def groups(
        self, term: Term, kind: EntityKind, per: tuple[str, ...]
    ) -> dict[tuple[UnboundEntity, ...], list[tuple[int, float]]]:
        """(row, weight) by entity, and by the ``per`` labels within it."""
        rows_by_entity: dict[tuple[UnboundEntity, ...], list[tuple[int, float]]] = {}
        names = term.metrics.on(self.layout.names)
        for row in self.places.matching(names, term.where):
            weight = self.weight(term, row)
            for entity in self.places.every(kind, row) if weight is not None else ():
                rows_by_entity.setdefault((entity, self._within(entity, row, per)), []).append((row, weight or 0.0))
        for row in self.places.matching(term.beside.on(self.layout.names), term.beside_where):
            for entity in self.places.every(kind, row):
                rows_by_entity.setdefault((entity, self._within(entity, row, per)), []).append((row, 0.0))
        return rows_by_entity

    def _within(self, entity: UnboundEntity, row: int, per: tuple[str, ...]) -> UnboundEntity:
        labels = self.layout.series[row].labels
        return UnboundEntity(entity.kind, "\0".join(labels.get(label, "") for label in per)) if per else entity

    def weight(self, term: Term, row: int) -> float | None:
        """Weight of a row; None if a label that should be a number is not."""
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
        """Adds a slot filled from rows."""
        shift = len(self.layout.series) * (Section.GAUGE, Section.DELTA, Section.RATE).index(section)
        number, self.slots = self.slots, self.slots + 1
        share = 1.0 / len(rows) if aggregate is Aggregate.MEAN else 1.0
        target = self.extremes.get(aggregate, self.linear)
        target.extend((row + shift, sign * share * weight, number) for row, weight in rows)
        return number

    def constant(self, value: float) -> int:
        """Adds a slot with a constant value."""
        number, self.slots = self.slots, self.slots + 1
        self.linear.append((3 * len(self.layout.series), value, number))
        return number

    # --- rules ------------------------------------------------------------------------------------

    def add_signal(self, name: str, rules: tuple[Rule, ...]) -> None:
        """Adds, for each entity, the first alternative that the page can serve.

        Of a distribution that is the first one with quantiles and the first one with a mean; buckets give both.
        """
        kind, taken = catalog.signal(name).entity, dict[Statistic, set[UnboundEntity]]()
        for rule in rules:
            if not self.applies(rule):
                continue
            mine = taken.setdefault(rule.statistic, set())
            served = mine | taken.get(Statistic.BUCKETS, set())
            first = len(self.outs)
            _ADD[rule.operator](self, rule, kind, served)
            mine.update(out.place for out in self.outs[first:])

    def applies(self, rule: Rule) -> bool:
        """True if the page has the metrics of every term, and of the required type."""
        suffix = "_bucket" if rule.operator is Operator.HISTOGRAM else ""
        for term in rule.terms:
            names = term.metrics.on(self.layout.names, suffix)
            if not names and not term.beside.on(self.layout.names):
                return False
            if rule.type and any(self.layout.types.get(name) != rule.type for name in names):
                return False
        return True

    def column(self, kind: EntityKind, key: SignalKey) -> int:
        """Column of a key in the batches of a kind."""
        return self.adapter.columns[kind][key]

    def add_term(self, rule: Rule, kind: EntityKind, served: Collection[UnboundEntity]) -> None:
        """Adds one number per entity, or the difference of two."""
        column, term = self.column(kind, SignalKey(rule.signal)), rule.terms[0]
        taken_away = self.groups(rule.terms[1], kind, rule.per) if rule.minus else {}
        for key, rows in self.groups(term, kind, rule.per).items():
            if key[0] in served or (rule.minus and key not in taken_away):
                continue
            slot = self.slot(term.section, term.aggregate, rows)
            if rule.minus:
                shift = len(self.layout.series) * (Section.GAUGE, Section.DELTA, Section.RATE).index(term.section)
                self.linear.extend((row + shift, -weight, slot) for row, weight in taken_away[key])
            self.outs.append(CellInput(key[0], column, slot, rule))

    def add_pair(self, rule: Rule, kind: EntityKind, served: Collection[UnboundEntity]) -> None:
        """Adds a ratio, product or comparison of two numbers of one entity."""
        column, (left, right) = self.column(kind, SignalKey(rule.signal)), rule.terms
        below = self.groups(right, kind, rule.per)
        for key, rows in self.groups(left, kind, rule.per).items():
            if key in below and key[0] not in served:
                over = self.slot(left.section, left.aggregate, rows)
                under = self.slot(right.section, right.aggregate, below[key])
                self.outs.append(CellInput(key[0], column, over, rule, under))

    def add_count(self, rule: Rule, kind: EntityKind, served: Collection[UnboundEntity]) -> None:
        """Adds the number of distinct values of a label for each entity."""
        column, values_by_entity = self.column(kind, SignalKey(rule.signal)), dict[UnboundEntity, set[str]]()
        for row in self.places.matching(rule.terms[0].metrics.on(self.layout.names), rule.terms[0].where):
            entity = self.places.of(kind, row)
            if entity is not None:
                value = first_label(self.layout.series[row].labels, rule.distinct) or str(row)
                values_by_entity.setdefault(entity, set()).add(value)
        for entity, values in values_by_entity.items():
            if entity not in served:
                self.outs.append(CellInput(entity, column, self.constant(len(values)), rule))

    def add_summary(self, rule: Rule, kind: EntityKind, served: Collection[UnboundEntity]) -> None:
        """Adds the quantiles computed by a source. They cannot be merged: of several the largest is used."""
        term, rows_by_quantile = rule.terms[0], dict[tuple[UnboundEntity, float], list[tuple[int, float]]]()
        for row in self.places.matching(term.metrics.on(self.layout.names), term.where):
            entity = self.places.of(kind, row)
            quantile = number_of(self.layout.series[row].labels.get("quantile", ""))
            if entity is not None and entity not in served and quantile in QUANTILES:
                rows_by_quantile.setdefault((entity, quantile), []).append((row, 1.0))
        for (entity, quantile), rows in rows_by_quantile.items():
            column = self.column(kind, SignalKey(rule.signal, quantile=quantile))
            self.outs.append(CellInput(entity, column, self.slot(Section.GAUGE, Aggregate.MAX, rows), rule))

    def add_histogram(self, rule: Rule, kind: EntityKind, served: Collection[UnboundEntity]) -> None:
        """Adds bucket increments on the signal's own ladder; see ``resample`` for bounds that are not on it."""
        signal, term = catalog.signal(rule.signal), rule.terms[0]
        family = term.metrics.on(self.layout.names, "_bucket")[0]
        first, count = self.column(kind, signal.bucket_keys[0]), len(signal.bounds) + 1
        slots: dict[tuple[UnboundEntity, int], int] = {}

        def add(entity: UnboundEntity, bucket: int, row: int, weight: float) -> None:
            if (entity, bucket) not in slots:
                slots[entity, bucket] = self.slot(Section.DELTA, Aggregate.SUM, [])
                self.outs.append(
                    CellInput(entity, first + (count if bucket == SUM_BUCKET else bucket), slots[entity, bucket], rule)
                )
            self.linear.append((row + len(self.layout.series), weight, slots[entity, bucket]))

        for entity, ladder in self.ladders(family, kind, term):
            if entity in served:
                continue
            shares = resample([bound * rule.scale for bound, _ in ladder], signal.bounds)
            for bucket, parts in enumerate(shares):
                # a bucket without a share is needed too: it is empty
                for number, share in parts.items() or [(0, 0.0)]:
                    add(entity, bucket, ladder[number][1], share)
        for row in self.places.matching((family + "_sum",), term.where):
            summed = self.places.of(kind, row)
            if summed is not None and (summed, 0) in slots:
                add(summed, SUM_BUCKET, row, rule.scale)

    def ladders(
        self, family: str, kind: EntityKind, term: Term, *, endless: bool = False
    ) -> Iterator[tuple[UnboundEntity, list[tuple[float, int]]]]:
        """Yields the (bound, row) ladder of each label set, bounds rising to +Inf.

        A page without +Inf has the same number as ``_count``. Without either, the ladder is omitted unless
        ``endless``.
        """
        ladders_by_labels: dict[tuple[UnboundEntity, tuple[tuple[str, str], ...]], list[tuple[float, int]]] = {}
        for row in self.places.matching((family + "_bucket",), term.where):
            labels, entity = self.layout.series[row].labels, self.places.of(kind, row)
            bound = number_of(labels.get("le", ""), finite=False)
            if entity is not None and bound is not None:
                rest = labels_without(self.layout.series[row], "le")
                ladders_by_labels.setdefault((entity, rest), []).append((bound, row))
        counts = {
            labels_without(self.layout.series[row], "le"): row for row in self.layout.names.get(family + "_count", ())
        }
        for (entity, rest), ladder in ladders_by_labels.items():
            rising = sorted(ladder)
            if math.isfinite(rising[-1][0]):
                if rest in counts:
                    rising.append((math.inf, int(counts[rest])))
                elif not endless:
                    continue
            yield entity, rising


def labels_without(series: Series, without: str) -> tuple[tuple[str, str], ...]:
    """Labels of a series without one of them, sorted."""
    return tuple(sorted((name, value) for name, value in series.labels.items() if name != without))


_ADD = {
    Operator.TERM: LayoutPlan.add_term,
    Operator.RATIO: LayoutPlan.add_pair,
    Operator.PRODUCT: LayoutPlan.add_pair,
    Operator.AT_LEAST: LayoutPlan.add_pair,
    Operator.HISTOGRAM: LayoutPlan.add_histogram,
    Operator.SUMMARY: LayoutPlan.add_summary,
    Operator.COUNT: LayoutPlan.add_count,
}


def number_of(text: str, *, finite: bool = True) -> float | None:
    """A label value as a number; None if it is not a number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) or (not finite and not math.isnan(number)) else None
