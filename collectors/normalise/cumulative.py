"""The quantiles of a single page, over everything its process has seen: for looking at by hand only.

They are read from the page's own buckets, finer or coarser than the ladder that values are kept in.
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
    """A histogram of which nothing is believed, and why: it names the series and what is wrong with its buckets."""

    entity: EntityRef
    signal: str
    why: str


def quantiles(adapter: Adapter, page: Page, target: Target) -> Iterator[CumulativeQuantile]:
    """Quantiles of every histogram on the page that counted something; buckets of one entity are merged."""
    for entity, signal, counts, why in _histograms(adapter, page, target):
        for quantile in QUANTILES if not why else ():
            found = quantile_of_page(counts, quantile)
            if found is not None:
                yield CumulativeQuantile(entity, signal, quantile, *found)


def invalid_histograms(adapter: Adapter, page: Page, target: Target) -> Iterator[InvalidHistogram]:
    """Every histogram on the page whose buckets cannot be those of one."""
    for entity, signal, _, why in _histograms(adapter, page, target):
        if why:
            yield InvalidHistogram(entity, signal, why)


def _histograms(adapter: Adapter, page: Page, target: Target) -> Iterator[tuple[EntityRef, str, Counts, str]]:
    """Entity, signal and merged counts of each; nothing in their place, and why, where a part of it is odd."""
    draft = LayoutPlan(adapter, page.layout, LayoutEntities(adapter, page.layout))
    for signal, rules in adapter.rules.items():
        taken: set[UnboundEntity] = set()
        for rule in rules:
            if rule.operator is not Operator.HISTOGRAM or not draft.applies(rule):
                continue
            family = rule.terms[0].metrics.on(page.names, "_bucket")[0]
            parts: dict[UnboundEntity, list[Counts]] = {}
            odd: dict[UnboundEntity, str] = {}
            kind = catalog.signal(signal).entity
            for place, ladder in draft.ladders(family, kind, rule.terms[0], endless=True):
                if place in taken:
                    continue
                fault = invalidity([(bound, float(page.values[row])) for bound, row in ladder])
                if fault:
                    odd.setdefault(place, f"{_name_of(family, page, ladder)} {fault}")
                counts = [(bound * rule.scale, float(page.values[row])) for bound, row in ladder]
                parts.setdefault(place, []).append(counts)
            taken |= parts.keys()
            for place, found in parts.items():
                why = odd.get(place, "")
                yield resolve(place, target), signal, () if why else merged(found), why


def _name_of(family: str, page: Page, ladder: Sequence[tuple[float, int]]) -> str:
    labels = sorted((name, value) for name, value in page.series[ladder[0][1]].labels.items() if name != "le")
    inside = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{family}{{{inside}}}" if inside else family
