"""Common base of all engine pages: one matrix of numbers per service and time, and a sheet per replica."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from outrider.model import Floats
from simulator.cluster.pods import Pod
from simulator.engine.counters import HISTOGRAMS
from simulator.exporters.ladders import through
from simulator.exporters.outlines import CREATED_APART, Labels, Layout, Release, Style, outline, release
from simulator.exporters.sheet import Sheet
from simulator.fleet import Fleet
from simulator.spec.fleets import ServiceSpec

Columns = Mapping[str, Floats | float]

UNSTREAMED = 8  # one of this many clients does not stream
REFUSAL_SECONDS = 0.002  # duration of a response without engine work
_LOADED_BEFORE_READY_SECONDS = 20.0  # an engine registers its metrics before its warm-up ends
_CREATED_STEP_SECONDS = 1e-5


@dataclass
class View:
    """Current state of one service's engines; arrays have shape (slots,).

    ``rates`` are per second since the previous page; on the first page, since the engine started.
    """

    fleet: Fleet
    slots: np.ndarray
    service: ServiceSpec
    at: float = 0.0
    elapsed: float = 0.0
    first: bool = True
    _before: dict[str, Floats] = field(default_factory=dict)
    _rates: dict[str, Floats] = field(default_factory=dict)

    def advance(self) -> None:
        """Updates the view after the fleet has advanced."""
        self.first = self.at == 0.0
        self.elapsed, self.at = self.fleet.at - self.at, self.fleet.at

    def _mine(self, values: Floats) -> Floats:
        """Returns the rows of the service's slots."""
        result: Floats = values[self.slots]
        return result

    def plain(self, name: str) -> Floats:
        """Returns a plain counter."""
        return self._mine(self.fleet.bank.counters.plain[name])

    def buckets(self, name: str) -> Floats:
        """Returns counts per bucket of a histogram, shape (slots, buckets)."""
        return self._mine(self.fleet.bank.counters.buckets[name])

    def count(self, name: str) -> Floats:
        """Returns the number of observations of a histogram."""
        return np.asarray(self.buckets(name).sum(axis=1), dtype=np.float64)

    def total(self, name: str) -> Floats:
        """Returns the sum of the observed values of a histogram."""
        return self._mine(self.fleet.bank.counters.sums[name])

    def gauge(self, name: str) -> Floats:
        """Returns a gauge of the engine model; 0 for sleeping engines."""
        return np.where(self.asleep, 0.0, self._mine(getattr(self.fleet.bank, name)))

    @property
    def in_flight(self) -> Floats:
        """Requests not yet answered by each HTTP server."""
        return self._mine(self.fleet.bank.in_flight)

    @property
    def cpu_seconds(self) -> Floats:
        """CPU seconds of each process."""
        return np.round(self._mine(self.fleet.cpu_seconds), 2)

    @property
    def asleep(self) -> np.ndarray:
        """Engines that were put to sleep."""
        return self._mine(self.fleet.effects.slots.asleep) > 0.5

    @property
    def still(self) -> np.ndarray:
        """Hung engine cores, whose values stay frozen."""
        effects = self.fleet.effects.slots
        return self._mine(effects.hung + effects.core_dead + effects.asleep) > 0.5

    @property
    def ready_at(self) -> Floats:
        """Time at which each engine became ready, unix seconds; 0 if it does not serve."""
        pods = self.fleet.pods.pods
        return np.array([pods[slot].ready_at or 0.0 for slot in self.slots.tolist()])

    @property
    def started_at(self) -> Floats:
        """Start time of each container, unix seconds."""
        pods = self.fleet.pods.pods
        return np.array([pods[slot].started_at for slot in self.slots.tolist()])

    @property
    def startup_seconds(self) -> Floats:
        """Start-up seconds of each container, until it served."""
        return np.maximum(self.ready_at - self.started_at, 0.0)

    @property
    def finished(self) -> Floats:
        """Completed requests."""
        return self.plain("finished_stop") + self.plain("finished_length")

    @property
    def left(self) -> Floats:
        """Requests aborted by their client."""
        return np.maximum(self.plain("http_ok") - self.finished, 0.0)

    @property
    def received(self) -> Floats:
        """Requests that reached the server, with or without a response."""
        return self.plain("http_ok") + self.plain("http_4xx") + self.plain("http_5xx") + self.in_flight

    def grown(self, name: str, now: Floats) -> Floats:
        """Returns the increase of a running total, of any shape (slots, ...), since the previous page."""
        before = self._before.get(name)
        self._before[name] = now.copy()
        return now if before is None else np.where(now >= before, now - before, now)

    def per_second(self, name: str, now: Floats) -> Floats:
        """Returns the increase per second; the value of a hung engine stays."""
        span = np.maximum(self.at - self.ready_at, 1.0) if self.first else max(self.elapsed, 1e-9)
        rate = np.asarray(self.grown(name, now) / span, dtype=np.float64)
        self._rates[name] = np.where(self.still, self._rates.get(name, rate), rate)
        return self._rates[name]

    def share(self, name: str, part: Floats, whole: Floats) -> Floats:
        """Returns the share of ``part`` in the increase of ``whole``; unchanged without an increase."""
        gain, all_gain = self.grown(f"{name} part", part), self.grown(f"{name} whole", whole)
        before = self._rates.get(name, np.zeros(part.shape))
        self._rates[name] = np.where(all_gain > 0, gain / np.maximum(all_gain, 1e-9), before)
        return self._rates[name]


class EnginePages(ABC):
    """Writes the page of any replica that runs this kind of engine."""

    style: ClassVar[Style]

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], _Table] = {}

    def page(self, fleet: Fleet, pod: Pod) -> bytes:
        """Returns the page of a ready pod."""
        changed = bool(fleet.effects.slots.names_changed[pod.slot] > 0.5)
        key = (pod.service.name, self.release(changed))
        if key not in self._tables:
            self._tables[key] = _Table(self, fleet, pod.service, release(key[1]))
        return self._tables[key].page(pod)

    @abstractmethod
    def release(self, changed: bool) -> str:
        """Returns the file of the release in use; another one if the names have ``changed``."""

    @abstractmethod
    def sets(self, service: ServiceSpec) -> dict[str, Labels]:
        """Returns the label sets that families refer to."""

    @abstractmethod
    def scalars(self, view: View) -> Columns:
        """Returns all columns except histograms, each of shape (slots,), (slots, k) or a constant."""

    def ladders(self, service: ServiceSpec) -> dict[str, tuple[float, ...]]:
        """Returns bounds that depend on the model, by ladder or by name of an engine-model histogram."""
        del service
        return {}

    def rows(self, fleet: Fleet, pod: Pod) -> dict[str, Sequence[Labels]]:
        """Returns labels of series that differ between pods."""
        del fleet, pod
        return {}


class _Table:
    """The pages of one service in one release. The matrix has a row for each of its slots."""

    def __init__(self, engine: EnginePages, fleet: Fleet, service: ServiceSpec, page: Release) -> None:
        slots = np.array([pod.slot for pod in fleet.pods.pods if pod.service.name == service.name])
        self._engine, self._service, self._page = engine, service, page
        self._view = View(fleet, slots, service)
        self._row_of = {slot: row for row, slot in enumerate(slots.tolist())}
        self._ladders = {**page.ladders, **engine.ladders(service)}
        self._appeared = {name: np.zeros(slots.size) for name in page.conditions}
        self._columns: dict[str, int] = {}
        self._bounds: dict[str, tuple[float, ...]] = {}
        self._matrix: Floats = np.empty((0, 0))
        self._sheets: dict[int, tuple[object, Sheet]] = {}

    def page(self, pod: Pod) -> bytes:
        """Returns the page of one of its pods."""
        view = self._view
        if view.at != view.fleet.at:
            view.advance()
            self._fill()
        row = self._matrix[self._row_of[pod.slot]]
        shown = frozenset(name for name in self._page.conditions if row[self._columns[name]] > 0)
        rows = self._engine.rows(view.fleet, pod)
        key = (shown, tuple(tuple(labels.values()) for kind in rows.values() for labels in kind))
        known = self._sheets.get(pod.slot)
        if known is None or known[0] != key:
            layout = Layout(self._columns, self._bounds, self._engine.sets(self._service), rows)
            page_outline = outline(self._page, self._engine.style, layout, shown)
            known = self._sheets[pod.slot] = (key, Sheet(page_outline, page_outline.places(row.size)))
        return known[1].render(row)

    def _fill(self) -> None:
        view, size = self._view, self._view.slots.size
        created = view.ready_at - _LOADED_BEFORE_READY_SECONDS
        blocks: dict[str, Floats | float] = {
            **self._engine.scalars(view),
            "created": created[:, None] + _CREATED_STEP_SECONDS * np.arange(CREATED_APART),
        }
        for name, since in self._appeared.items():
            there = np.broadcast_to(np.asarray(blocks[name]), size) > 0
            begun = created if view.first else np.full(size, view.at)
            self._appeared[name] = np.where(there, np.where(since > 0, since, begun), 0.0)
            blocks[f"appeared:{name}"] = self._appeared[name]
        for name in self._page.blocks:
            if name in blocks:
                self._bounds[name] = self._ladders[self._page.block(name).ladder]
            else:
                blocks[name] = self._histogram(name, blocks)
        parts, place = [], 0
        for name, values in blocks.items():
            part = np.asarray(values, dtype=np.float64)
            if part.ndim < 2:
                part = np.broadcast_to(part, size)[:, None]
            self._columns[name] = place
            place += part.shape[1]
            parts.append(part)
        self._matrix = np.concatenate(parts, axis=1)

    def _histogram(self, name: str, scalars: Columns) -> Floats:
        """Returns cumulated buckets with +Inf, count and sum of every slot."""
        block, view = self._page.block(name), self._view
        source = HISTOGRAMS[block.of]
        bounds = self._ladders[block.ladder] if block.ladder else self._ladders.get(block.of, source)
        self._bounds[name] = bounds
        counts, total = through(view.buckets(block.of), source, bounds), view.total(block.of)
        if block.plus:
            more = np.asarray(scalars[block.plus])
            counts, total = counts + more[:, None], total + more * REFUSAL_SECONDS
        if block.share:
            counts, total = shared(counts, block.share), total * _share_ratio(block.share)
        return np.concatenate([counts, counts[:, -1:], np.round(total, 9)[:, None]], axis=1)


def shared(counts: Floats, share: str) -> Floats:
    """Returns the part of ``counts`` from clients without streaming (``whole``) or with it (``streamed``)."""
    whole = np.floor(counts / UNSTREAMED)
    return whole if share == "whole" else counts - whole


def _share_ratio(share: str) -> float:
    return 1 / UNSTREAMED if share == "whole" else 1 - 1 / UNSTREAMED


def process_columns(view: View, open_files: float) -> dict[str, Floats | float]:
    """Returns process metrics of prometheus_client for a Python process, and requests by HTTP status."""
    collections = np.floor(view.cpu_seconds / 40.0)
    return {
        "zero": 0.0,
        "one": 1.0,
        "gc_0": collections * 10,
        "gc_1": collections,
        "gc_2": np.floor(collections / 10),
        "virtual_memory": 5.4e10,
        "resident_memory": np.round(6.2e9 + 2.0e5 * view.in_flight),
        "start_time": np.round(view.started_at, 2),
        "cpu_seconds": view.cpu_seconds,
        "open_files": open_files + view.in_flight,
        "max_files": 1048576.0,
        "http_ok": view.plain("http_ok"),
        "http_4xx": view.plain("http_4xx"),
        "http_5xx": view.plain("http_5xx"),
    }


def status(fleet: Fleet, slot: int) -> int:
    """Returns the HTTP status of ``GET /metrics``: 503 without an engine core."""
    return 503 if fleet.effects.slots.core_dead[slot] > 0.5 else 200
