"""What statistical detectors have in common: they need a past, keep to a budget, and say how far they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta, tzinfo
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base import sampling
from detectors.base.protocols import Absence
from detectors.base.state_arrays import Arrays, scalars
from detectors.learning.dormant_state import begin_anew
from detectors.learning.state_fingerprint import same_signals
from detectors.statistics import peer_groups
from detectors.statistics.alarm_budget import AlarmCount, Calibrator
from detectors.statistics.baseline import Baseline, Span
from outrider.model import (
    AlarmRate,
    CellStatus,
    DetectorState,
    EntityKind,
    EntityRef,
    NoVerdict,
    NoVerdictReason,
    Window,
)
from outrider.topology import Topology

LEARNT = "learnt"
LONGEST_STEP_SECONDS = 600.0  # a value after a gap speaks for no more than this
ALARMS_PER_ENTITY_DAY = 0.25


class StatisticalDetector:
    """What detectors of levels share: a baseline of their signals, and a limit that moves with the budget."""

    family: ClassVar[str]
    weekly = True
    passing: ClassVar[tuple[str, ...]] = ("since", "alarmed")
    """Arrays that say what goes on: they begin anew with an entity that was away."""

    def __init__(self, kind: EntityKind, signals: Sequence[str], name: str | None = None) -> None:
        """``signals`` are names of the catalogue; the name defaults to ``<family>-<kind>``."""
        self.kind = kind
        self.name = name or f"{self.family}-{kind.value}"
        self.signals = tuple(signals)
        self.keys = sampling.keys_of(signals)
        self._baseline = Baseline(signals)
        self._calibrator: AlarmCount = Calibrator(ALARMS_PER_ENTITY_DAY)

    def initial(self) -> DetectorState:
        """Nothing learnt."""
        raise NotImplementedError

    def _fresh(self, count: int) -> Arrays:
        """Memory of so many entities that nothing is known about."""
        raise NotImplementedError

    def of_entities(self, count: int) -> Arrays:
        """Memory of ``count`` entities that nothing is known about."""
        return self._fresh(count)

    def clock(self, state: DetectorState) -> float:
        """The newest unix second that was seen."""
        return newest_of(state)

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Bring the rows of entities that return up to now. Changes ``memory``."""
        begin_anew(memory, self._fresh(away.seconds.size), self.passing)
        self._baseline.rest(memory, away.seconds)

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """A check-point as far as it can be used, and why the rest cannot: levels of other signals are not ours."""
        fits = same_signals(state, self.signals)
        return (state, "") if fits else (self.initial(), "it was learnt of other signals")

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replace the default budget; before the first cycle."""
        self._calibrator = Calibrator(alarms_per_entity_day)

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Days that are like no other; before the first cycle."""
        self._baseline.set_holidays(holidays)

    def set_zone(self, zone: tzinfo) -> None:
        """Where the days of the week begin and end; before the first cycle."""
        self._baseline.set_zone(zone)

    def learnt(self, state: DetectorState) -> timedelta:
        """How much past of the class was learnt, gaps left out."""
        return learnt(state)

    def alarm_rate(self, state: DetectorState) -> AlarmRate:
        """Entities that began to deviate per entity-day against the budget."""
        return self._calibrator.rate(scalars(state, self._scalars()))

    def _turn(
        self,
        memory: Arrays,
        pool: Arrays,
        at: float,
        entities: Sequence[EntityRef],
        topology: Topology | None = None,
    ) -> None:
        """Make the baseline ready for an instant; peers are asked for only when a part of the week begins."""
        if self._baseline.turns(memory, at):
            if topology is not None:
                memory["week_group"] = peer_groups.groups(entities, topology).astype(np.int32)
            self._baseline.turn(memory, at, pool)

    def _scalars(self) -> Arrays:
        """Arrays of the class that each cycle carries on."""
        raise NotImplementedError


def silences(name: str, window: Window, learning: NDArray[np.bool_]) -> list[NoVerdict]:
    """Why nothing is said about the entities of which no signal is known yet; one for all where all have one reason."""
    status = window.status[:, -1]
    absent = (status == CellStatus.ABSENT).all(axis=1)
    untrusted = ~absent & (status >= CellStatus.STALE).all(axis=1)
    found = []
    for rows, reason in (
        (learning & ~absent & ~untrusted, NoVerdictReason.WARMING_UP),
        (absent, NoVerdictReason.NO_VALUES),
        (untrusted, NoVerdictReason.UNTRUSTED_VALUES),
    ):
        if rows.all():
            return [NoVerdict(name, None, reason)]
        found += [NoVerdict(name, window.entities[row], reason) for row in np.flatnonzero(rows)]
    return found


def fresh() -> Arrays:
    """Nothing learnt of the class."""
    return {LEARNT: np.zeros(1)}


def lived(pool: Arrays, known: NDArray[np.bool_], seconds: float) -> None:
    """Some entity had a value at an instant that stands for ``seconds``. Changes ``pool``."""
    if known.any():
        pool[LEARNT] = pool[LEARNT] + min(seconds, LONGEST_STEP_SECONDS)


def learnt(state: DetectorState) -> timedelta:
    """As ``LearningDetector.learnt``, read from the state."""
    held = state.arrays.get(LEARNT)
    seconds = float(held[0]) if held is not None and held.size == 1 else 0.0
    return timedelta(seconds=seconds if np.isfinite(seconds) else 0.0)


def newest_of(state: DetectorState, name: str = "last") -> float:
    """An array of one number, how far the state has come; minus infinity where it has not begun."""
    held = state.arrays.get(name)
    return float(held[0]) if held is not None and held.shape == (1,) else -np.inf
