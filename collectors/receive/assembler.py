"""Assembles the pushed series of one target into the page it would have served.

A target with ``up`` has a page for each of its timestamps. A sample with that timestamp was on that page; one with
its own timestamp belongs to the next page. Without ``up`` (OTLP, most other senders) the page is the newest sample
of every series, each with its own time. A page is complete once nothing arrived for ``settle``, because senders
split one scrape over several requests. If several are complete at once, the newest is returned, with the increases
of all of them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np

from collectors.exposition.parser import Layout, Page, Series
from collectors.prometheus.pages import STALE_MS, own_labels
from collectors.receive.protocol import META, STALE_NAN_BITS, DropReason, Stream

_MOST_SAMPLES = 128  # buffered per series: a page uses only the newest
_MOST_KNOWN = 500_000
_STALE_BYTES = struct.pack("<Q", STALE_NAN_BITS)
_DELTA_MS = 60 * 60 * 1000  # a total without additions for this long is dropped
_WAITS = 4  # a target that never pauses is returned after this multiple of ``settle``
_Key = tuple[str, tuple[tuple[str, str], ...]]


class LayoutCache:
    """Series and layouts shared by all targets, so that an adapter is compiled once for similar pages."""

    def __init__(self, most: int = _MOST_KNOWN) -> None:
        """``most`` is the maximum number of cached series; beyond it the cache is rebuilt."""
        self._most = most
        self._numbers: dict[_Key, int] = {}
        self._series: list[Series] = []
        self._layouts: dict[bytes, Layout] = {}
        self.generation = 0  # numbers of an earlier generation mean nothing

    def number(self, name: str, labels: Mapping[str, str]) -> int:
        """The number of a series as its target wrote it."""
        key = name, tuple(sorted(labels.items()))
        number_of_series = self._numbers.get(key)
        if number_of_series is None:
            number_of_series = self._numbers[key] = len(self._series)
            self._series.append(Series(name, dict(labels)))
        return number_of_series

    def layout(self, numbers: Sequence[int]) -> Layout:
        """Layout of these series in this order; the same object for the same series."""
        key = np.array(numbers, dtype=np.int64).tobytes()
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = Layout.of(self._series[number] for number in numbers)
        return layout

    def tidy(self) -> None:
        """Clears the cache once it is too large. Must not be called between ``number`` and ``layout``."""
        if len(self._series) > self._most or len(self._layouts) > 8192:
            self._numbers.clear()
            self._series.clear()
            self._layouts.clear()
            self.generation += 1


@dataclass(slots=True)
class _BufferedSeries:
    """One series: its labels as sent, its newest samples, the total of a delta series, its number."""

    name: str
    labels: Mapping[str, str]
    delta: bool
    stamps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    total: float = 0.0
    ended: int | None = None
    number: int = -1


@dataclass(frozen=True, slots=True)
class PushedPage:
    """A page, or (``page`` None) a scrape reported as failed by the sender. ``at_ms`` is its time."""

    at_ms: int
    page: Page | None
    seconds: float
    samples: int | None


class SeriesBuffer:
    """Pending data of one target, and the newest sample of each of its series."""

    def __init__(self, most_series: int) -> None:
        """Series beyond ``most_series`` are dropped."""
        self._most = self._limit = most_series
        self._series: dict[_Key, _BufferedSeries] = {}
        self._meta: dict[str, dict[int, float]] = {name: {} for name in META}
        self._target_labels: Mapping[str, str] = {}
        self._generation = -1
        self._newest = -1
        self.done = -1
        self.came_at: datetime | None = None
        self._waits_since: datetime | None = None
        self.retired = False

    @property
    def series(self) -> int:
        """Number of buffered series."""
        return len(self._series)

    def add(
        self,
        streams: Iterable[Stream],
        target_labels: Mapping[str, str],
        came_at: datetime,
        room: int = _MOST_KNOWN,
    ) -> dict[DropReason, int]:
        """Adds received series, at most ``room`` new ones; returns the dropped samples by reason."""
        self._limit = min(self._most, len(self._series) + max(0, room))
        dropped: dict[DropReason, int] = {}
        if target_labels != self._target_labels:
            self._target_labels, self._generation = dict(target_labels), -1
        before = self._newest
        for stream in streams:
            if stream.name in META:
                self._add_meta(stream)
            else:
                self._add(stream, dropped)
        self.came_at = came_at if self.came_at is None else max(self.came_at, came_at)
        if self._newest > before or self._waits_since is not None:
            self._waits_since = self._waits_since or came_at
        return dropped

    def _add_meta(self, stream: Stream) -> None:
        values = self._meta[stream.name]
        for stamp, value in zip(stream.stamps, stream.values, strict=True):
            if _is_stale(value):
                # The target itself has ended: its sender no longer scrapes it.
                self.retired = self.retired or (stream.name == "up" and stamp > max(values, default=-1))
            elif stamp > self.done:
                values[stamp] = value
                self.retired = self.retired and stream.name != "up"
                self._newest = max(self._newest, stamp)

    def _add(self, stream: Stream, dropped: dict[DropReason, int]) -> None:
        key = stream.name, tuple(sorted(stream.labels.items()))
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= self._limit:
                dropped[DropReason.TOO_MANY_SERIES] = dropped.get(DropReason.TOO_MANY_SERIES, 0) + len(stream.stamps)
                return
            series = self._series[key] = _BufferedSeries(stream.name, stream.labels, stream.delta)
        for stamp, value in sorted(zip(stream.stamps, stream.values, strict=True), key=lambda pair: pair[0]):
            if series.stamps and stamp <= series.stamps[-1]:
                if stamp < series.stamps[-1]:
                    dropped[DropReason.LATE] = dropped.get(DropReason.LATE, 0) + 1
                continue  # a repeated request: the same sample again
            if stamp <= self.done:
                dropped[DropReason.LATE] = dropped.get(DropReason.LATE, 0) + 1
            self._take(series, stamp, value)

    def _take(self, series: _BufferedSeries, stamp: int, value: float) -> None:
        if _is_stale(value):
            series.ended = stamp
            return
        series.ended = None
        if series.delta:
            series.total += value if math.isfinite(value) else 0.0
            value = series.total
        series.stamps.append(stamp)
        series.values.append(value)
        self._newest = max(self._newest, stamp)
        if len(series.stamps) > _MOST_SAMPLES:
            del series.stamps[0], series.values[0]

    def due(self, now: datetime, settle: timedelta) -> bool:
        """True if there is new data and it is complete."""
        if self._waits_since is None or self.came_at is None or self._newest <= self.done:
            return False
        return now - self.came_at >= settle or now - self._waits_since >= settle * _WAITS

    def take(self, layouts: LayoutCache) -> PushedPage:
        """Returns the newest page and drops older data. Only if ``due``."""
        ups = {stamp: value for stamp, value in self._meta["up"].items() if stamp > self.done}
        at = max(ups) if ups else self._newest
        page = None if ups and ups[at] != 1 else self._page(at, layouts, scraped=bool(ups))
        seconds, samples = self._meta[META[1]].get(at, 0.0), self._meta[META[2]].get(at)
        self.done, self._waits_since = at, None
        for values in self._meta.values():
            for stamp in [stamp for stamp in values if stamp < at - STALE_MS]:
                del values[stamp]
        self._drop_used(at)
        return PushedPage(at, page, seconds, None if samples is None else int(samples))

    def _page(self, at: int, layouts: LayoutCache, *, scraped: bool) -> Page:
        sampled = []
        for series in self._series.values():
            sample = _sample(series, at, self._meta["up"], scraped=scraped)
            if sample is not None:
                sampled.append((series, sample))
        self._number_series(layouts)
        sampled.sort(key=lambda pair: pair[0].number)
        stamps = [np.nan if stamp == at else stamp / 1000 for _, (stamp, _) in sampled]
        values = [value for _, (_, value) in sampled]
        layout = layouts.layout([series.number for series, _ in sampled])
        return Page(layout, np.array(values, dtype=np.float64), np.array(stamps, dtype=np.float64))

    def _number_series(self, layouts: LayoutCache) -> None:
        """Numbers every series by its labels without those that the sender added to all of them."""
        fresh = [series for series in self._series.values() if series.number < 0]
        if self._generation == layouts.generation and not fresh:
            return
        every = list(self._series.values())
        added = {
            name for name, value in self._target_labels.items() if all(item.labels.get(name) == value for item in every)
        }
        for series in every:
            series.number = layouts.number(series.name, own_labels(series.labels, added))
        self._generation = layouts.generation

    def _drop_used(self, at: int) -> None:
        """Keeps the newest sample of each series and those after the page; drops ended series."""
        for key, series in list(self._series.items()):
            older = sum(1 for stamp in series.stamps if stamp <= at)
            if older > 1:
                del series.stamps[: older - 1], series.values[: older - 1]
            gone = series.ended is not None and series.ended <= at
            silent = at - series.stamps[-1] if series.stamps else 0
            if gone or silent > (_DELTA_MS if series.delta else STALE_MS):
                del self._series[key]


def _sample(series: _BufferedSeries, at: int, ups: Mapping[int, float], *, scraped: bool) -> tuple[int, float] | None:
    """Sample of a series on the page of a timestamp, None if the page lacks the series."""
    if series.ended is not None and series.ended <= at:
        return None
    for stamp, value in zip(reversed(series.stamps), reversed(series.values), strict=True):
        if stamp > at:
            continue
        if series.delta:
            return at, value  # no addition means no increase, not an unchanged value
        if stamp == at or (at - stamp <= STALE_MS and not (scraped and stamp in ups)):
            return stamp, value
        return None
    return None


def _is_stale(value: float) -> bool:
    return math.isnan(value) and struct.pack("<d", value) == _STALE_BYTES
