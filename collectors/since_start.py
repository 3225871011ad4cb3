"""The quantiles of a single page, over everything its process has seen: for looking at by hand only.

They are read from the page's own buckets, finer or coarser than the ladder that values are kept in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from collectors.adapter import QUANTILES, Adapter, Operator
from collectors.draft import Draft
from collectors.exposition import Page
from collectors.ladders import quantile_of_page
from collectors.places import Place, Places, resolve
from collectors.targets import Target
from outrider import catalog
from outrider.model import EntityRef


@dataclass(frozen=True, slots=True)
class Since:
    """``below``: the quantile lies below the page's first bound, which is the value; ``above``: above its last."""

    entity: EntityRef
    signal: str
    quantile: float
    value: float
    below: bool
    above: bool


def quantiles(adapter: Adapter, page: Page, target: Target) -> Iterator[Since]:
    """Quantiles of every histogram on the page that counted something; buckets of one entity are merged."""
    draft = Draft(adapter, page.layout, Places(adapter, page.layout))
    for signal, rules in adapter.rules.items():
        taken: set[Place] = set()
        for rule in rules:
            if rule.operator is not Operator.HISTOGRAM or not draft.applies(rule):
                continue
            merged: dict[Place, dict[float, float]] = {}
            family = rule.terms[0].metrics.on(page.names, "_bucket")[0]
            for place, ladder in draft.ladders(family, catalog.signal(signal).entity, rule.terms[0]):
                if place not in taken:
                    counts = merged.setdefault(place, {})
                    for bound, row in ladder:
                        if math.isfinite(page.values[row]):
                            counts[bound * rule.scale] = counts.get(bound * rule.scale, 0.0) + float(page.values[row])
            taken |= merged.keys()
            for place, counts in merged.items():
                entity = resolve(place, target)
                for quantile in QUANTILES:
                    found = quantile_of_page(sorted(counts.items()), quantile)
                    if found is not None:
                        yield Since(entity, signal, quantile, *found)
