"""Raw samples of a Prometheus back to the pages they came from. Pure.

Every sample of one scrape bears the scrape's timestamp, which is also that of the target's ``up``
sample; only lines with timestamps of their own differ. The labels that Prometheus added are taken off
again and ``exported_x`` becomes ``x``, so that an adapter sees what the exporter wrote.
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
    """What tells targets apart: job, instance, and the path where it is not the usual one."""
    return labels.get("job", ""), labels.get("instance", ""), labels.get("metrics_path", "")


@dataclass(slots=True)
class Instance:
    """One target as Prometheus knows it: its labels, and by scrape instant (ms) up, duration, samples."""

    labels: Mapping[str, str]
    up: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    samples: dict[int, float] = field(default_factory=dict)


def instances(series: Iterable[RawSeries]) -> dict[Key, Instance]:
    """Read the series of ``META``. A target without ``up`` is left out."""
    found: dict[Key, Instance] = {}
    rest = []
    for one in series:
        if one.labels.get("__name__") == "up":
            labels = {name: value for name, value in one.labels.items() if name != "__name__"}
            found.setdefault(key_of(labels), Instance(labels)).up.update(zip(one.stamps, one.values, strict=True))
        else:
            rest.append(one)
    for one in rest:
        instance = found.get(key_of(one.labels))
        if instance is not None:
            field_of = {"scrape_duration_seconds": instance.seconds, "scrape_samples_scraped": instance.samples}
            field_of.get(one.labels["__name__"], {}).update(zip(one.stamps, one.values, strict=True))
    return found


class PageBuilder:
    """Builds pages; remembers series and layouts, so that unchanged targets share what was prepared."""

    def __init__(self, most: int = 500_000) -> None:
        """``most`` bounds the series remembered."""
        self._most = most
        self._series: dict[tuple[tuple[str, str], ...], int] = {}
        self._known: list[Series] = []
        self._layouts: dict[bytes, Layout] = {}

    def pages(self, series: Sequence[RawSeries], instance: Instance, wanted: Sequence[int]) -> list[Page]:
        """One page for each wanted scrape instant (ms), in that order."""
        if len(self._known) > self._most:
            self._series.clear()
            self._known.clear()
            self._layouts.clear()
        added = added_labels(series, instance.labels)
        ranked = sorted((self._identity(one.labels, added), one) for one in series)
        scraped = sorted(instance.up)
        nexts = [
            scraped[place] if (place := bisect_right(scraped, at)) < len(scraped) else sys.maxsize for at in wanted
        ]
        return [self._page(ranked, instance, at, until) for at, until in zip(wanted, nexts, strict=True)]

    def _identity(self, labels: Mapping[str, str], added: frozenset[str]) -> int:
        own = own_labels(labels, added)
        key = tuple(sorted(own.items()))
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = len(self._known)
            name = own.pop("__name__", "")
            self._known.append(Series(name, own))
        return found

    def _page(self, ranked: list[tuple[int, RawSeries]], instance: Instance, at: int, until: int) -> Page:
        ids, values, stamps = [], [], []
        for identity, series in ranked:
            found = _sample(series, instance, at, until)
            if found is not None:
                ids.append(identity)
                values.append(found[1])
                stamps.append(np.nan if found[0] == at else found[0] / 1000)
        key = np.array(ids, dtype=np.int64).tobytes()
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout.of(self._known[identity] for identity in ids)
        return Page(layout, np.array(values, dtype=np.float64), np.array(stamps, dtype=np.float64))


def _sample(series: RawSeries, instance: Instance, at: int, until: int) -> tuple[int, float] | None:
    """The sample this scrape brought: the one of its instant, or the newest with a timestamp of its own.

    A page may bear timestamps a little later than the instant its scrape began, so those before the
    next scrape (``until``) count. A sample that stands at an earlier scrape's instant is not on this
    page: the series has gone.
    """
    newest = bisect_left(series.stamps, until) - 1
    if newest < 0:
        return None
    stamp = series.stamps[newest]
    fresh = stamp == at or (stamp not in instance.up and at - stamp <= STALE_MS)
    return (stamp, series.values[newest]) if fresh else None


def added_labels(series: Sequence[RawSeries], labels: Mapping[str, str]) -> frozenset[str]:
    """Labels that stand on every series with the target's own value: Prometheus put them there.

    Where a page's label was honoured instead, some series differ, and the label is the page's.
    """
    return frozenset(name for name, value in labels.items() if all(one.labels.get(name) == value for one in series))


def own_labels(labels: Mapping[str, str], added: Collection[str]) -> dict[str, str]:
    """The labels as the exporter wrote them: what was added is taken off, ``exported_x`` is ``x`` again."""
    found = {name: value for name, value in labels.items() if name not in added}
    for name in added:
        exported = found.pop(f"exported_{name}", None)
        if exported is not None:
            found[name] = exported
    return found
