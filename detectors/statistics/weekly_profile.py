"""Weekly profile: the effect of the day of week on the expected level.

A day has six parts of four hours. The mean of each part of each weekday is kept for the last two weeks. Its offset is
the distance from the median weekday of its own week, as far as both weeks agree: the smaller of the two if they have
one sign, else zero. A single odd Wednesday therefore adds nothing, growth from week to week cancels out, and a pattern
counts once it was seen twice. Offsets are interpolated between the middles of a day's parts, step at midnight, and
scale with the level of the day if that is above zero. Half of the difference between the weeks widens the scale.

An entity without two weeks of history borrows the relative offset of its peers, else that of its class as far as the
class agrees. The class keeps it when all its entities are replaced. Borrowed offsets widen the scale.

Means include anomalous values; otherwise a Saturday that alarms would stay unknown. Misleading for routines with
another period (two weeks, a month), and for two weeks after a routine changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta, tzinfo

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics import peer_groups
from detectors.statistics.theil_sen import medians
from detectors.statistics.wall_clock import wall_seconds
from outrider.model import Floats

PARTS = 6
CELLS = 7 * PARTS
PART_SECONDS = 86400.0 / PARTS
MONDAY_CELLS = 3 * PARTS  # unix time starts on a Thursday
LEAST_SECONDS = PART_SECONDS / 2  # minimum length of values of a part
LEAST_DAYS = 5  # minimum days of a week for a median day
LEAST_SHARE, MOST_SHARE = -1.0, 3.0  # bounds of a borrowed offset, relative to the level
BORROWED_WIDE = 0.5  # share of a borrowed offset by which the scale widens
SHAPE = (0.5, 2.0)  # bounds of the offset's scaling with the level
LONGEST_STEP_SECONDS = 600.0
CLASS = "week_class"
MATURE = timedelta(days=14)  # each part of the week was seen twice
AGE = 3.0 / 7.0  # of a week: age of the first of seven days relative to the median one
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class WeeklyOffset:
    """Weekly offset at one time, all (entities, signals): the offset, its uncertainty, and its reference level."""

    offset: Floats
    wide: Floats
    reference: Floats

    def at_level(self, level: Floats) -> Floats:
        """The offset for an expected level of ``level``."""
        share = np.divide(level, self.reference, out=np.ones_like(level), where=self.reference > _TINY)
        result: Floats = self.offset * np.clip(share, *SHAPE)
        return result


class WeeklyProfile:
    """The arithmetic; state arrays are named ``week_...`` and their first axis is entities."""

    def __init__(self, signals: int) -> None:
        """``signals`` is the last axis of all values. Weeks are UTC until ``set_zone``."""
        self._signals = signals
        self._zone: tzinfo = UTC

    def set_zone(self, zone: tzinfo) -> None:
        """Sets the time zone of day boundaries."""
        self._zone = zone

    def empty(self, count: int) -> Arrays:
        """State of entities without a known week. NaN marks an unseen part."""
        plane, cells = (count, self._signals), (count, self._signals, CELLS)
        names = ("from", "to", "wide_from", "wide_to", "level_from", "level_to")
        return {
            "week_recent": np.full(cells, np.nan, dtype=np.float32),
            "week_older": np.full(cells, np.nan, dtype=np.float32),
            "week_sum": np.zeros(plane),
            "week_seconds": np.zeros(plane, dtype=np.float32),
            "week_part": np.full(count, -1, dtype=np.int16),
            "week_knot": np.full(count, -1, dtype=np.int16),
            "week_group": np.full(count, -1, dtype=np.int32),
            **{f"week_{name}": np.zeros(plane, dtype=np.float32) for name in names},
        }

    def of_class(self) -> Arrays:
        """State of the class: the relative offset of each part of the week, 0 if unknown."""
        return {CLASS: np.zeros((self._signals, CELLS))}

    def turns(self, memory: Arrays, at: float) -> bool:
        """True if ``turn`` has work: another part of the week, or a new entity."""
        return bool((memory["week_knot"] != self._place(at)[0]).any())

    def turn(self, memory: Arrays, at: float, pool: Arrays | None = None) -> None:
        """Prepares the offsets for ``adds`` around a time. Changes ``memory`` and the class in ``pool``.

        Entities that appear within a part are prepared alone, from their peers and the class.
        """
        knot, _ = self._place(at)
        stale = memory["week_knot"] != knot
        if not stale.any():
            return
        rows, late = np.ones(stale.shape, dtype=np.bool_), False
        if not stale.all() and (memory["week_knot"][stale] < 0).all():
            group = memory["week_group"]
            rows, late = stale | ((group >= 0) & np.isin(group, group[stale])), True
            memory["week_knot"] = np.where(stale, knot, memory["week_knot"]).astype(memory["week_knot"].dtype)
        else:
            memory["week_knot"] = np.full_like(memory["week_knot"], knot)
        part = {name: memory[name][rows] for name in ("level", "week_recent", "week_older", "week_group")}
        for cell, end in ((knot, "from"), (knot + 1, "to")):
            offset, wide, level = self._cell(part, cell, pool, teaches=not late)
            for name, values in ((end, offset), (f"wide_{end}", wide), (f"level_{end}", level)):
                ready = memory[f"week_{name}"].copy()
                ready[stale if late else rows] = values[stale[rows]] if late else values
                memory[f"week_{name}"] = ready

    def adds(self, memory: Arrays, at: float) -> WeeklyOffset:
        """The offsets at a time; zero if the state was not prepared for it."""
        knot, share = self._place(at)
        held = memory["week_knot"]
        before = knot - 1 if knot % PARTS else (knot - 2) % CELLS  # one cycle late, before ``turn``
        ready = ((held == knot) | (held == before)).astype(np.float64)
        later = np.where(held == knot, share, 1.0)[:, None]

        def between(name: str) -> Floats:
            first, second = memory[f"week_{name}from"], memory[f"week_{name}to"]
            result: Floats = first + later * (second - first)
            return result

        return WeeklyOffset(between("") * ready[:, None], between("wide_") * ready[:, None], between("level_"))

    def learn(self, memory: Arrays, values: Floats, taken: NDArray[np.bool_], at: float, seconds: float) -> None:
        """Learns one set of values. A completed part becomes the newest of its weekday."""
        part = int(np.floor(wall_seconds(at, self._zone) / PART_SECONDS) + MONDAY_CELLS) % CELLS
        over = memory["week_part"] != part
        if over.any():
            self._fold(memory, np.flatnonzero(over & (memory["week_part"] >= 0)))
            memory["week_sum"][over] = 0.0
            memory["week_seconds"][over] = 0.0
            memory["week_part"][over] = part
        span = np.where(taken, min(seconds, LONGEST_STEP_SECONDS), 0.0)
        memory["week_sum"] += np.where(taken, values, 0.0) * span
        memory["week_seconds"] += span.astype(np.float32)

    def _fold(self, memory: Arrays, rows: NDArray[np.intp]) -> None:
        seen = memory["week_seconds"][rows] >= LEAST_SECONDS
        means = memory["week_sum"][rows] / np.maximum(memory["week_seconds"][rows], 1.0)
        cells = memory["week_part"][rows].astype(np.intp)
        recent, older = memory["week_recent"], memory["week_older"]
        before = recent[rows, :, cells]
        older[rows, :, cells] = np.where(seen, before, older[rows, :, cells])
        recent[rows, :, cells] = np.where(seen, means, before)

    def _cell(
        self, memory: Arrays, cell: int, pool: Arrays | None, *, teaches: bool = True
    ) -> tuple[Floats, Floats, Floats]:
        """Offset, uncertainty and level of one part of the week for every entity."""
        part = slice(cell % PARTS, None, PARTS)
        recent, older = memory["week_recent"][:, :, part], memory["week_older"][:, :, part]
        level, days = _medians(recent)
        before, days_before = _medians(older)
        day = cell // PARTS
        growth, _ = _medians(recent - older)  # per week; the day is a week old now, the median day half of that
        one, two = (values[:, :, day] - middle + AGE * growth for values, middle in ((recent, level), (older, before)))
        known = (days >= LEAST_DAYS) & (days_before >= LEAST_DAYS) & ~np.isnan(one) & ~np.isnan(two)
        agreed = np.where(known & (one * two > 0), np.sign(one) * np.minimum(np.abs(one), np.abs(two)), 0.0)
        wide = np.where(known, np.minimum(np.abs(one - two) / 2.0, np.abs(agreed)), 0.0)
        share = np.clip(agreed / np.maximum(np.abs(level), _TINY), LEAST_SHARE, MOST_SHARE)
        share = np.where(known & (np.abs(level) > _TINY), share, np.nan)
        lent = self._lent(memory, share, cell, pool, teaches=teaches)
        own = self._own_level(memory, recent, level, lent, part, pool)
        borrowed = np.where(known, 0.0, lent * np.abs(own))
        offset = np.where(known, agreed, borrowed)
        return offset, np.where(known, wide, BORROWED_WIDE * np.abs(borrowed)), np.where(known, level, own)

    def _lent(self, memory: Arrays, share: Floats, cell: int, pool: Arrays | None, *, teaches: bool) -> Floats:
        """Relative offset of the peers, else of the class; 0 if neither is known. Teaches the class on request."""
        of_peers = peer_groups.medians(share, memory["week_group"].astype(np.intp))
        everyone = np.zeros(share.shape[1]) if pool is None else pool[CLASS][:, cell]
        if pool is not None and teaches:
            whole = np.zeros(share.shape[0], dtype=np.intp)
            middle = peer_groups.medians(share, whole)
            if middle.size and not np.isnan(middle[0]).all():
                spread = peer_groups.medians(np.abs(share - middle), whole)[0]
                agree = np.clip(1.0 - spread / np.maximum(np.abs(middle[0]), _TINY), 0.0, 1.0)
                everyone = np.where(np.isnan(middle[0]), everyone, middle[0] * agree)
                pool[CLASS] = pool[CLASS].copy()
                pool[CLASS][:, cell] = everyone
        return np.where(np.isnan(of_peers), everyone, of_peers)

    def _own_level(
        self, memory: Arrays, recent: Floats, level: Floats, lent: Floats, part: slice, pool: Arrays | None
    ) -> Floats:
        """Level of an ordinary day for entities without a known week, without the weekday effect."""
        shares = pool[CLASS][:, part] if pool is not None else np.zeros((self._signals, 7))
        plain, _ = _medians(recent / np.maximum(1.0 + shares, 0.1)) if shares.any() else (level, None)
        now = memory["level"] / np.maximum(1.0 + lent, 0.1)
        return np.where(np.isnan(plain), now, plain)

    def _place(self, at: float) -> tuple[int, float]:
        """The part whose middle precedes a time, and the fraction of the way to the next middle of that day."""
        day, second = divmod(wall_seconds(at, self._zone), 86400.0)
        place = min(max(second / PART_SECONDS - 0.5, 0.0), PARTS - 1.0)
        first = min(int(place), PARTS - 2)
        return (int(day) * PARTS + MONDAY_CELLS + first) % CELLS, place - first


def _medians(values: NDArray[np.float32] | Floats) -> tuple[Floats, NDArray[np.intp]]:
    """The median of the last axis without NaN (NaN if none), and the number of values."""
    return medians(values), (~np.isnan(values)).sum(axis=-1)
