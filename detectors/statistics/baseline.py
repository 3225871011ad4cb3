"""Online robust baseline per entity, by time of day and day of week; vectorized.

Each (entity, signal) has 48 half-hour slots of the day, on the clock of a time zone, with a level and a scale, and a
recent level that follows within the hour. With mature slots, the expected level is that of the slots plus the recent
offset from it; before, it is the recent level alone. Levels and scales are exponentially weighted. A value moves them
by at most four scales, which limits outliers. The scale is 1.2533 times the mean absolute residual, which is sigma for
a normal distribution. Each scale has a floor; otherwise the first flicker of a constant signal would be the largest
deviation of the fleet.

Slots hold an ordinary day. The effect of the day of week (``weekly_profile``) is stored separately and is optional. On
a holiday only the recent level is expected, no slot learns, and the offset of the day before fades.

The time of day needs two days of history, the day of week two weeks. Before that, or without the weekly profile,
patterns of single weekdays are misleading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from detectors.statistics.wall_clock import wall_seconds
from detectors.statistics.weekly_profile import WeeklyProfile
from outrider.model import DetectorState, EntityRef, Floats
from outrider.vocabulary import catalog

SLOTS = 48
SLOT_SECONDS = 86400.0 / SLOTS
MATURE_SLOT_SECONDS = 1.5 * SLOT_SECONDS  # one day fills a slot once, so this takes two days
MATURE_UPDATES = 120  # updates of the recent level; half an hour at cycles of 15 s
SLOT_DAY_WEIGHT = 0.3  # a day's weight in its slot; about three days of memory
LEVEL_TAU_SECONDS = 3600.0
OFFSET_TAU_SECONDS = 7200.0
SCALE_TAU_SECONDS = 6 * 3600.0
CLIP_SCALES = 4.0
FREE_UPDATES = 20  # the first updates are not clipped, as there is no scale yet
SIGMA_OF_MEAN_DEVIATION = 1.2533
RECENT = (
    "level",
    "scale",
    "offset",
    "seconds",
    "updates",
)  # state arrays of the recent level; the others belong to time of day and week
LONGEST_STEP_SECONDS = 600.0  # a value after a data gap covers at most this long

# Minimum scale in the signal's own unit, and as a share of its level.
_FLOOR_OF_UNIT = {
    "ratio": 0.02,
    "seconds": 0.005,
    "celsius": 1.0,
    "watts": 5.0,
    "requests": 1.0,
    "count": 1.0,
    "per_second": 0.05,
    "tokens_per_second": 1.0,
    "hertz": 1e7,
    "bytes": 64e6,
    "replicas": 0.5,
    "cores": 0.05,
}
_FLOOR_OF_SIGNAL = {"svc_success_ratio": 0.01}
_FLOOR_OF_LEVEL = 0.02
Span = tuple[float, float]  # unix seconds, start <= t < end
_TINY = 1e-12  # scales are never zero


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected values at one time; all of shape (entities, signals). ``known`` is False while still learning."""

    level: Floats
    scale: Floats
    known: NDArray[np.bool_]

    def deviation(self, values: Floats) -> Floats:
        """Robust z-score; NaN if the value or the expectation is missing."""
        return np.where(self.known, (values - self.level) / self.scale, np.nan)


class Baseline:
    """The arithmetic. State is a dict of arrays whose first axis is entities."""

    def __init__(self, signals: Sequence[str], *, week: bool = True) -> None:
        """``signals`` are the last axis of all values. ``week`` False uses the time of day only."""
        self.signals = tuple(signals)
        self._week = WeeklyProfile(len(self.signals)) if week else None
        self._holidays: tuple[Span, ...] = ()
        self._zone: tzinfo = UTC
        known = [catalog.signal(name) for name in self.signals]
        self._floors = np.array(
            [_FLOOR_OF_SIGNAL.get(item.name, _FLOOR_OF_UNIT.get(item.unit, 1e-6)) for item in known]
        )

    @classmethod
    def of_unknown_units(cls, metrics: int) -> Baseline:
        """For metrics outside the catalog: ``memory["floor"]`` (entities, signals) is the minimum scale.

        Has no weekly profile, since callers weigh deviations of hours against each other.
        """
        baseline = cls((), week=False)
        baseline.signals = tuple(f"metric-{place}" for place in range(metrics))
        baseline._floors = np.full(metrics, _TINY)
        return baseline

    @property
    def floors(self) -> Floats:
        """The minimum scale of each signal in its own unit, shape (signals,)."""
        return self._floors

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Sets the spans in which only the recent level is expected and no slot learns."""
        self._holidays = tuple(holidays)

    def set_zone(self, zone: tzinfo) -> None:
        """Sets the time zone of times of day and days of the week."""
        self._zone = zone
        if self._week is not None:
            self._week.set_zone(zone)

    def slot(self, at: float) -> int:
        """Index of the half hour of the day."""
        return int(wall_seconds(at, self._zone) % 86400.0 // SLOT_SECONDS) % SLOTS

    def of_class(self) -> Arrays:
        """State of the class, which ``turn`` receives as its pool."""
        return self._week.of_class() if self._week is not None else {}

    def turns(self, memory: Arrays, at: float) -> bool:
        """True if a new part of the week begins for an entity; ``memory["week_group"]`` must hold its peers."""
        return self._week is not None and self._week.turns(memory, at)

    def turn(self, memory: Arrays, at: float, pool: Arrays | None = None) -> None:
        """Prepares the weekly profile around unix second ``at``. Changes ``memory`` and ``pool``."""
        if self._week is not None:
            self._week.turn(memory, at, pool)

    def is_holiday(self, at: float) -> bool:
        """True on a day without the usual daily pattern."""
        return any(start <= at < end for start, end in self._holidays)

    def empty(self, count: int = 0) -> Arrays:
        """State of ``count`` unknown entities."""
        plane, slots = (count, len(self.signals)), (count, len(self.signals), SLOTS)
        return {
            "slot_level": np.zeros(slots, dtype=np.float32),
            "slot_scale": np.zeros(slots, dtype=np.float32),
            "slot_seconds": np.zeros(slots, dtype=np.float32),
            "level": np.zeros(plane),
            "scale": np.zeros(plane),
            "offset": np.zeros(plane),
            "seconds": np.zeros(plane),
            "updates": np.zeros(plane, dtype=np.int32),
            **(self._week.empty(count) if self._week is not None else {}),
        }

    def rest(self, memory: Arrays, seconds: Floats) -> None:
        """Advances the state of entities that were absent for ``seconds`` (entities,). Changes ``memory``.

        The recent offset fades. The recent level is dropped unless all slots are mature. Peers and the part of the
        week are looked up again.
        """
        if "offset" in memory:
            memory["offset"] = memory["offset"] * np.exp(-seconds / OFFSET_TAU_SECONDS)[:, None]
            ripe = (memory["slot_seconds"] >= MATURE_SLOT_SECONDS).all(axis=2)
            stale = (seconds > LEVEL_TAU_SECONDS)[:, None] & ~ripe
            for name in RECENT:
                memory[name] = np.where(stale, 0, memory[name]).astype(memory[name].dtype)
        for name in ("week_knot", "week_group"):
            if name in memory:
                memory[name] = np.full_like(memory[name], -1)

    def usual(self, memory: Arrays, at: float) -> Expectation:
        """Expected values at unix second ``at``. With a weekly profile, call ``turn`` first."""
        return self._expect(memory, at)[0]

    def _expect(self, memory: Arrays, at: float) -> tuple[Expectation, Floats | float]:
        """Expected values, and the weekly profile's part of them."""
        before, after, share = _neighbors(wall_seconds(at, self._zone))
        slots = memory["slot_seconds"] if not self.is_holiday(at) else np.zeros_like(memory["slot_seconds"])
        ripe_before, ripe_after = (slots[:, :, slot] >= MATURE_SLOT_SECONDS for slot in (before, after))
        weight = np.where(ripe_before & ripe_after, share, np.where(ripe_after, 1.0, 0.0))
        ripe = ripe_before | ripe_after
        day = _blend(memory["slot_level"], before, after, weight)
        spread = _blend(memory["slot_scale"], before, after, weight)
        added: Floats | float = 0.0
        if self._week is not None:
            adds = self._week.adds(memory, at)
            added = adds.at_level(np.where(ripe, day, adds.reference))
            spread = spread + adds.wide
        level = np.where(ripe, day + added + memory["offset"], memory["level"])
        scale = np.maximum(np.where(ripe, spread, memory["scale"]), self._floor(memory, level))
        return Expectation(level, scale, ripe | (memory["updates"] >= MATURE_UPDATES)), added

    def learn(
        self, memory: Arrays, values: Floats, at: float, seconds: float, frozen: NDArray[np.bool_] | None = None
    ) -> None:
        """Learns one set of values (entities, signals) that stand for ``seconds``. Changes ``memory``.

        Missing and ``frozen`` values teach nothing. The weekly profile still learns frozen values: it must see a
        pattern twice, or a weekly anomaly would never become known.
        """
        seconds = min(seconds, LONGEST_STEP_SECONDS)
        self.turn(memory, at)
        usual, added = self._expect(memory, at)
        there = np.isfinite(values)
        taken = there if frozen is None else there & ~frozen
        clean = np.where(taken, values, 0.0)
        self._learn_level(memory, clean, taken, seconds)
        if self.is_holiday(at):
            memory["offset"] = memory["offset"] * np.exp(-seconds / OFFSET_TAU_SECONDS)
        else:
            self._learn_slot(memory, clean, taken, (usual, added), at, seconds)
            if self._week is not None:
                self._week.learn(memory, np.where(there, values, 0.0), there, at, seconds)
        memory["seconds"] += np.where(taken, seconds, 0.0)
        memory["updates"] += taken.astype(np.int32)

    def _learn_level(self, memory: Arrays, values: Floats, taken: NDArray[np.bool_], seconds: float) -> None:
        free = memory["updates"] < FREE_UPDATES
        known = memory["updates"] > 0
        residual = np.where(known, values - memory["level"], 0.0)
        limit = CLIP_SCALES * np.maximum(memory["scale"], self._floor(memory, memory["level"]))
        clipped = np.where(free, residual, np.clip(residual, -limit, limit))
        pace = np.maximum(seconds / (memory["seconds"] + seconds), 1.0 - np.exp(-seconds / LEVEL_TAU_SECONDS))
        moved = np.where(known, memory["level"] + pace * clipped, values)
        slow = np.maximum(seconds / (memory["seconds"] + seconds), 1.0 - np.exp(-seconds / SCALE_TAU_SECONDS))
        spread = memory["scale"] + slow * (SIGMA_OF_MEAN_DEVIATION * np.abs(clipped) - memory["scale"])
        memory["level"] = np.where(taken, moved, memory["level"])
        memory["scale"] = np.where(taken & known, spread, memory["scale"])

    def _learn_slot(
        self,
        memory: Arrays,
        values: Floats,
        taken: NDArray[np.bool_],
        expected: tuple[Expectation, Floats | float],
        at: float,
        seconds: float,
    ) -> None:
        usual, added = expected
        ordinary = values - added  # value without the weekday effect
        slot = self.slot(at)
        level, scale, seen = (memory[name][:, :, slot] for name in ("slot_level", "slot_scale", "slot_seconds"))
        fresh = seen <= 0
        day = 1.0 - (1.0 - SLOT_DAY_WEIGHT) ** (seconds / SLOT_SECONDS)
        pace = np.maximum(seconds / (seen + seconds), day)
        ripe = seen >= MATURE_SLOT_SECONDS
        limit = CLIP_SCALES * np.maximum(scale, self._floor(memory, level))
        residual = ordinary - level
        step = np.where(ripe, np.clip(residual, -limit, limit), residual)
        moved = np.where(fresh, ordinary, level + pace * step)
        off = np.where(usual.known, values - usual.level, np.where(fresh, 0.0, residual))
        off = np.abs(np.where(ripe, np.clip(off, -limit, limit), off))
        spread = scale + pace * (SIGMA_OF_MEAN_DEVIATION * off - scale)
        memory["slot_level"][:, :, slot] = np.where(taken, moved, level)
        memory["slot_scale"][:, :, slot] = np.where(taken, spread, scale)
        memory["slot_seconds"][:, :, slot] = np.where(taken, seen + seconds, seen)
        offset, quick = memory["offset"], 1.0 - np.exp(-seconds / OFFSET_TAU_SECONDS)
        apart = np.clip(values - usual.level, -CLIP_SCALES * usual.scale, CLIP_SCALES * usual.scale)
        memory["offset"] = np.where(taken & ripe, offset + quick * apart, offset)

    def least_scale(self, level: Floats) -> Floats:
        """The floor of the scale at a level, (..., signals). Smaller differences never count."""
        return self._floor({}, level)

    def _floor(self, memory: Arrays, level: Floats) -> Floats:
        least = memory.get("floor", self._floors)
        floor: Floats = np.maximum(least, _FLOOR_OF_LEVEL * np.abs(level))
        return floor


def _neighbors(at: float) -> tuple[int, int, float]:
    """The slots whose centers enclose a time of the wall clock, and the weight of the later one."""
    place = at % 86400.0 / SLOT_SECONDS - 0.5
    before = int(np.floor(place))
    return before % SLOTS, (before + 1) % SLOTS, place - before


def _blend(slots: NDArray[Any], before: int, after: int, weight: Floats) -> Floats:
    blended: Floats = slots[:, :, before] * (1.0 - weight) + slots[:, :, after] * weight
    return blended


def follow(memory: Arrays, held: tuple[EntityRef, ...], entities: tuple[EntityRef, ...], fresh: Arrays) -> Arrays:
    """The arrays reordered for ``entities``, as copies. ``fresh`` has the shapes and defaults of the result.

    A new entity starts from ``fresh``; a departed one is dropped. An array that is missing or has the wrong shape
    starts over.
    """
    if held == entities:  # nearly every cycle; copying whole arrays costs a third
        return {
            name: own.astype(default.dtype)
            if (own := memory.get(name)) is not None and own.shape == default.shape
            else default.copy()
            for name, default in fresh.items()
        }
    place = {entity: row for row, entity in enumerate(held)}
    rows = np.fromiter((place.get(entity, -1) for entity in entities), dtype=np.intp, count=len(entities))
    known = rows >= 0
    result: Arrays = {}
    for name, default in fresh.items():
        array = default.copy()
        own = memory.get(name)
        if own is not None and own.shape == (len(held), *default.shape[1:]):
            array[known] = own[rows[known]]
        result[name] = array
    return result


def held(state: DetectorState, entities: tuple[EntityRef, ...], fresh: Callable[[int], Arrays]) -> Arrays:
    """The state's arrays for ``entities``: the originals if they fit (do not change them), else as ``follow``.

    ``fresh`` makes the arrays of a number of unknown entities; ``fresh(0)`` defines the shapes.
    """
    shapes = {name: (len(entities), *value.shape[1:]) for name, value in fresh(0).items()}
    own = {name: state.arrays[name] for name in shapes if name in state.arrays}
    if state.entities == entities and {name: value.shape for name, value in own.items()} == shapes:
        return own
    return follow(own, state.entities, entities, fresh(len(entities)))
