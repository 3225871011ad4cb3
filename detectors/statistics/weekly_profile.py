"""What days of the week add to what is usual at a time of day.

A day has six parts of four hours. Of each part of each weekday the mean of its last two weeks is kept; what it adds
is how far it lies from the median weekday of its own week, in so far as both weeks agree: the smaller of the two where
they have one sign, else nothing. So one odd Wednesday adds nothing to the next, growth from week to week cancels, and
nothing counts before it was seen twice. Between the middles of a day's parts it is interpolated, at midnight it steps,
and it follows the shape of the day where the level is above zero. Half of what the weeks differ by widens the scale.
An entity that has not seen two weeks borrows the share that its peers gain or lose, else the share of its whole class
as far as that agrees; the class remembers it when all its entities are replaced, and what is borrowed widens the scale.
Means are taken of all values, odd ones too: a Saturday that alarms must not stay unknown for it.
Misleads where a routine has another period (two weeks, a month), and for two weeks after it changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics import peer_groups
from detectors.statistics.theil_sen import medians
from outrider.model import Floats

PARTS = 6
CELLS = 7 * PARTS
PART_SECONDS = 86400.0 / PARTS
MONDAY_CELLS = 3 * PARTS  # unix time begins on a Thursday
LEAST_SECONDS = PART_SECONDS / 2  # of values, else a part was not seen
LEAST_DAYS = 5  # of a week, else it has no median day
LEAST_SHARE, MOST_SHARE = -1.0, 3.0  # of the level: what may be borrowed
BORROWED_WIDE = 0.5  # of what is borrowed: the scale allows for half of it to be wrong
SHAPE = (0.5, 2.0)  # how far the offset follows the level within its part
LONGEST_STEP_SECONDS = 600.0
CLASS = "week_class"
MATURE = timedelta(days=14)  # each part of the week was seen twice
AGE = 3.0 / 7.0  # of a week: how much older than the median day of the last seven the first of them is
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class Adds:
    """What the week adds at an instant, all (entities, signals): an offset, how unsure, and the level it is for."""

    offset: Floats
    wide: Floats
    reference: Floats

    def at_level(self, level: Floats) -> Floats:
        """The offset at an instant whose usual level is ``level``."""
        share = np.divide(level, self.reference, out=np.ones_like(level), where=self.reference > _TINY)
        found: Floats = self.offset * np.clip(share, *SHAPE)
        return found


class Week:
    """The arithmetic; arrays of the memory are named ``week_...`` and their first axis is entities."""

    def __init__(self, signals: int) -> None:
        """``signals`` is the last axis of all values. Weeks are those of UTC until ``set_zone``."""
        self._signals = signals
        self._zone: tzinfo = UTC

    def set_zone(self, zone: tzinfo) -> None:
        """Where days begin and end."""
        self._zone = zone

    def empty(self, count: int) -> Arrays:
        """Memory of entities of which no week is known. NaN: a part that was not seen."""
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
        """What is remembered of the class: the share of its level that each part gains or loses, 0 unknown."""
        return {CLASS: np.zeros((self._signals, CELLS))}

    def turns(self, memory: Arrays, at: float) -> bool:
        """True when ``turn`` has work: another part of the week, or an entity that is new."""
        return bool((memory["week_knot"] != self._place(at)[0]).any())

    def turn(self, memory: Arrays, at: float, pool: Arrays | None = None) -> None:
        """Make ready what ``adds`` needs around an instant. Changes ``memory``, and the class in ``pool``.

        Entities that appear within a part are made ready alone, from their peers and what the class remembers.
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

    def adds(self, memory: Arrays, at: float) -> Adds:
        """What is added at an instant; nothing where the memory was not made ready for it."""
        knot, share = self._place(at)
        held = memory["week_knot"]
        before = knot - 1 if knot % PARTS else (knot - 2) % CELLS  # a cycle late, as it is before ``turn``
        ready = ((held == knot) | (held == before)).astype(np.float64)
        later = np.where(held == knot, share, 1.0)[:, None]

        def between(name: str) -> Floats:
            first, second = memory[f"week_{name}from"], memory[f"week_{name}to"]
            found: Floats = first + later * (second - first)
            return found

        return Adds(between("") * ready[:, None], between("wide_") * ready[:, None], between("level_"))

    def learn(self, memory: Arrays, values: Floats, taken: NDArray[np.bool_], at: float, seconds: float) -> None:
        """Take in one instant's values; a part that is over becomes the newest of its weekday."""
        part = int(np.floor((at + self._ahead(at)) / PART_SECONDS) + MONDAY_CELLS) % CELLS
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
        """Offset, doubt and level of one part of the week for every entity."""
        part = slice(cell % PARTS, None, PARTS)
        recent, older = memory["week_recent"][:, :, part], memory["week_older"][:, :, part]
        level, days = _medians(recent)
        before, days_before = _medians(older)
        day = cell // PARTS
        growth, _ = _medians(recent - older)  # in a week; the day itself is a week old now, the median one half of that
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
        """The share that peers gain or lose, else the class; 0 where neither knows. Teaches the class if asked to."""
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
        """A usual day's level of entities without a week of their own: what was seen, less its weekdays' share."""
        shares = pool[CLASS][:, part] if pool is not None else np.zeros((self._signals, 7))
        plain, _ = _medians(recent / np.maximum(1.0 + shares, 0.1)) if shares.any() else (level, None)
        now = memory["level"] / np.maximum(1.0 + lent, 0.1)
        return np.where(np.isnan(plain), now, plain)

    def _ahead(self, at: float) -> float:
        """Seconds that the clock on the wall is ahead of UTC."""
        ahead = datetime.fromtimestamp(at, self._zone).utcoffset()
        return ahead.total_seconds() if ahead is not None else 0.0

    def _place(self, at: float) -> tuple[int, float]:
        """The part whose middle lies before an instant, and the share of the way to the next one's of that day."""
        day, second = divmod(at + self._ahead(at), 86400.0)
        place = min(max(second / PART_SECONDS - 0.5, 0.0), PARTS - 1.0)
        first = min(int(place), PARTS - 2)
        return (int(day) * PARTS + MONDAY_CELLS + first) % CELLS, place - first


def _medians(values: NDArray[np.float32] | Floats) -> tuple[Floats, NDArray[np.intp]]:
    """The median along the last axis of what is not NaN (NaN without any), and how many there are."""
    return medians(values), (~np.isnan(values)).sum(axis=-1)
