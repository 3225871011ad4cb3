"""What detectors of slow things share: a reading a minute or so, peers and load as explanations, a cheap cycle.

A shift or a trend shows over many minutes, so most cycles only say again what was found: arrays are copied and
judged once a *beat*. Nothing is found that a third of an entity's peers or a quarter of its class shows with it,
nor what more or less load explains: more of it makes higher what is better low, and lower what is better high.
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
from detectors.learning import learning_detector, state_fingerprint
from detectors.learning.dormant_state import moved_on
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

PEERS_RATIO, PEERS_LEAST = 0.34, 2  # of the other peers: then it is not one entity's own
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Beat:
    """One reading of every entity: the ``number``-th span of ``length`` seconds, ``gap`` beats after the one before."""

    number: float
    length: float
    gap: int
    entities: tuple[EntityRef, ...]
    topology: Topology

    @property
    def start(self) -> float:
        """Unix seconds, as the two below."""
        return self.number * self.length

    @property
    def middle(self) -> float:
        """The instant that a mean over the beat stands for."""
        return (self.number + 0.5) * self.length

    @property
    def end(self) -> float:
        """When it was known."""
        return (self.number + 1.0) * self.length


class SlowSignalDetector(learning_detector.StatisticalDetector):
    """The outer half; the inner one is ``_beat``, which judges one reading of every entity."""

    state_version: int
    beat_seconds: ClassVar[float]
    instants: ClassVar[int]  # of a beat, whose mean is its reading
    replaced: ClassVar[tuple[str, ...]] = ()  # arrays that a beat replaces and does not change in place
    rings: ClassVar[Mapping[str, float]] = {}  # arrays (entities, signals, columns), and how many beats a column is
    passing = (*learning_detector.StatisticalDetector.passing, "known")
    window = timedelta(minutes=10)

    def __init__(
        self, kind: EntityKind, watched: Sequence[str], load: str, name: str | None = None, also: Sequence[str] = ()
    ) -> None:
        """``watched`` are judged, ``load`` explains; of ``also`` the newest values are read beside them."""
        super().__init__(kind, (*watched, load), name)
        self.watched, self.load = tuple(watched), load
        self.keys = tuple(dict.fromkeys((*self.keys, *map(SignalKey, also))))
        self._by_load = np.array([-1.0 if catalog.signal(one).good == "higher" else 1.0 for one in watched])

    def initial(self) -> DetectorState:
        """Nothing learnt."""
        return self._state((), self._fresh(0), self._scalars())

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """What stands, judged anew when a beat is over; NoVerdict for entities that are not known yet."""
        if window.times.size == 0 or not window.entities:
            return state, (NoVerdict(self.name, None, NoVerdictReason.NO_VALUES),)
        memory, pool = self._follow(state, window.entities)
        if now.timestamp() < pool["last"][0]:
            return state, (NoVerdict(self.name, None, NoVerdictReason.CLOCK_STEP),)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        self._lived(window, pool, first)
        self._heard(memory, window, topology, now)
        length = max(self.beat_seconds, window.step.total_seconds())
        if pool["length"][0] not in (0.0, length):
            self._forget(memory)
            pool["beat"] = np.array([-np.inf])
        pool["length"] = np.array([length])
        owned = False
        for number, columns in _beats(window, float(pool["beat"][0]), length):
            if not owned:
                owned = True
                memory = {name: one if name in self.replaced else one.copy() for name, one in memory.items()}
            gap = 0 if np.isinf(pool["beat"][0]) else int(number - pool["beat"][0]) - 1
            beat = Beat(number, length, gap, window.entities, topology)
            self._beat(memory, pool, self._reading(window, columns), beat)
            alarmed, judged = np.isfinite(memory["since"]).any(axis=1), memory["known"].any(axis=1)
            self._calibrator.count(memory, pool, np.asarray(alarmed), np.asarray(judged), length)
            pool["beat"] = np.array([number])
        pool["last"] = np.maximum(pool["last"], window.times[-1])
        found = self._findings(window, memory, pool, topology, now)
        silent = learning_detector.silences(self.name, window, np.asarray(~memory["known"].any(axis=1)))
        return self._state(window.entities, memory, pool), (*found, *silent)

    def clock(self, state: DetectorState) -> float:
        """The number of the newest beat."""
        return learning_detector.newest_of(state, "beat")

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Bring the rows of entities that return up to now; rings move on by the beats that were missed."""
        super().resume(memory, away)
        for name, beats in self.rings.items():
            with np.errstate(invalid="ignore"):
                missed = np.floor((away.reached + 1.0) / beats) - np.floor((away.left + 1.0) / beats)
            memory[name] = moved_on(memory[name], missed)

    @abstractmethod
    def _fresh(self, count: int) -> Arrays:
        """What is remembered of entities that nothing is known about.

        Among it ``known`` and ``since`` (entities, watched): what was judged, and since when it deviates, NaN for not.
        """

    @abstractmethod
    def _forget(self, memory: Arrays) -> None:
        """Readings of other beats are no readings. Replaces arrays of ``memory``."""

    @abstractmethod
    def _beat(self, memory: Arrays, pool: Arrays, values: Floats, beat: Beat) -> None:
        """Judge and learn the reading (entities, signals) of a beat."""

    @abstractmethod
    def _findings(
        self, window: Window, memory: Arrays, pool: Arrays, topology: Topology, now: datetime
    ) -> list[Finding]:
        """What stands."""

    def _heard(self, memory: Arrays, window: Window, topology: Topology, now: datetime) -> None:
        """Take note of events, in every cycle."""

    def _scalars(self) -> Arrays:
        never = {"last": np.array([-np.inf]), "beat": np.array([-np.inf]), "length": np.zeros(1)}
        return {**never, **learning_detector.fresh(), **self._calibrator.of_class(), **self._baseline.of_class()}

    def _lived(self, window: Window, pool: Arrays, first: int) -> None:
        seconds = sampling.spacing(window)
        for place in range(first, window.times.size):
            learning_detector.lived(pool, np.isfinite(window.values[:, place]), float(seconds[place]))

    def _reading(self, window: Window, columns: slice) -> Floats:
        """The mean of some instants of a beat, (entities, signals)."""
        count = columns.stop - columns.start
        if count <= self.instants:
            return means(np.moveaxis(sampling.read(window, self.signals, columns), 1, 2))
        places = np.unique(np.linspace(columns.start, columns.stop - 1, self.instants).astype(int))
        single = [sampling.read(window, self.signals, slice(place, place + 1))[:, 0] for place in places]
        return means(np.stack(single, axis=2))

    def _follow(self, state: DetectorState, entities: tuple[EntityRef, ...]) -> tuple[Arrays, Arrays]:
        """The arrays for these entities: those of the state itself where they fit, so that they must not be changed."""
        state, _ = self.restored(state)
        return held(state, entities, self._fresh), scalars(state, self._scalars())

    def _state(self, entities: tuple[EntityRef, ...], memory: Arrays, pool: Arrays) -> DetectorState:
        return DetectorState(
            self.state_version, entities, {**memory, **pool, **state_fingerprint.of_signals(self.signals)}
        )


def _beats(window: Window, newest: float, length: float) -> Iterator[tuple[float, slice]]:
    """Beats after ``newest`` that are over, with their columns; at most those that the window holds."""
    over = np.floor((window.times[-1] + window.step.total_seconds()) / length + 1e-6)
    numbers = np.floor(window.times / length + 1e-6)
    for number in np.unique(numbers[(numbers > newest) & (numbers < over)]):
        start, stop = np.searchsorted(numbers, (number, number + 1))
        yield float(number), slice(int(start), int(stop))


def shared(moved: NDArray[np.int8], entities: tuple[EntityRef, ...], topology: Topology) -> Flags:
    """Which moves many make, shape (entities, signals) of -1, 0 and 1: peers, or the whole class."""
    group = peer_groups.groups(entities, topology)
    grouped = group >= 0
    sizes = np.bincount(group[grouped], minlength=1)
    found = np.zeros(moved.shape, dtype=np.bool_)
    for sign in (-1, 1):
        mine = moved == sign
        found |= mine & ~hysteresis.own(mine)
        count = np.zeros((sizes.size, moved.shape[1]), dtype=np.intp)
        np.add.at(count, group[grouped], mine[grouped])
        others, size = count[group] - 1, sizes[group][:, None] - 1
        found |= mine & grouped[:, None] & (others >= np.maximum(PEERS_LEAST, PEERS_RATIO * size))
    return found


def extended(held: NDArray[np.float32], values: Floats, gap: int) -> NDArray[np.float32]:
    """A ring (entities, signals, beats) moved on by one reading, and by ``gap`` beats without any before it."""
    gap = min(gap, held.shape[2] - 1)
    empty = np.full((*values.shape, gap), np.nan, dtype=np.float32)
    newest = values.astype(np.float32)[:, :, None]
    return np.concatenate((held[:, :, gap + 1 :], empty, newest), axis=2)
