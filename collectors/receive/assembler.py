"""Pushed series of one target, put together to the page it would have served.

A target whose ``up`` is told has a page for each of those instants: a sample that bears it was on that
page, one with a timestamp of its own belongs to the first page after it. Without ``up`` (OTLP, most
other senders) the page is the newest sample of every series, each with its own time. Either way a page is
closed once nothing came for ``settle``, because senders split one scrape over several requests; and when
several are closed at once the newest is handed on, with the increases of all of them in it.
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

_MOST_SAMPLES = 128  # of one series that wait: a page takes the newest only
_MOST_KNOWN = 500_000
_STALE_BYTES = struct.pack("<Q", STALE_NAN_BITS)
_DELTA_MS = 60 * 60 * 1000  # a total that nothing was added to for so long is let go
_WAITS = 4  # a target that never pauses is handed on after so many times ``settle``
_Key = tuple[str, tuple[tuple[str, str], ...]]


class LayoutCache:
    """Series and layouts shared by every target, so that an adapter is compiled once for pages that are alike."""

    def __init__(self, most: int = _MOST_KNOWN) -> None:
        """``most`` bounds the series remembered; beyond it everything is learnt anew."""
        self._most = most
        self._numbers: dict[_Key, int] = {}
        self._series: list[Series] = []
        self._layouts: dict[bytes, Layout] = {}
        self.generation = 0  # numbers of an earlier generation mean nothing

    def number(self, name: str, labels: Mapping[str, str]) -> int:
        """The number of a series as its target wrote it."""
        key = name, tuple(sorted(labels.items()))
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._series)
            self._series.append(Series(name, dict(labels)))
        return found

    def layout(self, numbers: Sequence[int]) -> Layout:
        """The layout of these series in this order; the same object for the same series."""
        key = np.array(numbers, dtype=np.int64).tobytes()
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = Layout.of(self._series[number] for number in numbers)
        return found

    def tidy(self) -> None:
        """Forget everything once there is too much of it. Not between ``number`` and ``layout``."""
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
    """A page, or (``page`` None) a scrape that the sender says has failed. ``at_ms`` is its instant."""

    at_ms: int
    page: Page | None
    seconds: float
    samples: int | None


class SeriesBuffer:
    """What came from one target and was not handed on yet, and the newest sample of each of its series."""

    def __init__(self, most_series: int) -> None:
        """More series than ``most_series`` are left out."""
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
        """How many series are held."""
        return len(self._series)

    def add(
        self,
        streams: Iterable[Stream],
        target_labels: Mapping[str, str],
        came_at: datetime,
        room: int = _MOST_KNOWN,
    ) -> dict[DropReason, int]:
        """Take in what came, ``room`` new series at most; returns what was left out."""
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
        told = self._meta[stream.name]
        for stamp, value in zip(stream.stamps, stream.values, strict=True):
            if _is_stale(value):
                # The target itself has ended: its sender watches it no more.
                self.retired = self.retired or (stream.name == "up" and stamp > max(told, default=-1))
            elif stamp > self.done:
                told[stamp] = value
                self.retired = self.retired and stream.name != "up"
                self._newest = max(self._newest, stamp)

    def _add(self, stream: Stream, dropped: dict[DropReason, int]) -> None:
        key = stream.name, tuple(sorted(stream.labels.items()))
        held = self._series.get(key)
        if held is None:
            if len(self._series) >= self._limit:
                dropped[DropReason.TOO_MANY_SERIES] = dropped.get(DropReason.TOO_MANY_SERIES, 0) + len(stream.stamps)
                return
            held = self._series[key] = _BufferedSeries(stream.name, stream.labels, stream.delta)
        for stamp, value in sorted(zip(stream.stamps, stream.values, strict=True), key=lambda pair: pair[0]):
            if held.stamps and stamp <= held.stamps[-1]:
                if stamp < held.stamps[-1]:
                    dropped[DropReason.LATE] = dropped.get(DropReason.LATE, 0) + 1
                continue  # the same sample once more: a request that was repeated
            if stamp <= self.done:
                dropped[DropReason.LATE] = dropped.get(DropReason.LATE, 0) + 1
            self._take(held, stamp, value)

    def _take(self, held: _BufferedSeries, stamp: int, value: float) -> None:
        if _is_stale(value):
            held.ended = stamp
            return
        held.ended = None
        if held.delta:
            held.total += value if math.isfinite(value) else 0.0
            value = held.total
        held.stamps.append(stamp)
        held.values.append(value)
        self._newest = max(self._newest, stamp)
        if len(held.stamps) > _MOST_SAMPLES:
            del held.stamps[0], held.values[0]

    def due(self, now: datetime, settle: timedelta) -> bool:
        """True when there is something new and it is whole."""
        if self._waits_since is None or self.came_at is None or self._newest <= self.done:
            return False
        return now - self.came_at >= settle or now - self._waits_since >= settle * _WAITS

    def take(self, layouts: LayoutCache) -> PushedPage:
        """The newest page; what lies before it is let go. Only when ``due``."""
        ups = {stamp: value for stamp, value in self._meta["up"].items() if stamp > self.done}
        at = max(ups) if ups else self._newest
        page = None if ups and ups[at] != 1 else self._page(at, layouts, scraped=bool(ups))
        seconds, samples = self._meta[META[1]].get(at, 0.0), self._meta[META[2]].get(at)
        self.done, self._waits_since = at, None
        for told in self._meta.values():
            for stamp in [stamp for stamp in told if stamp < at - STALE_MS]:
                del told[stamp]
        self._let_go(at)
        return PushedPage(at, page, seconds, None if samples is None else int(samples))

    def _page(self, at: int, layouts: LayoutCache, *, scraped: bool) -> Page:
        found = []
        for held in self._series.values():
            sample = _sample(held, at, self._meta["up"], scraped=scraped)
            if sample is not None:
                found.append((held, sample))
        self._name(layouts)
        found.sort(key=lambda pair: pair[0].number)
        stamps = [np.nan if stamp == at else stamp / 1000 for _, (stamp, _) in found]
        values = [value for _, (_, value) in found]
        layout = layouts.layout([held.number for held, _ in found])
        return Page(layout, np.array(values, dtype=np.float64), np.array(stamps, dtype=np.float64))

    def _name(self, layouts: LayoutCache) -> None:
        """Give every series its number: its labels without those that the sender added to all of them."""
        fresh = [held for held in self._series.values() if held.number < 0]
        if self._generation == layouts.generation and not fresh:
            return
        every = list(self._series.values())
        added = {
            name for name, value in self._target_labels.items() if all(one.labels.get(name) == value for one in every)
        }
        for held in every:
            held.number = layouts.number(held.name, own_labels(held.labels, added))
        self._generation = layouts.generation

    def _let_go(self, at: int) -> None:
        """Keep of each series its newest sample and those after the page; drop those that have ended."""
        for key, held in list(self._series.items()):
            older = sum(1 for stamp in held.stamps if stamp <= at)
            if older > 1:
                del held.stamps[: older - 1], held.values[: older - 1]
            gone = held.ended is not None and held.ended <= at
            silent = at - held.stamps[-1] if held.stamps else 0
            if gone or silent > (_DELTA_MS if held.delta else STALE_MS):
                del self._series[key]


def _sample(held: _BufferedSeries, at: int, ups: Mapping[int, float], *, scraped: bool) -> tuple[int, float] | None:
    """The sample of a series on the page of an instant, None when the page lacks the series."""
    if held.ended is not None and held.ended <= at:
        return None
    for stamp, value in zip(reversed(held.stamps), reversed(held.values), strict=True):
        if stamp > at:
            continue
        if held.delta:
            return at, value  # nothing added is no increase, not a value that stands still
        if stamp == at or (at - stamp <= STALE_MS and not (scraped and stamp in ups)):
            return stamp, value
        return None
    return None


def _is_stale(value: float) -> bool:
    return math.isnan(value) and struct.pack("<d", value) == _STALE_BYTES
