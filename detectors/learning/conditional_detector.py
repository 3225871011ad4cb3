"""Base class of GPU detectors that judge a value given its drivers: class, learned line, alarm budget.

GPUs of one class (type, model, role, services above, signals exported) learn a line together
(``statistics.online_regression``). Such a detector runs in shadow until it has learned two days of its class, stored
history included. The distance that counts as a deviation follows the alarm budget.
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
from detectors.base.condition_durations import Flags, no_verdicts
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

LONGEST_STEP_SECONDS = 600.0  # a reading after a data gap covers at most this long
EXPORTED_SECONDS = 86400.0  # an engine page that is missing for an afternoon does not change the class of its GPU
REGROUP_SECONDS = 300.0  # pods move rarely; the class of a deviating GPU is checked at once
_BLOCK = 48  # columns of history learned per step
_SEEN = "seen_"  # prefix of a signal name: time of its last value from a GPU
DEFAULTS = {"class": 0, "grouped_at": -np.inf, "learnt_until": -np.inf, "seconds": 0.0, "alarmed": False}


class ConditionalDetector(StatefulDetector):
    """Outer half of a GPU detector that judges by a line of its class.

    ``maybe`` are signals that not every exporter has; which of them a GPU has is part of its class.
    ``anomaly_arrays`` names the state arrays with the start of a deviation, NaN if none. ``ahead_seconds`` is the
    offset of re-classification within each ``REGROUP_SECONDS``, so that detectors do not all do it in one cycle.
    """

    kind = EntityKind.GPU
    window = timedelta(minutes=10)
    weekly = False
    maybe: ClassVar[tuple[str, ...]]
    anomaly_arrays: ClassVar[tuple[str, ...]]
    ahead_seconds: ClassVar[float] = 0.0

    def __init__(self) -> None:
        """Uses the default alarm budget."""
        self._calibrator = Calibrator(learning_detector.ALARMS_PER_ENTITY_DAY)

    def initial(self) -> DetectorState:
        """Returns the state before anything is learned."""
        return DetectorState(self.state_version, (), {**self.of_entities(0), **self._signals()})

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """The usable part of a checkpoint: a line between other signals is dropped.

        Older checkpoints name no signals and are accepted.
        """
        fits = state_fingerprint.SIGNALS not in state.arrays or state_fingerprint.same_signals(
            state, [key.name for key in self.keys]
        )
        return (state, "") if fits else (self.initial(), "it was learned from other signals")

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """As ``StatefulDetector.detect``; the state names the signals that it was learned from."""
        state, verdicts = super().detect(self.restored(state)[0], window, topology, now)
        return replace(state, arrays={**state.arrays, **self._signals()}), verdicts

    def _signals(self) -> Arrays:
        return state_fingerprint.of_signals([key.name for key in self.keys])

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replaces the default budget. Call before the first cycle."""
        self._calibrator = Calibrator(alarms_per_entity_day)

    def learnt(self, state: DetectorState) -> timedelta:
        """Length of the learned history of the class, without data gaps."""
        return learning_detector.learnt(state)

    def alarm_rate(self, state: DetectorState) -> AlarmRate:
        """GPUs that started to deviate per GPU-day, and the budget."""
        return self._calibrator.rate(scalars(state, self.of_class()))

    def of_entities(self, count: int) -> Arrays:
        """State of ``count`` unknown GPUs."""
        return {name: np.full(count, default) for name, default in self.defaults.items()}

    def clock(self, state: DetectorState) -> float:
        """The newest unix second in the state."""
        return learning_detector.newest_of(state)

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Advances returning GPUs to now: learned lines stay, ongoing deviations end. Changes ``memory``."""
        begin_anew(memory, self.of_entities(away.seconds.size), (*self.anomaly_arrays, "alarmed", "grouped_at"))
        for name in self.maybe:  # nothing could be exported during the absence
            memory[_SEEN + name] = memory[_SEEN + name] + away.seconds

    def of_class(self) -> Arrays:
        """Length of the learned history, and the alarms counted."""
        return {"last": np.array([-np.inf]), **learning_detector.fresh(), **self._calibrator.of_class()}

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learns the line of each GPU from history. GPUs of a class share theirs once the class is known."""
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
        """Cells that have a usable value, (entities, columns)."""

    @abstractmethod
    def _teach(self, window: Window, memory: Arrays, group: NDArray[np.intp]) -> None:
        """Learns the readings of a window that are old enough. Changes ``memory``."""

    def _relive(self, window: Window, memory: Arrays, group: NDArray[np.intp]) -> None:
        """Learns a part of the history. Changes ``memory``."""
        self._teach(window, memory, group)

    def _live(self, window: Window, memory: Arrays) -> float:
        """Counts the new columns. Returns the seconds that they cover; a data gap counts as one step."""
        first = int(np.searchsorted(window.times, memory["last"][0], side="right"))
        for name in self.maybe:
            when = np.where(np.isfinite(window.column(name)[:, first:]), window.times[first:], -np.inf)
            memory[_SEEN + name] = np.maximum(memory[_SEEN + name], when.max(axis=1, initial=-np.inf))
        memory["last"] = np.maximum(memory["last"], window.times[-1:].max(initial=-np.inf))
        known, seconds = self._known(window, memory, slice(first, None)), sampling.spacing(window)[first:]
        for place, long in enumerate(seconds):
            learning_detector.lived(memory, known[:, place], float(long))
        return float(np.minimum(seconds, LONGEST_STEP_SECONDS).sum())

    def _reported(self, memory: Arrays) -> Flags:
        """Flags of the ``maybe`` signals that each GPU exported within a day, (entities, maybe)."""
        last_seen = np.stack([memory[_SEEN + name] for name in self.maybe], axis=1)
        return np.asarray(np.isfinite(last_seen) & (last_seen >= memory["last"][0] - EXPORTED_SECONDS), dtype=np.bool_)

    def _read(self, window: Window, memory: Arrays, columns: slice) -> list[Floats]:
        """Signals by name, ``maybe`` last, (entities, columns), NaN unknown. A signal that a GPU never exports is 0."""
        always = [key.name for key in self.keys if key.name not in self.maybe]
        return read_signals(window, columns, always, self.maybe, self._reported(memory))

    def _sort(self, window: Window, memory: Arrays, topology: Topology) -> NDArray[np.intp]:
        """Updates the class of each GPU and drops lines of a former class. Returns groups, (entities,).

        An idle GPU keeps its class, since its pod is likely to return. The signals exported within a day are part of
        the class, so a silent exporter does not change it.
        """
        at = float(window.times[-1])
        doubted = np.logical_or.reduce([np.isfinite(memory[name]) for name in self.anomaly_arrays])
        turn, last = (np.floor((item - self.ahead_seconds) / REGROUP_SECONDS) for item in (at, memory["grouped_at"]))
        rows = np.flatnonzero(doubted | (turn != last))
        if rows.size:
            code, carries = peer_groups.classes([window.entities[row] for row in rows], topology)
            before, width = memory["class"][rows], 2 ** len(self.maybe)
            exported = self._reported(memory)[rows] @ (width >> np.arange(1, len(self.maybe) + 1))
            none = exported == 0
            if none.any():  # a silent GPU has no known class
                none &= ~np.any(self._known(window, memory, slice(None))[rows], axis=1)
            code = code * width + np.where(none, before % width, exported)
            moved = (before != code) & (carries | (before == 0))
            gone = rows[moved & (before != 0)]
            for name, default in self.defaults.items():
                if not name.startswith(_SEEN):
                    memory[name][gone] = default
            memory["class"][rows[moved]] = code[moved]
            memory["learnt_until"][gone] = at  # earlier readings belong to the former class
            memory["grouped_at"][rows] = at
        return peer_groups.numbered(memory["class"])

    def _no_verdicts(
        self, window: Window, blind: Flags, status: Statuses, ripe: Flags, judged: Flags, young: Flags | None = None
    ) -> list[NoVerdict]:
        """NoVerdicts: no values, too few values, or a class without learned history.

        ``young`` GPUs have values that are not used yet.
        """
        learning = ~ripe & ~blind
        result = list(no_verdicts(self.name, window.entities, status, blind))
        if learning.any() and not (ripe & ~blind).any():
            return [*result, NoVerdict(self.name, None, NoVerdictReason.WARMING_UP)]
        few = ripe & ~blind & ~judged
        if young is not None:
            learning, few = learning | (few & young), few & ~young
        for rows, reason in ((few, NoVerdictReason.NO_VALUES), (learning, NoVerdictReason.WARMING_UP)):
            result += [NoVerdict(self.name, window.entities[row], reason) for row in np.flatnonzero(rows)]
        return result


def last_seen_defaults(names: Iterable[str]) -> dict[str, float]:
    """Default times of the last value of each of ``maybe``."""
    return dict.fromkeys([_SEEN + name for name in names], -np.inf)


def of_class(how: np.ufunc, values: Floats, group: NDArray[np.intp]) -> Floats:
    """The extreme of each entity's group; its own value if it has no group."""
    grouped = group >= 0
    if not grouped.any():
        return values
    result = np.full(int(group.max()) + 1, np.nan)
    how.at(result, group[grouped], values[grouped])
    return np.where(grouped, result[np.maximum(group, 0)], values)


def read_signals(
    window: Window, columns: slice, names: Sequence[str], maybe: Sequence[str] = (), reported: Flags | None = None
) -> list[Floats]:
    """Signals by name, (entities, columns) each, NaN unknown; a signal of ``maybe`` that a GPU lacks is 0.

    ``reported`` (entities, maybe) is True for signals exported within a day. While such a signal is missing, it is
    unknown.
    """
    floats = []
    for name in (*names, *maybe):
        values = window.column(name)[:, columns]
        good = (window.column_status(name)[:, columns] <= CellStatus.BELOW_FIRST_BUCKET) & np.isfinite(values)
        read = np.where(good, values, np.nan)
        if reported is not None and name in maybe:
            read[~reported[:, maybe.index(name)]] = 0.0
        floats.append(read)
    return floats
