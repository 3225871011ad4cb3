"""How a page differs from the one before it: increases, and which of them are to be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collectors.exposition.parser import Layout, Page
from collectors.mapping.compiler import Compiled
from collectors.mapping.entity_binding import Binding
from collectors.mapping.evaluate import Rows
from collectors.mapping.model import Adapter
from collectors.mapping.target import Target
from collectors.normalise.disappearance import DisappearedEntities
from collectors.normalise.fault_codes import FaultCodeTracker
from outrider.model import CellStatus, EntityRef, Floats, Statuses, TrustVerdict
from outrider.topology import Edge

OFF_SECONDS = 300.0  # a line with a timestamp further from its scrape than this is about another time
_SAME_START_SECONDS = 1.0  # node_boot_time_seconds wobbles with the clock


@dataclass(slots=True)
class PreviousScrape:
    """What is known of a target between scrapes. Arrays follow ``layout``; ``known`` rows have a past."""

    adapter: Adapter
    layout: Layout | None = None
    compiled: Compiled | None = None
    binding: Binding | None = None
    at: float | None = None  # the last good scrape, unix seconds
    values: Floats = field(default_factory=lambda: np.empty(0))
    stamps: Floats = field(default_factory=lambda: np.empty(0))
    known: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))
    started: float = np.nan
    beat_at: float | None = None  # when what always moves was last seen to move
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
        """Take a new binding, and the places of devices that are no longer in it."""
        self.lost.compare(self.binding, binding, self.at if self.at is not None else at)
        self.bound_to, self.binding = target, binding
        kept = [edge for edges in self.lost.edges.values() for edge in edges]
        self.edges = (*binding.edges, *kept)
        self.labels = {**binding.labels, **self.lost.labels}

    def move_to(self, layout: Layout) -> None:
        """Bring the past into the row order of another layout, series by series."""
        rows = layout.rows_in(self.layout) if self.layout else np.full(len(layout.series), -1, dtype=np.intp)
        known = rows >= 0
        values, stamps, were = np.full(rows.size, np.nan), np.full(rows.size, np.nan), np.zeros(rows.size, dtype=bool)
        if known.any():
            values[known], stamps[known] = self.values[rows[known]], self.stamps[rows[known]]
            were[known] = self.known[rows[known]]
        self.layout, self.values, self.stamps, self.known = layout, values, stamps, were

    def keep(self, page: Page, at: float, start_row: int) -> None:
        """Remember this page for the next one."""
        self.first = self.at is None
        self.beat_at = at if self.beat_at is None else self.beat_at
        self.at, self.values, self.stamps = at, page.values, page.timestamps
        self.known = np.ones(page.values.size, dtype=bool)
        if start_row >= 0:
            self.started = float(page.values[start_row])


@dataclass(frozen=True, slots=True)
class ScrapeDelta:
    """The input of the evaluation, and what is to be said of the scrape as a whole."""

    rows: Rows
    interval: float | None
    restarted: bool = False
    clock_step: bool = False
    stale: bool = False
    frozen: bool = False

    def trust(self, status: Statuses, *, partial: bool, exploded: bool = False, repeats: int = 0) -> TrustVerdict:
        """The verdict of a batch, the gravest that applies.

        ``partial``: entities known from this target are missing. ``exploded``: only a part of the page was
        read. ``repeats``: rows of series that stand on the page more than once.
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


def delta_of(past: PreviousScrape, compiled: Compiled, page: Page, at: float, *, any_time: bool = False) -> ScrapeDelta:
    """Compare a page with the past, which must already be in the order of the page's layout.

    ``any_time``: lines may be about another time than that of the scrape, as those of a file are.
    """
    size = page.values.size
    flags = np.zeros(3 * size + 1, dtype=np.uint8)
    later = flags[size : 3 * size].reshape(2, size)  # a view: increases and rates
    odd = ~np.isfinite(page.values)
    interval = None if past.at is None else at - past.at
    if interval is None or interval <= 0:
        later[:] = CellStatus.ABSENT if interval is None else CellStatus.UNTRUSTED
        off = _off(page, at) & (not any_time)
        flags[:size][off] = CellStatus.STALE
        flags[:size][odd] = CellStatus.UNTRUSTED
        rows = Rows.of(page.values, np.zeros(size), 1.0, flags)
        return ScrapeDelta(rows, None, clock_step=interval is not None, stale=_all_stamped(page, off))
    increases = _increases(past, page, later)
    if compiled.born.size:  # NaN of a series that is new differs from nothing
        anew = page.values[compiled.born_at] > past.values[compiled.born_at]
        later[:, compiled.born[anew]] = np.maximum(later[:, compiled.born[anew]], CellStatus.RESET)
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
    if odd.any() or unknown.any():
        flags[:size][odd] = CellStatus.UNTRUSTED
        later[:, unknown] = np.maximum(later[:, unknown], CellStatus.UNTRUSTED)
    rows = Rows.of(page.values, increases, seconds, flags)
    return ScrapeDelta(rows, interval, restarted=restarted, stale=_all_stamped(page, still), frozen=frozen)


def _off(page: Page, at: float) -> NDArray[np.bool_]:
    """Lines whose own timestamp is about another time than ``at``."""
    found: NDArray[np.bool_] = np.abs(page.timestamps - at) > OFF_SECONDS
    return found


def _all_stamped(page: Page, rows: NDArray[np.bool_]) -> bool:
    """True when ``rows`` are there and are all that have a timestamp of their own."""
    return bool(rows.any() and rows[np.isfinite(page.timestamps)].all())


def seconds_off(page: Page, at: float) -> float | None:
    """How far behind (+) or before (-) ``at`` the newest line is, where every line with a timestamp is far off."""
    known = page.timestamps[np.isfinite(page.timestamps)]
    return at - float(known.max()) if known.size and _all_stamped(page, _off(page, at)) else None


def _frozen(past: PreviousScrape, compiled: Compiled, page: Page, at: float) -> bool:
    """True when what always moves has stood still for too long: the page is an old one."""
    heartbeat, beats = past.adapter.heartbeat, compiled.beats
    if heartbeat is None or not beats.size:
        return False
    if not np.array_equal(page.values[beats], past.values[beats], equal_nan=True):
        past.beat_at = at
    return past.beat_at is not None and at - past.beat_at >= heartbeat.within_seconds


def _increases(past: PreviousScrape, page: Page, later: Statuses) -> Floats:
    """The increase of every row, and in ``later`` why some are not to be believed."""
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
    """Rows whose own timestamp stands still, and the seconds that each row's increase is about."""
    both = np.isfinite(page.timestamps) & np.isfinite(past.stamps)
    if not both.any():
        return both, interval
    steps = np.where(both, page.timestamps - past.stamps, interval)
    return both & (steps <= 0), np.where(steps > 0, steps, interval)


def _restarted(past: PreviousScrape, compiled: Compiled, page: Page) -> bool:
    if compiled.start_row < 0:
        return False
    return bool(abs(float(page.values[compiled.start_row]) - past.started) > _SAME_START_SECONDS)
