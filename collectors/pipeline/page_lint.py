"""Anomalies of a readable page, as sentences for an operator. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collectors.exposition.parser import Page, Series
from collectors.mapping.model import Adapter
from collectors.normalise.counter_deltas import seconds_off
from collectors.normalise.cumulative import invalid_histograms
from collectors.scrape.result import Scrape
from outrider.vocabulary.units import format_duration

_LISTED = 3  # per kind; the rest is counted


def warnings_of(scrape: Scrape, page: Page, adapter: Adapter) -> Iterator[str]:
    """Yields a sentence for each anomaly. ``scrape`` is passed after the series limit was applied."""
    off = seconds_off(page, scrape.at.timestamp())
    if off is not None:
        side = "old" if off > 0 else "in the future"
        handling = "shown unchanged because this is a file" if scrape.saved else "rejected"
        yield f"the newest line is {format_duration(abs(off))} {side}: {handling}"
    if page.layout.contradicted:
        read = ", ".join(f"{name} (read as {page.types[name]})" for name in page.layout.contradicted)
        yield f"contradicting types for {read}"
    if page.layout.repeats:
        yield f"repeated series, the first line counts: {repeated_series(page)}"
    if scrape.exploded is not None:
        yield str(scrape.exploded)
    reasons = list(dict.fromkeys(histogram.why for histogram in invalid_histograms(adapter, page, scrape.target)))
    if reasons:
        yield f"rejected histograms: {_listed(reasons)}"


def repeated_series(page: Page) -> str:
    """Lists the series that a page repeats, with their values if these differ; at most the first three."""
    values: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    series: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
    for row, item in enumerate(page.series):
        series.setdefault(item.identity, item)
        values.setdefault(item.identity, []).append(float(page.values[row]))
    repeated = {key: numbers for key, numbers in values.items() if len(numbers) > 1}
    # contradicting values first: the others do no harm
    ordered = sorted(repeated, key=lambda key: not _differ(repeated[key]))
    return _listed([f"{series[key]}{_values(repeated[key])}" for key in ordered])


def _differ(values: list[float]) -> bool:
    return not np.array_equal(values[1:], values[:-1], equal_nan=True)


def _values(values: list[float]) -> str:
    return f" ({', '.join(f'{value:g}' for value in values)})" if _differ(values) else ""


def _listed(items: list[str]) -> str:
    more = f", and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return f"{', '.join(items[:_LISTED])}{more}"
