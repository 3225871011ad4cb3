"""What speaks against a page that can be read, in sentences for those who look at it by hand. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collectors.exposition.parser import Page, Series
from collectors.mapping.model import Adapter
from collectors.normalise.counter_deltas import seconds_off
from collectors.normalise.cumulative import odd_histograms
from collectors.scrape.result import Scrape
from outrider.vocabulary.units import format_duration

_NAMED = 3  # of a kind; the rest is counted


def warnings_of(scrape: Scrape, page: Page, adapter: Adapter) -> Iterator[str]:
    """A sentence for each thing that is odd about a page. ``scrape`` is as its limit of series left it."""
    off = seconds_off(page, scrape.at.timestamp())
    if off is not None:
        side = "old" if off > 0 else "in the future"
        believed = "shown as they are, since this is a file" if scrape.saved else "not believed"
        yield f"the newest of its lines is {format_duration(abs(off))} {side}: {believed}"
    if page.layout.contradicted:
        read = ", ".join(f"{name} (read as {page.types[name]})" for name in page.layout.contradicted)
        yield f"two types are given of {read}"
    if page.layout.repeats:
        yield f"series stand on it more than once, and the first line counts: {named_doubles(page)}"
    if scrape.exploded is not None:
        yield str(scrape.exploded)
    odd = list(dict.fromkeys(one.why for one in odd_histograms(adapter, page, scrape.target)))
    if odd:
        yield f"histograms that are not believed: {_listed(odd)}"


def named_doubles(page: Page) -> str:
    """The series that a page gives more than once, with their values where these differ; of many the first."""
    values: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
    series: dict[tuple[str, tuple[tuple[str, str], ...]], Series] = {}
    for row, one in enumerate(page.series):
        series.setdefault(one.identity, one)
        values.setdefault(one.identity, []).append(float(page.values[row]))
    doubled = {key: found for key, found in values.items() if len(found) > 1}
    # those that say two things first: the others cost nothing
    told = sorted(doubled, key=lambda key: not _differ(doubled[key]))
    return _listed([f"{series[key]}{_values(doubled[key])}" for key in told])


def _differ(values: list[float]) -> bool:
    return not np.array_equal(values[1:], values[:-1], equal_nan=True)


def _values(values: list[float]) -> str:
    return f" ({', '.join(f'{value:g}' for value in values)})" if _differ(values) else ""


def _listed(told: list[str]) -> str:
    more = f", and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return f"{', '.join(told[:_NAMED])}{more}"
