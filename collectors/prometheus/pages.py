"""Rebuilds exposition pages from the raw samples of a Prometheus. Pure.

Every sample of one scrape has the scrape's timestamp, also that of the target's ``up`` sample; only lines with
their own timestamps differ. Labels added by Prometheus are removed and ``exported_x`` becomes ``x``, so that an
adapter sees the exporter's original labels.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from collectors.exposition.parser import Layout, Page, Series
from collectors.prometheus.client import RawSeries

META = ("up", "scrape_duration_seconds", "scrape_samples_scraped")
STALE_MS = 5 * 60 * 1000
Key = tuple[str, str, str]


def key_of(labels: Mapping[str, str]) -> Key:
    """Identity of a target: job, instance, and the path if it is not /metrics."""
    return labels.get("job", ""), labels.get("instance", ""), labels.get("metrics_path", "")


@dataclass(slots=True)
class Instance:
    """One target of Prometheus: its labels, and by scrape time (ms) up, duration, samples."""

    labels: Mapping[str, str]
    up: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    samples: dict[int, float] = field(default_factory=dict)


def instances(series: Iterable[RawSeries]) -> dict[Key, Instance]:
    """Reads the series of ``META``. A target without ``up`` is omitted."""
    instances_by_key: dict[Key, Instance] = {}
    rest = []
    for series_item in series:
        if series_item.labels.get("__name__") == "up":
            labels = {name: value for name, value in series_item.labels.items() if name != "__name__"}
            instances_by_key.setdefault(key_of(labels), Instance(labels)).up.update(
                zip(series_item.stamps, series_item.values, strict=True)
            )
        else:
            rest.append(series_item)
    for series_item in rest:
        instance = instances_by_key.get(key_of(series_item.labels))
        if instance is not None:
            field_of = {"scrape_duration_seconds": instance.seconds, "scrape_samples_scraped": instance.samples}
            field_of.get(series_item.labels["__name__"], {}).update(
                zip(series_item.stamps, series_item.values, strict=True)
            )
    return instances_by_key


class PageBuilder:
    """Builds pages; caches series and layouts, so that unchanged targets share prepared layouts."""

    def __init__(self, most: int = 500_000) -> None:
        """``most`` is the maximum number of cached series."""
        self._most = most
        self._series: dict[tuple[tuple[str, str], ...], int] = {}
        self._known: list[Series] = []
        self._layouts: dict[bytes, Layout] = {}

    def pages(self, series: Sequence[RawSeries], instance: Instance, times: Sequence[int]) -> list[Page]:
        """One page for each wanted scrape time (ms), in that order."""
        if len(self._known) > self._most:
            self._series.clear()
            self._known.clear()
            self._layouts.clear()
        added = added_labels(series, instance.labels)
        ranked = sorted((self._identity(item.labels, added), item) for item in series)
        scraped = sorted(instance.up)
        nexts = [scraped[index] if (index := bisect_right(scraped, at)) < len(scraped) else sys.maxsize for at in times]
        return [self._page(ranked, instance, at, until) for at, until in zip(times, nexts, strict=True)]

    def _identity(self, labels: Mapping[str, str], added: frozenset[str]) -> int:
        own = own_labels(labels, added)
        key = tuple(sorted(own.items()))
        number = self._series.get(key)
        if number is None:
            number = self._series[key] = len(self._known)
            name = own.pop("__name__", "")
            self._known.append(Series(name, own))
        return number

    def _page(self, ranked: list[tuple[int, RawSeries]], instance: Instance, at: int, until: int) -> Page:
        ids, values, stamps = [], [], []
        for identity, series in ranked:
            sample = _sample(series, instance, at, until)
            if sample is not None:
                ids.append(identity)
                values.append(sample[1])
                stamps.append(np.nan if sample[0] == at else sample[0] / 1000)
        key = np.array(ids, dtype=np.int64).tobytes()
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout.of(self._known[identity] for identity in ids)
        return Page(layout, np.array(values, dtype=np.float64), np.array(stamps, dtype=np.float64))


def _sample(series: RawSeries, instance: Instance, at: int, until: int) -> tuple[int, float] | None:
    """The sample of this scrape: the one at its time, or the newest with its own timestamp.

    A page may have timestamps slightly later than the start of its scrape, so those before the next scrape
    (``until``) count. A sample at an earlier scrape's time is not on this page: the series has ended.
    """
    newest = bisect_left(series.stamps, until) - 1
    if newest < 0:
        return None
    stamp = series.stamps[newest]
    fresh = stamp == at or (stamp not in instance.up and at - stamp <= STALE_MS)
    return (stamp, series.values[newest]) if fresh else None


def added_labels(series: Sequence[RawSeries], labels: Mapping[str, str]) -> frozenset[str]:
    """Labels that every series has with the target's own value: Prometheus added them.

    If a page's label was honored instead, some series differ, and the label is the page's.
    """
    return frozenset(name for name, value in labels.items() if all(item.labels.get(name) == value for item in series))


def own_labels(labels: Mapping[str, str], added: Collection[str]) -> dict[str, str]:
    """The exporter's original labels: added ones are removed, ``exported_x`` becomes ``x``."""
    labels_of_page = {name: value for name, value in labels.items() if name not in added}
    for name in added:
        exported = labels_of_page.pop(f"exported_{name}", None)
        if exported is not None:
            labels_of_page[name] = exported
    return labels_of_page
