"""Quantiles of a single page since its process started, for display only.

They are computed from the page's own buckets, which differ from the stored bucket ladder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collectors.exposition.parser import Page
from collectors.mapping.buckets import Counts, invalidity, merged, quantile_of_page
from collectors.mapping.entity_binding import LayoutEntities, UnboundEntity, resolve
from collectors.mapping.layout_plan import LayoutPlan
from collectors.mapping.model import QUANTILES, Adapter, Operator
from collectors.mapping.target import Target
from outrider.model import EntityRef
from outrider.vocabulary import catalog


@dataclass(frozen=True, slots=True)
class CumulativeQuantile:
    """``below``: the quantile lies below the page's first bound, which is the value; ``above``: above its last."""

    entity: EntityRef
    signal: str
    quantile: float
    value: float
    below: bool
    above: bool


@dataclass(frozen=True, slots=True)
class InvalidHistogram:
    """A rejected histogram and the reason: it names the series and the problem of its buckets."""

    entity: EntityRef
    signal: str
    why: str


def quantiles(adapter: Adapter, page: Page, target: Target) -> Iterator[CumulativeQuantile]:
    """Quantiles of every non-empty histogram on the page; buckets of one entity are merged."""
    for entity, signal, counts, why in _histograms(adapter, page, target):
        for quantile in QUANTILES if not why else ():
            quantile_value = quantile_of_page(counts, quantile)
            if quantile_value is not None:
                yield CumulativeQuantile(entity, signal, quantile, *quantile_value)


def invalid_histograms(adapter: Adapter, page: Page, target: Target) -> Iterator[InvalidHistogram]:
    """Every histogram on the page with inconsistent buckets."""
    for entity, signal, _, why in _histograms(adapter, page, target):
        if why:
            yield InvalidHistogram(entity, signal, why)


def _histograms(adapter: Adapter, page: Page, target: Target) -> Iterator[tuple[EntityRef, str, Counts, str]]:
    """Entity, signal and merged counts of each; no counts and the reason if a part of it is invalid."""
    plan = LayoutPlan(adapter, page.layout, LayoutEntities(adapter, page.layout))
    for signal, rules in adapter.rules.items():
        taken: set[UnboundEntity] = set()
        for rule in rules:
            if rule.operator is not Operator.HISTOGRAM or not plan.applies(rule):
                continue
            family = rule.terms[0].metrics.on(page.names, "_bucket")[0]
            parts: dict[UnboundEntity, list[Counts]] = {}
            reasons: dict[UnboundEntity, str] = {}
            kind = catalog.signal(signal).entity
            for entity, ladder in plan.ladders(family, kind, rule.terms[0], endless=True):
                if entity in taken:
                    continue
                problem = invalidity([(bound, float(page.values[row])) for bound, row in ladder])
                if problem:
                    reasons.setdefault(entity, f"{_name_of(family, page, ladder)} {problem}")
                counts = [(bound * rule.scale, float(page.values[row])) for bound, row in ladder]
                parts.setdefault(entity, []).append(counts)
            taken |= parts.keys()
            for entity, counts_of_parts in parts.items():
                why = reasons.get(entity, "")
                yield resolve(entity, target), signal, () if why else merged(counts_of_parts), why


def _name_of(family: str, page: Page, ladder: Sequence[tuple[float, int]]) -> str:
    labels = sorted((name, value) for name, value in page.series[ladder[0][1]].labels.items() if name != "le")
    inside = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{family}{{{inside}}}" if inside else family
