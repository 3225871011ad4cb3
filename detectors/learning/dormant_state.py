"""Learned state of absent entities, kept and restored when they return.

A detector's state follows the entities of its window, and drops those that are silent for longer. Rebooted nodes,
failed exporters and services scaled to zero return with the same baseline. Dormant state is bounded in time and
number. A cycle without departures or returns copies nothing. The detector names the arrays that lapse: an ongoing
deviation ends with a pause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.base.protocols import Absence, ResumableDetector
from detectors.base.state_arrays import Arrays
from outrider.model import DetectorState, EntityRef, Floats

KEPT = timedelta(days=2)  # pods get new names with each rollout, so most that are absent this long never return
# Age is counted in cycles, so a clock step cannot empty it.
MOST = 10_000  # per detector; as many entities as one large cycle holds anyway
_LEFT_AT, _LEFT, _CYCLES, _STEP = "left_at", "left_clock", "away_cycles", "cycle_seconds"


class DormantState:
    """State of absent entities of one detector, in the order of their departure."""

    def __init__(self, detector: ResumableDetector, interval: timedelta) -> None:
        """``interval`` is the time between cycles. State with another interval is not restored."""
        self._detector = detector
        self._step = interval.total_seconds()
        self._entities: tuple[EntityRef, ...] = ()
        self._arrays = detector.of_entities(0)
        self._left_at, self._left, self._away = np.zeros(0), np.zeros(0), np.zeros(0)
        self._stored = False

    @property
    def entities(self) -> tuple[EntityRef, ...]:
        """The absent entities, longest absence first."""
        return self._entities

    def swap(self, state: DetectorState, entities: tuple[EntityRef, ...], at: float) -> DetectorState:
        """Stores departed entities at unix second ``at`` and returns the state with returned ones added.

        Call once per cycle. The detector itself drops departed entities from its state as it follows the window. If no
        entity is left, they are dropped here.
        """
        self._away = self._away + 1.0  # a new array: copies share the old one
        if entities == state.entities:
            return state
        here, known = set(entities), set(state.entities)
        gone = [row for row, entity in enumerate(state.entities) if entity not in here]
        back = [row for row, entity in enumerate(self._entities) if entity in here and entity not in known]
        if not gone and not back:
            return state
        shapes = self._detector.of_entities(0)
        resumed = self._resumed(state, back, shapes, at) if back else state
        stay = [row for row, entity in enumerate(self._entities) if entity not in here and entity not in known]
        self._keep(stay)
        if gone:
            self._add(state, gone, shapes, at)
        self._expire()
        # a detector without entities keeps its state, and these would count as never departed
        return resumed if entities else DetectorState(state.version, (), {**state.arrays, **shapes})

    def _resumed(self, state: DetectorState, back: list[int], shapes: Arrays, at: float) -> DetectorState:
        memory = {name: array[back] for name, array in self._arrays.items()}
        away = np.maximum(at - self._left_at[back], 0.0)
        self._detector.resume(memory, Absence(away, self._left[back], self._detector.clock(state)))
        own = self._rows(state.entities, state.arrays, np.arange(len(state.entities)), shapes)
        arrays = {name: np.concatenate((value, memory[name])) for name, value in own.items()}
        entities = (*state.entities, *(self._entities[row] for row in back))
        return DetectorState(state.version, entities, {**state.arrays, **arrays})

    def _add(self, state: DetectorState, gone: list[int], shapes: Arrays, at: float) -> None:
        rows = self._rows(state.entities, state.arrays, np.array(gone, dtype=np.intp), shapes)
        clock = self._detector.clock(state)
        self._entities = (*self._entities, *(state.entities[row] for row in gone))
        self._arrays = {name: np.concatenate((self._arrays[name], item)) for name, item in rows.items()}
        self._left_at = np.concatenate((self._left_at, np.full(len(gone), at)))
        self._left = np.concatenate((self._left, np.full(len(gone), clock)))
        self._away = np.concatenate((self._away, np.zeros(len(gone))))

    def _expire(self) -> None:
        """Drops entities that are absent for too long, and the oldest beyond the limit."""
        self._keep(np.flatnonzero(self._away * self._step <= KEPT.total_seconds())[-MOST:])

    def _keep(self, rows: Sequence[int] | NDArray[np.intp]) -> None:
        if len(rows) == len(self._entities):
            return
        places = np.asarray(rows, dtype=np.intp)
        self._entities = tuple(self._entities[row] for row in places)
        self._arrays = {name: array[places] for name, array in self._arrays.items()}
        self._left_at, self._left, self._away = self._left_at[places], self._left[places], self._away[places]

    def _rows(
        self, entities: Sequence[EntityRef], arrays: Mapping[str, NDArray[Any]], rows: NDArray[np.intp], shapes: Arrays
    ) -> Arrays:
        """Rows of the per-entity arrays; a missing or unfit array counts as that of new entities."""
        result: Arrays = {}
        for name, empty in shapes.items():
            own = arrays.get(name)
            if own is None or own.shape != (len(entities), *empty.shape[1:]):
                own = self._detector.of_entities(len(entities))[name]
            result[name] = np.asarray(own[rows], dtype=empty.dtype)
        return result

    def stored(self, version: int) -> DetectorState | None:
        """The state for a checkpoint; None if nothing was ever stored."""
        self._expire()
        if not self._entities and not self._stored:
            return None
        self._stored = True
        when = {_LEFT_AT: self._left_at, _LEFT: self._left, _CYCLES: self._away, _STEP: np.array([self._step])}
        return DetectorState(version, self._entities, {**self._arrays, **when})

    def restore(self, state: DetectorState | None, *, stored: bool = True) -> None:
        """Loads the result of ``DormantState.stored``. Ignores damaged state and state of another cycle length.

        ``stored`` True: a checkpoint holds dormant state, and the next one must replace it.
        """
        shapes = self._detector.of_entities(0)
        self._entities, self._arrays, self._stored = (), shapes, stored
        self._left_at, self._left, self._away = np.zeros(0), np.zeros(0), np.zeros(0)
        if state is None:
            return
        count = len(state.entities)
        when = [state.arrays.get(name, np.zeros(0)) for name in (_LEFT_AT, _LEFT, _CYCLES)]
        step = state.arrays.get(_STEP, np.zeros(0))
        if any(item.shape != (count,) for item in when) or step.shape != (1,) or step[0] != self._step:
            return
        self._left_at, self._left, self._away = (np.asarray(item, dtype=np.float64).copy() for item in when)
        self._entities = state.entities
        self._arrays = self._rows(state.entities, state.arrays, np.arange(count), shapes)


def begin_anew(memory: Arrays, fresh: Arrays, names: Sequence[str]) -> None:
    """Resets the named arrays, which lapse during an absence. Changes ``memory``."""
    memory.update({name: fresh[name] for name in names})


def shifted(ring: NDArray[np.float32], columns: Floats) -> NDArray[np.float32]:
    """A ring (entities, signals, columns) shifted by empty columns, a number per entity (entities,)."""
    width = ring.shape[2]
    steps = np.clip(np.nan_to_num(columns, nan=width, posinf=width), 0, width).astype(np.intp)
    places = np.arange(width) + steps[:, None]
    moved = np.take_along_axis(ring, np.minimum(places, width - 1)[:, None, :], axis=2)
    return np.where((places < width)[:, None, :], moved, np.float32(np.nan)).astype(np.float32)
