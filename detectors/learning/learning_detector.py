"""Base class of statistical detectors: learned history, alarm budget, progress of learning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, timedelta, tzinfo
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base import sampling
from detectors.base.protocols import Absence
from detectors.base.state_arrays import Arrays, scalars
from detectors.learning import state_fingerprint
from detectors.learning.dormant_state import begin_anew
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
LONGEST_STEP_SECONDS = 600.0  # a value after a data gap covers at most this long
ALARMS_PER_ENTITY_DAY = 0.25


class StatisticalDetector:
    """Base of level detectors: a baseline of their signals, and a threshold that follows the alarm budget."""

    family: ClassVar[str]
    weekly = True
    passing: ClassVar[tuple[str, ...]] = ("since", "alarmed")
    """State arrays that describe the present. They restart when an absent entity returns."""

    def __init__(self, kind: EntityKind, signals: Sequence[str], name: str | None = None) -> None:
        """``signals`` are catalog names; the name defaults to ``<family>-<kind>``."""
        self.kind = kind
        self.name = name or f"{self.family}-{kind.value}"
        self.signals = tuple(signals)
        self.keys = sampling.keys_of(signals)
        self._baseline = Baseline(signals)
        self._zone: tzinfo = UTC
        self._calibrator: AlarmCount = Calibrator(ALARMS_PER_ENTITY_DAY)

    def initial(self) -> DetectorState:
        """Returns the state before anything is learned."""
        raise NotImplementedError

    def _fresh(self, count: int) -> Arrays:
        """State of ``count`` unknown entities."""
        raise NotImplementedError

    def of_entities(self, count: int) -> Arrays:
        """State of ``count`` unknown entities."""
        return self._fresh(count)

    def clock(self, state: DetectorState) -> float:
        """The newest unix second in the state."""
        return newest_of(state)

    def resume(self, memory: Arrays, away: Absence) -> None:
        """Advances the rows of returning entities to now. Changes ``memory``."""
        begin_anew(memory, self._fresh(away.seconds.size), self.passing)
        self._baseline.rest(memory, away.seconds)

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """The usable part of a checkpoint and the reason if a part is dropped.

        Other signals invalidate it, and so does another time zone: hours of the day would be those of other users.
        """
        misfit = self._misfit(state)
        return (self.initial(), misfit) if misfit else (state, "")

    def _misfit(self, state: DetectorState) -> str:
        """The reason why a state cannot be used, empty if it can."""
        if not state_fingerprint.same_signals(state, self.signals):
            return "it was learned from other signals"
        return "" if state_fingerprint.same_zone(state, self._zone) else "it was learned in another time zone"

    def _fingerprint(self) -> Arrays:
        """The arrays that name signals and time zone of the state."""
        return state_fingerprint.of_signals(self.signals) | state_fingerprint.of_zone(self._zone)

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replaces the default budget. Call before the first cycle."""
        self._calibrator = Calibrator(alarms_per_entity_day)

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Sets the days without a usual profile. Call before the first cycle."""
        self._baseline.set_holidays(holidays)

    def set_zone(self, zone: tzinfo) -> None:
        """Sets the time zone of times of day and days of the week. Call before the first cycle."""
        self._zone = zone
        self._baseline.set_zone(zone)

    def learnt(self, state: DetectorState) -> timedelta:
        """Length of the learned history of the class, without data gaps."""
        return learnt(state)

    def alarm_rate(self, state: DetectorState) -> AlarmRate:
        """Entities that started to deviate per entity-day, and the budget."""
        return self._calibrator.rate(scalars(state, self._scalars()))

    def _turn(
        self,
        memory: Arrays,
        pool: Arrays,
        at: float,
        entities: Sequence[EntityRef],
        topology: Topology | None = None,
    ) -> None:
        """Prepares the baseline for a time; peers are computed only when a part of the week begins."""
        if self._baseline.turns(memory, at):
            if topology is not None:
                memory["week_group"] = peer_groups.groups(entities, topology).astype(np.int32)
            self._baseline.turn(memory, at, pool)

    def _scalars(self) -> Arrays:
        """Arrays of the class that every cycle carries on."""
        raise NotImplementedError


def no_verdicts(name: str, window: Window, learning: NDArray[np.bool_]) -> list[NoVerdict]:
    """NoVerdicts for entities without a learned signal; a single one if all share one reason."""
    status = window.status[:, -1]
    absent = (status == CellStatus.ABSENT).all(axis=1)
    untrusted = ~absent & (status >= CellStatus.STALE).all(axis=1)
    result = []
    for rows, reason in (
        (learning & ~absent & ~untrusted, NoVerdictReason.WARMING_UP),
        (absent, NoVerdictReason.NO_VALUES),
        (untrusted, NoVerdictReason.UNTRUSTED_VALUES),
    ):
        if rows.all():
            return [NoVerdict(name, None, reason)]
        result += [NoVerdict(name, window.entities[row], reason) for row in np.flatnonzero(rows)]
    return result


def fresh() -> Arrays:
    """State of a class without learned history."""
    return {LEARNT: np.zeros(1)}


def lived(pool: Arrays, known: NDArray[np.bool_], seconds: float) -> None:
    """Adds ``seconds`` of learned history if any entity had a value. Changes ``pool``."""
    if known.any():
        pool[LEARNT] = pool[LEARNT] + min(seconds, LONGEST_STEP_SECONDS)


def learnt(state: DetectorState) -> timedelta:
    """As ``LearningDetector.learnt``, from the state."""
    held = state.arrays.get(LEARNT)
    seconds = float(held[0]) if held is not None and held.size == 1 else 0.0
    return timedelta(seconds=seconds if np.isfinite(seconds) else 0.0)


def newest_of(state: DetectorState, name: str = "last") -> float:
    """A one-element array that marks progress; minus infinity if nothing was seen."""
    held = state.arrays.get(name)
    return float(held[0]) if held is not None and held.shape == (1,) else -np.inf
