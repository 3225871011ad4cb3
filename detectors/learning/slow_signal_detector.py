"""Base class of detectors of slow changes: about one reading a minute, peers and load as explanations.

A shift or a trend takes many minutes to show, so most cycles only repeat the last verdicts. State is copied and judged
once per *beat*. A deviation that a third of an entity's peers or a quarter of its class share is not reported, nor is
one that load explains. More load raises signals that are better low and lowers those that are better high.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base import hysteresis, sampling
from detectors.base.protocols import Absence
from detectors.base.state_arrays import Arrays, scalars
from detectors.learning import learning_detector
from detectors.learning.dormant_state import shifted
from detectors.statistics import peer_groups
from detectors.statistics.baseline import held
from detectors.statistics.theil_sen import means
from outrider.model import (
    DetectorState,
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    NoVerdict,
    NoVerdictReason,
    SignalKey,
    Window,
)
from outrider.topology import Topology
from outrider.vocabulary import catalog

PEERS_RATIO, PEERS_LEAST = 0.34, 2  # share and number of other peers that make a deviation common
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Beat:
    """One reading of every entity, span ``number`` of ``length`` seconds; ``gap`` empty beats precede it."""

    number: float
    length: float
    gap: int
    entities: tuple[EntityRef, ...]
    topology: Topology

    @property
    def start(self) -> float:
        """Unix seconds, as are ``middle`` and ``end``."""
        return self.number * self.length

    @property
    def middle(self) -> float:
        """The time that a mean over the beat stands for."""
        return (self.number + 0.5) * self.length

    @property
    def end(self) -> float:
        """The time at which the reading is complete."""
        return (self.number + 1.0) * self.length


class SlowSignalDetector(learning_detector.StatisticalDetector):
    """Outer half of a slow-signal detector; ``_beat``, the inner half, judges one reading of every entity."""

    state_version: int
    beat_seconds: ClassVar[float]
    instants: ClassVar[int]  # samples of a beat; their mean is its reading
    replaced: ClassVar[tuple[str, ...]] = ()  # arrays that a beat replaces instead of changing in place
    rings: ClassVar[Mapping[str, float]] = {}  # arrays (entities, signals, columns) and the beats per column
    passing = (*learning_detector.StatisticalDetector.passing, "known")
    window = timedelta(minutes=10)

    def __init__(
        self, kind: EntityKind, watched: Sequence[str], load: str, name: str | None = None, also: Sequence[str] = ()
    ) -> None:
        """``watched`` are judged, ``load`` explains; the newest values of ``also`` are read as context."""
        super().__init__(kind, (*watched, load), name)
        self.watched, self.load = tuple(watched), load
        self.keys = tuple(dict.fromkeys((*self.keys, *map(SignalKey, also))))
        self._by_load = np.array([-1.0 if catalog.signal(item).good == "higher" else 1.0 for item in watched])

    def initial(self) -> DetectorState:
        """Returns the state before anything is learned."""
        return self._state((), self._fresh(0), self._scalars())

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Returns current findings, judged anew when a beat ends; NoVerdict for unknown entities."""
        if window.times.size == 0 or not window.entities:
            return state, (NoVerdict(self.name, None, NoVerdictReason.NO_VALUES),)
        memory, pool = self._follow(state, window.entities)
        if now.timestamp() < pool["last"][0]:
            return state, (NoVerdict(self.name, None, NoVerdictReason.CLOCK_STEP),)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        self._add_learned_time(window, pool, first)
        self._handle_events(memory, window, topology, now)
        length = max(self.beat_seconds, window.step.total_seconds())
        if pool["length"][0] not in (0.0, length):
            self._forget(memory)
            pool["beat"] = np.array([-np.inf])
        pool["length"] = np.array([length])
        owned = False
        for number, columns in _beats(window, float(pool["beat"][0]), length):
            if not owned:
                owned = True
                memory = {name: array if name in self.replaced else array.copy() for name, array in memory.items()}
            gap = 0 if np.isinf(pool["beat"][0]) else int(number - pool["beat"][0]) - 1
            beat = Beat(number, length, gap, window.entities, topology)
            self._beat(memory, pool, self._reading(window, columns), beat)
            alarmed, judged = np.isfinite(memory["since"]).any(axis=1), memory["known"].any(axis=1)
            self._calibrator.count(memory, pool, np.asarray(alarmed), np.asarray(judged), length)
            pool["beat"] = np.array([number])
        pool["last"] = np.maximum(pool["last"], window.times[-1])
        result = self._findings(window, memory, pool, topology, now)
        silent = learning_detector.no_verdicts(self.name, window, np.asarray(~memory["known"].any(axis=1)))
        return self._state(window.entities, memory, pool), (*result, *silent)

    def clock(self, state: DetectorState) -> float:
        """The number of the newest beat."""
        return learning_detector.newest_of(state, "beat")

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Advances the rows of returning entities to now; rings move on by the missed beats."""
        super().resume(memory, away)
        for name, beats in self.rings.items():
            with np.errstate(invalid="ignore"):
                missed = np.floor((away.reached + 1.0) / beats) - np.floor((away.left + 1.0) / beats)
            memory[name] = shifted(memory[name], missed)

    @abstractmethod
    def _fresh(self, count: int) -> Arrays:
        """State of ``count`` unknown entities.

        Includes ``known`` and ``since`` (entities, watched): signals that were judged, and the start of a deviation,
        NaN if none.
        """

    @abstractmethod
    def _forget(self, memory: Arrays) -> None:
        """Drops readings of another beat length. Replaces arrays of ``memory``."""

    @abstractmethod
    def _beat(self, memory: Arrays, pool: Arrays, values: Floats, beat: Beat) -> None:
        """Judges and learns the reading (entities, signals) of a beat."""

    @abstractmethod
    def _findings(
        self, window: Window, memory: Arrays, pool: Arrays, topology: Topology, now: datetime
    ) -> list[Finding]:
        """Returns the current findings."""

    def _handle_events(self, memory: Arrays, window: Window, topology: Topology, now: datetime) -> None:
        """Handles events, in every cycle."""

    def _scalars(self) -> Arrays:
        never = {"last": np.array([-np.inf]), "beat": np.array([-np.inf]), "length": np.zeros(1)}
        return {**never, **learning_detector.fresh(), **self._calibrator.of_class(), **self._baseline.of_class()}

    def _add_learned_time(self, window: Window, pool: Arrays, first: int) -> None:
        seconds = sampling.spacing(window)
        for place in range(first, window.times.size):
            learning_detector.lived(pool, np.isfinite(window.values[:, place]), float(seconds[place]))

    def _reading(self, window: Window, columns: slice) -> Floats:
        """The mean of some samples of a beat, (entities, signals)."""
        count = columns.stop - columns.start
        if count <= self.instants:
            return means(np.moveaxis(sampling.read(window, self.signals, columns), 1, 2))
        places = np.unique(np.linspace(columns.start, columns.stop - 1, self.instants).astype(int))
        single = [sampling.read(window, self.signals, slice(place, place + 1))[:, 0] for place in places]
        return means(np.stack(single, axis=2))

    def _follow(self, state: DetectorState, entities: tuple[EntityRef, ...]) -> tuple[Arrays, Arrays]:
        """The arrays for these entities. They may be those of the state itself, so do not change them."""
        state, _ = self.restored(state)
        return held(state, entities, self._fresh), scalars(state, self._scalars())

    def _state(self, entities: tuple[EntityRef, ...], memory: Arrays, pool: Arrays) -> DetectorState:
        return DetectorState(self.state_version, entities, {**memory, **pool, **self._fingerprint()})


def _beats(window: Window, newest: float, length: float) -> Iterator[tuple[float, slice]]:
    """Complete beats after ``newest`` with their columns; limited to the window."""
    over = np.floor((window.times[-1] + window.step.total_seconds()) / length + 1e-6)
    numbers = np.floor(window.times / length + 1e-6)
    for number in np.unique(numbers[(numbers > newest) & (numbers < over)]):
        start, stop = np.searchsorted(numbers, (number, number + 1))
        yield float(number), slice(int(start), int(stop))


def shared(moved: NDArray[np.int8], entities: tuple[EntityRef, ...], topology: Topology) -> Flags:
    """True for moves (entities, signals; -1, 0 or 1) that many peers or the whole class make."""
    group = peer_groups.groups(entities, topology)
    grouped = group >= 0
    sizes = np.bincount(group[grouped], minlength=1)
    result = np.zeros(moved.shape, dtype=np.bool_)
    for sign in (-1, 1):
        mine = moved == sign
        result |= mine & ~hysteresis.own(mine)
        count = np.zeros((sizes.size, moved.shape[1]), dtype=np.intp)
        np.add.at(count, group[grouped], mine[grouped])
        others, size = count[group] - 1, sizes[group][:, None] - 1
        result |= mine & grouped[:, None] & (others >= np.maximum(PEERS_LEAST, PEERS_RATIO * size))
    return result


def extended(held: NDArray[np.float32], values: Floats, gap: int) -> NDArray[np.float32]:
    """A ring (entities, signals, beats) shifted by one reading, after ``gap`` empty beats."""
    gap = min(gap, held.shape[2] - 1)
    empty = np.full((*values.shape, gap), np.nan, dtype=np.float32)
    newest = values.astype(np.float32)[:, :, None]
    return np.concatenate((held[:, :, gap + 1 :], empty, newest), axis=2)
