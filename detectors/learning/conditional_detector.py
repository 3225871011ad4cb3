"""What detectors of a card's value, given what drives it, have in common: a class, a line that it learns, a budget.

Cards of one class (type, model, role and services above, and the same signals told) learn a line together
(``lines.py``). Such a detector is tried in the shadow until it has learnt two days of its class, history in the
store included; how far is far follows its budget of false alarms.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base import sampling
from detectors.base.condition_durations import Flags, silences
from detectors.base.protocols import Absence
from detectors.base.state_arrays import Arrays, align, scalars
from detectors.base.stateful import StatefulDetector
from detectors.learning import learning_detector, state_fingerprint
from detectors.learning.dormant_state import begin_anew
from detectors.statistics import peer_groups
from detectors.statistics.alarm_budget import Calibrator
from outrider.model import (
    AlarmRate,
    CellStatus,
    DetectorState,
    EntityKind,
    Finding,
    Floats,
    NoVerdict,
    NoVerdictReason,
    Statuses,
    Window,
)
from outrider.topology import Topology

LONGEST_STEP_SECONDS = 600.0  # a reading after a gap speaks for no more than this
TELLS_SECONDS = 86400.0  # an engine's page that is away for an afternoon makes no other class of its card
REGROUP_SECONDS = 300.0  # pods move rarely; of a card that is far off it is asked at once
_BLOCK = 48  # columns of history that are learnt at once
_TOLD = "seen_"  # before the name of a signal: when a card told it last
DEFAULTS = {"class": 0, "grouped_at": -np.inf, "learnt_until": -np.inf, "seconds": 0.0, "alarmed": False}


class Given(StatefulDetector):
    """The outer half of a detector of cards that judges by a line of their class.

    ``maybe`` are signals that not every exporter tells: which of them a card tells is part of its class. ``odd`` names
    the arrays of the memory that say since when a card is far off, NaN for not. ``ahead_seconds`` is when within each
    ``REGROUP_SECONDS`` cards are sorted, lest all such detectors do it in one cycle.
    """

    kind = EntityKind.GPU
    window = timedelta(minutes=10)
    weekly = False
    maybe: ClassVar[tuple[str, ...]]
    odd: ClassVar[tuple[str, ...]]
    ahead_seconds: ClassVar[float] = 0.0

    def __init__(self) -> None:
        """With the usual budget."""
        self._calibrator = Calibrator(learning_detector.ALARMS_PER_ENTITY_DAY)

    def initial(self) -> DetectorState:
        """Nothing learnt."""
        return DetectorState(self.state_version, (), {**self.of_entities(0), **self._signals()})

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """A check-point as far as it can be used: a line between other signals is not ours; older ones name none."""
        fits = state_fingerprint.SIGNALS not in state.arrays or state_fingerprint.same_signals(
            state, [key.name for key in self.keys]
        )
        return (state, "") if fits else (self.initial(), "it was learnt of other signals")

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """As every detector with a memory; the state names the signals that it was learnt of."""
        state, verdicts = super().detect(self.restored(state)[0], window, topology, now)
        return replace(state, arrays={**state.arrays, **self._signals()}), verdicts

    def _signals(self) -> Arrays:
        return state_fingerprint.of_signals([key.name for key in self.keys])

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replace the default budget; before the first cycle."""
        self._calibrator = Calibrator(alarms_per_entity_day)

    def learnt(self, state: DetectorState) -> timedelta:
        """How much past of the class was learnt, gaps left out."""
        return learning_detector.learnt(state)

    def alarm_rate(self, state: DetectorState) -> AlarmRate:
        """Cards that began to be far off per card and day against the budget."""
        return self._calibrator.rate(scalars(state, self.of_class()))

    def of_entities(self, count: int) -> Arrays:
        """Memory of ``count`` cards that nothing is known about."""
        return {name: np.full(count, default) for name, default in self.defaults.items()}

    def clock(self, state: DetectorState) -> float:
        """The newest unix second that was seen."""
        return learning_detector.newest_of(state)

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Bring cards that return up to now: what they learnt holds, what went on has passed. Changes ``memory``."""
        begin_anew(memory, self.of_entities(away.seconds.size), (*self.odd, "alarmed", "grouped_at"))
        for name in self.maybe:  # nobody could tell anything meanwhile
            memory[_TOLD + name] = memory[_TOLD + name] + away.seconds

    def of_class(self) -> Arrays:
        """How much was lived, and the alarms counted."""
        return {"last": np.array([-np.inf]), **learning_detector.fresh(), **self._calibrator.of_class()}

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learn the line of each card from history; the cards of a class put theirs together once that is known."""
        memory = {**align(state, window.entities, self.defaults), **scalars(state, self.of_class())}
        alone = np.full(len(window.entities), -1, dtype=np.intp)
        for end in range(_BLOCK, window.times.size + _BLOCK, _BLOCK):
            span = slice(max(0, end - 2 * _BLOCK), min(end, window.times.size))
            part = replace(
                window, times=window.times[span], values=window.values[:, span], status=window.status[:, span]
            )
            self._live(part, memory)
            self._relive(part, memory, alone)
        return DetectorState(self.state_version, window.entities, {**memory, **self._signals()})

    @abstractmethod
    def _known(self, window: Window, memory: Arrays, columns: slice) -> Flags:
        """The cells that say something of a card, (entities, columns)."""

    @abstractmethod
    def _teach(self, window: Window, memory: Arrays, group: NDArray[np.intp]) -> None:
        """Learn the readings of a window that are old enough. Changes ``memory``."""

    def _relive(self, window: Window, memory: Arrays, group: NDArray[np.intp]) -> None:
        """Learn a part of history. Changes ``memory``."""
        self._teach(window, memory, group)

    def _live(self, window: Window, memory: Arrays) -> float:
        """Count the columns that are new; returns the seconds that they stand for, a gap as one step."""
        first = int(np.searchsorted(window.times, memory["last"][0], side="right"))
        for name in self.maybe:
            when = np.where(np.isfinite(window.column(name)[:, first:]), window.times[first:], -np.inf)
            memory[_TOLD + name] = np.maximum(memory[_TOLD + name], when.max(axis=1, initial=-np.inf))
        memory["last"] = np.maximum(memory["last"], window.times[-1:].max(initial=-np.inf))
        known, seconds = self._known(window, memory, slice(first, None)), sampling.spacing(window)[first:]
        for place, long in enumerate(seconds):
            learning_detector.lived(memory, known[:, place], float(long))
        return float(np.minimum(seconds, LONGEST_STEP_SECONDS).sum())

    def _tells(self, memory: Arrays) -> Flags:
        """Which of ``maybe`` a card has told within a day, (entities, maybe)."""
        told = np.stack([memory[_TOLD + name] for name in self.maybe], axis=1)
        return np.asarray(np.isfinite(told) & (told >= memory["last"][0] - TELLS_SECONDS), dtype=np.bool_)

    def _read(self, window: Window, memory: Arrays, columns: slice) -> list[Floats]:
        """The signals by name, ``maybe`` last, (entities, columns), NaN unknown; what a card never tells is zero."""
        always = [key.name for key in self.keys if key.name not in self.maybe]
        return believed(window, columns, always, self.maybe, self._tells(memory))

    def _sort(self, window: Window, memory: Arrays, topology: Topology) -> NDArray[np.intp]:
        """Remember the class of each card, and forget what one of another class has taught; the groups, (entities,).

        A card that nothing runs on for a while stays in its class: its pod will be back. What a card's exporter
        told within a day is part of the class: one that is silent has not become another.
        """
        at = float(window.times[-1])
        doubted = np.logical_or.reduce([np.isfinite(memory[name]) for name in self.odd])
        turn, last = (np.floor((one - self.ahead_seconds) / REGROUP_SECONDS) for one in (at, memory["grouped_at"]))
        rows = np.flatnonzero(doubted | (turn != last))
        if rows.size:
            code, carries = peer_groups.classes([window.entities[row] for row in rows], topology)
            before, width = memory["class"][rows], 2 ** len(self.maybe)
            told = self._tells(memory)[rows] @ (width >> np.arange(1, len(self.maybe) + 1))
            none = told == 0
            if none.any():  # nothing can be said of a card that is silent, nor of its class
                none &= ~np.any(self._known(window, memory, slice(None))[rows], axis=1)
            code = code * width + np.where(none, before % width, told)
            moved = (before != code) & (carries | (before == 0))
            gone = rows[moved & (before != 0)]
            for name, default in self.defaults.items():
                if not name.startswith(_TOLD):
                    memory[name][gone] = default
            memory["class"][rows[moved]] = code[moved]
            memory["learnt_until"][gone] = at  # what it did before was of the other class
            memory["grouped_at"][rows] = at
        return peer_groups.numbered(memory["class"])

    def _silences(
        self, window: Window, blind: Flags, status: Statuses, ripe: Flags, told: Flags, young: Flags | None = None
    ) -> list[NoVerdict]:
        """Why nothing is said: no values, too few of them to go by, a class that nobody has learnt yet.

        Cards that are ``young`` have values that are not gone by yet.
        """
        learning = ~ripe & ~blind
        found = list(silences(self.name, window.entities, status, blind))
        if learning.any() and not (ripe & ~blind).any():
            return [*found, NoVerdict(self.name, None, NoVerdictReason.WARMING_UP)]
        few = ripe & ~blind & ~told
        if young is not None:
            learning, few = learning | (few & young), few & ~young
        for rows, reason in ((few, NoVerdictReason.NO_VALUES), (learning, NoVerdictReason.WARMING_UP)):
            found += [NoVerdict(self.name, window.entities[row], reason) for row in np.flatnonzero(rows)]
        return found


def told(names: Iterable[str]) -> dict[str, float]:
    """Defaults of when a card told each of ``maybe`` last."""
    return dict.fromkeys([_TOLD + name for name in names], -np.inf)


def of_class(how: np.ufunc, values: Floats, group: NDArray[np.intp]) -> Floats:
    """The extreme of each entity's group, its own value for those without one."""
    grouped = group >= 0
    if not grouped.any():
        return values
    found = np.full(int(group.max()) + 1, np.nan)
    how.at(found, group[grouped], values[grouped])
    return np.where(grouped, found[np.maximum(group, 0)], values)


def believed(
    window: Window, columns: slice, names: Sequence[str], maybe: Sequence[str] = (), tells: Flags | None = None
) -> list[Floats]:
    """Signals by name, (entities, columns) each, NaN unknown; what a card does not tell of ``maybe`` is zero.

    ``tells``, (entities, maybe), is True for what it told lately: while that is away, it is unknown.
    """
    found = []
    for name in (*names, *maybe):
        values = window.column(name)[:, columns]
        good = (window.column_status(name)[:, columns] <= CellStatus.BELOW_FIRST_BUCKET) & np.isfinite(values)
        read = np.where(good, values, np.nan)
        if tells is not None and name in maybe:
            read[~tells[:, maybe.index(name)]] = 0.0
        found.append(read)
    return found
