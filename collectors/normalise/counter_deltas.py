"""Differences between a page and the previous one: increases, and which of them are trustworthy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collectors.exposition.parser import Layout, Page
from collectors.mapping.compiler import CompiledLayout
from collectors.mapping.entity_binding import Binding
from collectors.mapping.evaluate import Rows
from collectors.mapping.model import Adapter
from collectors.mapping.target import Target
from collectors.normalise.disappearance import DisappearedEntities
from collectors.normalise.fault_codes import FaultCodeTracker
from outrider.model import CellStatus, EntityRef, Floats, Statuses, TrustVerdict
from outrider.topology import Edge

OFF_SECONDS = 300.0  # seconds; a line's timestamp may differ from its scrape by at most this
_SAME_START_SECONDS = 1.0  # node_boot_time_seconds varies with the clock


@dataclass(slots=True)
class PreviousScrape:
    """State of a target between scrapes. Arrays follow ``layout``; ``known`` rows have a previous value."""

    adapter: Adapter
    layout: Layout | None = None
    compiled: CompiledLayout | None = None
    binding: Binding | None = None
    at: float | None = None  # last good scrape, unix seconds
    values: Floats = field(default_factory=lambda: np.empty(0))
    stamps: Floats = field(default_factory=lambda: np.empty(0))
    known: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))
    started: float = np.nan
    beat_at: float | None = None  # time of the heartbeat's last change
    first: bool = True
    lost: DisappearedEntities = field(init=False)
    bound_to: Target | None = None
    edges: tuple[Edge, ...] = ()
    labels: Mapping[EntityRef, Mapping[str, str]] = field(default_factory=dict)
    codes: FaultCodeTracker = field(default_factory=FaultCodeTracker)

    def __post_init__(self) -> None:
        """Devices stay lost until they are back."""
        self.lost = DisappearedEntities(stays=tuple(self.adapter.seen))

    def bind_to(self, target: Target, binding: Binding, at: float) -> None:
        """Sets a new binding, and keeps the topology of devices that are no longer in it."""
        self.lost.compare(self.binding, binding, self.at if self.at is not None else at)
        self.bound_to, self.binding = target, binding
        lost_edges = [edge for edges in self.lost.edges.values() for edge in edges]
        self.edges = (*binding.edges, *lost_edges)
        self.labels = {**binding.labels, **self.lost.labels}

    def move_to(self, layout: Layout) -> None:
        """Reorders the previous values to another layout, series by series."""
        rows = layout.rows_in(self.layout) if self.layout else np.full(len(layout.series), -1, dtype=np.intp)
        present = rows >= 0
        values, stamps, were = np.full(rows.size, np.nan), np.full(rows.size, np.nan), np.zeros(rows.size, dtype=bool)
        if present.any():
            values[present], stamps[present] = self.values[rows[present]], self.stamps[rows[present]]
            were[present] = self.known[rows[present]]
        self.layout, self.values, self.stamps, self.known = layout, values, stamps, were

    def keep(self, page: Page, at: float, start_row: int) -> None:
        """Stores this page for the next one."""
        self.first = self.at is None
        self.beat_at = at if self.beat_at is None else self.beat_at
        self.at, self.values, self.stamps = at, page.values, page.timestamps
        self.known = np.ones(page.values.size, dtype=bool)
        if start_row >= 0:
            self.started = float(page.values[start_row])


@dataclass(frozen=True, slots=True)
class ScrapeDelta:
    """Input of the evaluation, and the state of the scrape as a whole."""

    rows: Rows
    interval: float | None
    restarted: bool = False
    clock_step: bool = False
    stale: bool = False
    frozen: bool = False

    def trust(self, status: Statuses, *, partial: bool, exploded: bool = False, repeats: int = 0) -> TrustVerdict:
        """Verdict of a batch: the most severe that applies.

        ``partial``: entities known from this target are missing. ``exploded``: only a part of the page was read.
        ``repeats``: rows of series that the page has more than once.
        """
        if self.clock_step:
            return TrustVerdict.CLOCK_STEP
        if self.frozen:
            return TrustVerdict.FROZEN
        if self.restarted or (status == CellStatus.RESET).any():
            return TrustVerdict.RESET
        if self.stale:
            return TrustVerdict.STALE
        if exploded:
            return TrustVerdict.EXPLOSION
        if repeats:
            return TrustVerdict.DUPLICATE
        return TrustVerdict.PARTIAL if partial else TrustVerdict.FRESH


def delta_of(
    past: PreviousScrape, compiled: CompiledLayout, page: Page, at: float, *, any_time: bool = False
) -> ScrapeDelta:
    """Compares a page with the previous one, which must be in the order of the page's layout.

    ``any_time``: lines may be about another time than the scrape's, as those of a file.
    """
    size = page.values.size
    flags = np.zeros(3 * size + 1, dtype=np.uint8)
    later = flags[size : 3 * size].reshape(2, size)  # a view: increases and rates
    invalid = ~np.isfinite(page.values)
    interval = None if past.at is None else at - past.at
    if interval is None or interval <= 0:
        later[:] = CellStatus.ABSENT if interval is None else CellStatus.UNTRUSTED
        off = _off(page, at) & (not any_time)
        flags[:size][off] = CellStatus.STALE
        flags[:size][invalid] = CellStatus.UNTRUSTED
        rows = Rows.of(page.values, np.zeros(size), 1.0, flags)
        return ScrapeDelta(rows, None, clock_step=interval is not None, stale=_all_stamped(page, off))
    increases = _increases(past, page, later)
    if compiled.born.size:  # NaN of a new series differs from nothing
        recreated = page.values[compiled.born_at] > past.values[compiled.born_at]
        later[:, compiled.born[recreated]] = np.maximum(later[:, compiled.born[recreated]], CellStatus.RESET)
    restarted = _restarted(past, compiled, page)
    if restarted:
        later[:] = CellStatus.RESET
    still, seconds = _own_times(past, page, interval)
    if not any_time:
        still |= _off(page, at)
    frozen = _frozen(past, compiled, page, at)
    still |= frozen
    if still.any():
        flags[:size][still] = CellStatus.STALE
        later[:, still] = np.maximum(later[:, still], CellStatus.STALE)
    unknown = ~np.isfinite(increases) & (later[0] != CellStatus.ABSENT)
    if invalid.any() or unknown.any():
        flags[:size][invalid] = CellStatus.UNTRUSTED
        later[:, unknown] = np.maximum(later[:, unknown], CellStatus.UNTRUSTED)
    rows = Rows.of(page.values, increases, seconds, flags)
    return ScrapeDelta(rows, interval, restarted=restarted, stale=_all_stamped(page, still), frozen=frozen)


def _off(page: Page, at: float) -> NDArray[np.bool_]:
    """Lines whose own timestamp is far from ``at``."""
    off: NDArray[np.bool_] = np.abs(page.timestamps - at) > OFF_SECONDS
    return off


def _all_stamped(page: Page, rows: NDArray[np.bool_]) -> bool:
    """True if ``rows`` is not empty and covers all lines with a timestamp of their own."""
    return bool(rows.any() and rows[np.isfinite(page.timestamps)].all())


def seconds_off(page: Page, at: float) -> float | None:
    """Seconds of the newest line behind (+) or ahead of (-) ``at``, if all timestamped lines are far off; else None."""
    known = page.timestamps[np.isfinite(page.timestamps)]
    return at - float(known.max()) if known.size and _all_stamped(page, _off(page, at)) else None


def _frozen(past: PreviousScrape, compiled: CompiledLayout, page: Page, at: float) -> bool:
    """True if the heartbeat has stood still for too long: the page is stale."""
    heartbeat, beats = past.adapter.heartbeat, compiled.beats
    if heartbeat is None or not beats.size:
        return False
    if not np.array_equal(page.values[beats], past.values[beats], equal_nan=True):
        past.beat_at = at
    return past.beat_at is not None and at - past.beat_at >= heartbeat.within_seconds


def _increases(past: PreviousScrape, page: Page, later: Statuses) -> Floats:
    """Increase of every row; ``later`` receives the status of untrustworthy ones."""
    before, newcomers = past.values, ~past.known
    if newcomers.any():
        if past.adapter.from_zero:
            before = np.where(newcomers, 0.0, before)
        else:
            later[:, newcomers] = CellStatus.ABSENT
    with np.errstate(invalid="ignore"):
        increases = page.values - before
        later[:, increases < 0] = CellStatus.RESET
    return increases


def _own_times(past: PreviousScrape, page: Page, interval: float) -> tuple[NDArray[np.bool_], Floats | float]:
    """Rows whose own timestamp stands still, and the seconds that each row's increase covers."""
    stamped = np.isfinite(page.timestamps) & np.isfinite(past.stamps)
    if not stamped.any():
        return stamped, interval
    steps = np.where(stamped, page.timestamps - past.stamps, interval)
    return stamped & (steps <= 0), np.where(steps > 0, steps, interval)


def _restarted(past: PreviousScrape, compiled: CompiledLayout, page: Page) -> bool:
    if compiled.start_row < 0:
        return False
    return bool(abs(float(page.values[compiled.start_row]) - past.started) > _SAME_START_SECONDS)
