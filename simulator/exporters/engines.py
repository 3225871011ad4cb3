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

UNSTREAMED = 8  # one client in so many does not stream
REFUSAL_SECONDS = 0.002  # how long an answer takes that no engine works on
_LOADED_BEFORE_READY_SECONDS = 20.0  # an engine makes its metrics before its warm-up ends
_CREATED_STEP_SECONDS = 1e-5


@dataclass
class View:
    """The engines of one service as they are now; arrays have shape (slots,).

    ``rates`` are per second since the page before, and since the engine came up on the first page.
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
        """The fleet has moved on since the last page."""
        self.first = self.at == 0.0
        self.elapsed, self.at = self.fleet.at - self.at, self.fleet.at

    def _mine(self, values: Floats) -> Floats:
        """The rows of the service's slots."""
        result: Floats = values[self.slots]
        return result

    def plain(self, name: str) -> Floats:
        """A plain counter."""
        return self._mine(self.fleet.bank.counters.plain[name])

    def buckets(self, name: str) -> Floats:
        """Counts per bucket of a histogram, shape (slots, buckets)."""
        return self._mine(self.fleet.bank.counters.buckets[name])

    def count(self, name: str) -> Floats:
        """Observations of a histogram."""
        return np.asarray(self.buckets(name).sum(axis=1), dtype=np.float64)

    def total(self, name: str) -> Floats:
        """Sum of the observed values of a histogram."""
        return self._mine(self.fleet.bank.counters.sums[name])

    def gauge(self, name: str) -> Floats:
        """A gauge of the engine model; of a sleeping engine there is nothing to see."""
        return np.where(self.asleep, 0.0, self._mine(getattr(self.fleet.bank, name)))

    @property
    def in_flight(self) -> Floats:
        """Requests each HTTP server has not answered yet."""
        return self._mine(self.fleet.bank.in_flight)

    @property
    def cpu_seconds(self) -> Floats:
        """CPU time each process has used."""
        return np.round(self._mine(self.fleet.cpu_seconds), 2)

    @property
    def asleep(self) -> np.ndarray:
        """Engines that were put to sleep."""
        return self._mine(self.fleet.effects.slots.asleep) > 0.5

    @property
    def still(self) -> np.ndarray:
        """Hung engine cores: their last values stay."""
        effects = self.fleet.effects.slots
        return self._mine(effects.hung + effects.core_dead + effects.asleep) > 0.5

    @property
    def ready_at(self) -> Floats:
        """Since when each engine serves, unix seconds; 0 for those that do not."""
        pods = self.fleet.pods.pods
        return np.array([pods[slot].ready_at or 0.0 for slot in self.slots.tolist()])

    @property
    def started_at(self) -> Floats:
        """Start time of each container, unix seconds."""
        pods = self.fleet.pods.pods
        return np.array([pods[slot].started_at for slot in self.slots.tolist()])

    @property
    def startup_seconds(self) -> Floats:
        """From the start of each container until it served."""
        return np.maximum(self.ready_at - self.started_at, 0.0)

    @property
    def finished(self) -> Floats:
        """Whole answers."""
        return self.plain("finished_stop") + self.plain("finished_length")

    @property
    def left(self) -> Floats:
        """Requests whose client went away before the end."""
        return np.maximum(self.plain("http_ok") - self.finished, 0.0)

    @property
    def received(self) -> Floats:
        """Requests that reached the server, answered or not."""
        return self.plain("http_ok") + self.plain("http_4xx") + self.plain("http_5xx") + self.in_flight

    def grown(self, name: str, now: Floats) -> Floats:
        """Growth of a running total, of any shape (slots, ...), since the previous page."""
        before = self._before.get(name)
        self._before[name] = now.copy()
        return now if before is None else np.where(now >= before, now - before, now)

    def per_second(self, name: str, now: Floats) -> Floats:
        """The same per second; the value of a hung engine stays."""
        span = np.maximum(self.at - self.ready_at, 1.0) if self.first else max(self.elapsed, 1e-9)
        rate = np.asarray(self.grown(name, now) / span, dtype=np.float64)
        self._rates[name] = np.where(self.still, self._rates.get(name, rate), rate)
        return self._rates[name]

    def share(self, name: str, part: Floats, whole: Floats) -> Floats:
        """Share of ``part`` in the growth of ``whole``; unchanged without growth."""
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
        """The page of a pod that serves."""
        changed = bool(fleet.effects.slots.names_changed[pod.slot] > 0.5)
        key = (pod.service.name, self.release(changed))
        if key not in self._tables:
            self._tables[key] = _Table(self, fleet, pod.service, release(key[1]))
        return self._tables[key].page(pod)

    @abstractmethod
    def release(self, changed: bool) -> str:
        """The file of the release in use; another one when its names have ``changed``."""

    @abstractmethod
    def sets(self, service: ServiceSpec) -> dict[str, Labels]:
        """The label sets that families name."""

    @abstractmethod
    def scalars(self, view: View) -> Columns:
        """All columns except histograms, each of shape (slots,), (slots, k) or a constant."""

    def ladders(self, service: ServiceSpec) -> dict[str, tuple[float, ...]]:
        """Bounds that depend on the model, by ladder; those of the engine model's histograms by their name."""
        del service
        return {}

    def rows(self, fleet: Fleet, pod: Pod) -> dict[str, Sequence[Labels]]:
        """Labels of the children that one pod has and another has not."""
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
        """The page of one of its pods."""
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
            made = outline(self._page, self._engine.style, layout, shown)
            known = self._sheets[pod.slot] = (key, Sheet(made, made.places(row.size)))
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
        """Cumulated buckets with +Inf, count, sum of every slot."""
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
    """The part of ``counts`` from clients that want the ``whole`` answer, or have it ``streamed``."""
    whole = np.floor(counts / UNSTREAMED)
    return whole if share == "whole" else counts - whole


def _share_ratio(share: str) -> float:
    return 1 / UNSTREAMED if share == "whole" else 1 - 1 / UNSTREAMED


def process_columns(view: View, open_files: float) -> dict[str, Floats | float]:
    """Process metrics of prometheus_client for a Python process, and requests by HTTP status."""
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
    """HTTP status of ``GET /metrics``: 503 without an engine core behind the server."""
    return 503 if fleet.effects.slots.core_dead[slot] > 0.5 else 200
